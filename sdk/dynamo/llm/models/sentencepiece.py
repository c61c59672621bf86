"""A SentencePiece model (`tokenizer.model`) as a `tokenizer.json`: pure, from bytes to JSON data.

The file is one protobuf message; the few fields that matter are read directly, which takes no library and a second
for 256,000 pieces. Both kinds that language models use are converted: BPE, whose merges are rebuilt from the scores
(as for GGUF files), and Unigram.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dynamo.llm.models.added_tokens import stated
from dynamo.llm.models.gguf_tokenizer import MOST_TOKENS, rebuild_merges
from dynamo.runtime.errors import InvalidArgument

SPACE: Final = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
_UNIGRAM, _BPE = 1, 2
_KINDS: Final = {3: "word", 4: "char"}
_ADDS_BOS: Final = (
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "GemmaTokenizer",
    "GemmaTokenizerFast",
    "CodeLlamaTokenizer",
)
_ADDS_EOS: Final = ("T5Tokenizer", "T5TokenizerFast")


@dataclass
class Pieces:
    """A SentencePiece model; pieces, scores and kinds are lists of one length, by id."""

    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    model_type: int = _UNIGRAM
    byte_fallback: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    charsmap: bytes = b""
    dummy_prefix: bool = True
    collapse_spaces: bool = True
    escape_spaces: bool = True
    space_after: bool = False


def read(data: bytes) -> Pieces:
    """Read a model; `InvalidArgument` where it is none or is cut off."""
    pieces = Pieces()
    try:
        for number, value in _fields(data):
            if number == 1 and isinstance(value, bytes):
                _read_piece(value, pieces)
            elif number == 2 and isinstance(value, bytes):
                _read_trainer(value, pieces)
            elif number == 3 and isinstance(value, bytes):
                _read_normalizer(value, pieces)
    except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
        raise InvalidArgument("the SentencePiece model is broken (is it cut off?): get the file again") from error
    if not pieces.pieces:
        raise InvalidArgument("the SentencePiece model has no pieces: get the file again")
    if len(pieces.pieces) > MOST_TOKENS:
        raise InvalidArgument(
            f"the SentencePiece model has {len(pieces.pieces)} pieces: at most {MOST_TOKENS} are read"
        )
    if not 0 <= pieces.unk_id < len(pieces.pieces):
        raise InvalidArgument(f"the SentencePiece model has no piece {pieces.unk_id}, which is its unknown one")
    return pieces


def build(data: bytes, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `tokenizer.json`; `settings` is the tokenizer's configuration."""
    model = read(data)
    if model.model_type not in (_UNIGRAM, _BPE):
        kind = _KINDS.get(model.model_type, str(model.model_type))
        raise InvalidArgument(f"the SentencePiece model is of type {kind}; only unigram and bpe are read")
    if model.space_after or not model.escape_spaces:
        raise InvalidArgument(
            "the SentencePiece model marks spaces in a way that is not read here (treat_whitespace_as_suffix or no "
            "escape_whitespaces): use a checkout with a tokenizer.json"
        )
    first = model.dummy_prefix and settings.get("legacy") is False
    added = {
        number: _added(model, number) for number, kind in enumerate(model.kinds) if kind in (CONTROL, USER_DEFINED)
    }
    added |= _stated(settings)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added[number] for number in sorted(added)],
        "normalizer": _normalizer(model, prepend=model.dummy_prefix and not first),
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
        if first
        else None,
        "post_processor": _post_processor(model, settings),
        "decoder": _decoder(model),
        "model": _bpe(model) if model.model_type == _BPE else _unigram(model),
    }


def _normalizer(model: Pieces, *, prepend: bool) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.collapse_spaces:
        steps += [
            {"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]
    if prepend:
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    return {"type": "Sequence", "normalizers": steps}


def _decoder(model: Pieces) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if model.dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _bpe(model: Pieces) -> dict[str, Any]:
    vocabulary: dict[str, int] = {}
    for number, piece in enumerate(model.pieces):
        vocabulary.setdefault(piece, number)
    return {
        "type": "BPE", "dropout": None, "unk_token": model.pieces[model.unk_id], "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": model.byte_fallback, "ignore_merges": False,
        "vocab": vocabulary, "merges": list(rebuild_merges(model.pieces, model.kinds, model.scores)),
    }  # fmt: skip


def _unigram(model: Pieces) -> dict[str, Any]:
    return {
        "type": "Unigram", "unk_id": model.unk_id, "byte_fallback": model.byte_fallback,
        "vocab": list(zip(model.pieces, model.scores, strict=True)),
    }  # fmt: skip


def _added(model: Pieces, number: int) -> dict[str, Any]:
    special = model.kinds[number] == CONTROL
    return _token(number, model.pieces[number] if special else model.pieces[number].replace(SPACE, " "), special)


def _stated(settings: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the tokens that the configuration adds, by id."""
    steps = {}
    for number, about in stated(settings).items():
        own = _token(number, about["content"], bool(about.get("special")))
        steps[number] = own | {
            name: bool(about[name]) for name in ("lstrip", "rstrip", "single_word", "normalized") if name in about
        }
    return steps


def _token(number: int, content: str, special: bool) -> dict[str, Any]:
    return {
        "id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": special,
    }  # fmt: skip


def _post_processor(model: Pieces, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = str(settings.get("tokenizer_class") or "").removesuffix("Fast")
    begins, ends = settings.get("add_bos_token"), settings.get("add_eos_token")
    before = model.bos_id if (kind in _ADDS_BOS if begins is None else begins) else -1
    after = model.eos_id if (kind in _ADDS_EOS if ends is None else ends) else -1
    around: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    used = {}
    for number, place in ((before, 0), (after, len(around) + 1)):
        if 0 <= number < len(model.pieces):
            token = model.pieces[number]
            used[token] = {"id": token, "ids": [number], "tokens": [token]}
            around.insert(place, {"SpecialToken": {"id": token, "type_id": 0}})
    if not used:
        return None
    return {"type": "TemplateProcessing", "single": around, "pair": around, "special_tokens": used}


def _read_piece(data: bytes, pieces: Pieces) -> None:
    piece, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            piece = value.decode()
        elif number == 2 and isinstance(value, float):
            score = value
        elif number == 3 and isinstance(value, int):
            kind = value
    pieces.pieces.append(piece)
    pieces.scores.append(score)
    pieces.kinds.append(kind)


def _read_trainer(data: bytes, pieces: Pieces) -> None:
    names = {3: "model_type", 40: "unk_id", 41: "bos_id", 42: "eos_id"}
    for number, value in _fields(data):
        if isinstance(value, int):
            if number in names:
                setattr(pieces, names[number], value - (1 << 64) if value >> 63 else value)  # -1: there is none
            elif number == 35:
                pieces.byte_fallback = bool(value)
            elif number == 24:
                pieces.space_after = bool(value)


def _read_normalizer(data: bytes, pieces: Pieces) -> None:
    for number, value in _fields(data):
        if number == 2 and isinstance(value, bytes):
            pieces.charsmap = value
        elif number == 3:
            pieces.dummy_prefix = bool(value)
        elif number == 4:
            pieces.collapse_spaces = bool(value)
        elif number == 5:
            pieces.escape_spaces = bool(value)


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield the fields of a protobuf message: numbers, floats, and bytes for what has a length."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 5:
            yield number, float(struct.unpack_from("<f", data, at)[0])
            at += 4
        elif wire == 1:
            yield number, float(struct.unpack_from("<d", data, at)[0])
            at += 8
        elif wire == 2:
            length, at = _varint(data, at)
            if at + length > end:
                raise ValueError("a field beyond the end")
            yield number, data[at : at + length]
            at += length
        else:
            raise ValueError("an unknown kind of field")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number without end")
