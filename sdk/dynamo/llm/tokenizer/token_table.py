"""Token ids to text by table: the fast path of detokenising, one list index per token; and how such a table is built.

A piece is `str` where the token alone is whole characters, `bytes` where it needs its
neighbours. Two families of decoders are that simple:

- UTF-8 (`Utf8Stream`): all bytes are joined and decoded, an invalid sequence becomes one U+FFFD
  (ByteLevel decoders, and the built-in tokenizer);
- byte fallback (`FallbackStream`): only `<0xNN>` tokens are bytes, an invalid byte becomes one U+FFFD.

What is still incomplete at the end of a stream is dropped: half a character is no text.

`build_table` is called once per model, by `huggingface.py`. The table is compared with the tokenizer's own decoder on
every added token and on many random sequences, and given up at the first difference: then `DecodeStream` is used."""

from __future__ import annotations

import codecs
import random
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dynamo.llm.tokenizer.segment_cache import Layout

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Native

    from dynamo.llm.tokenizer.tokenizer import TextStream


Piece = str | bytes
REPLACEMENT: Final = "\ufffd"
_new_decoder: Final = codecs.getincrementaldecoder("utf-8")


def as_piece(data: bytes) -> Piece:
    """Return whole characters as text, anything else as it is."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def seed(prompt_ids: Sequence[int], pieces: list[Piece]) -> Sequence[int]:
    """Return the end of the prompt that may hold the first bytes of a character."""
    tail = prompt_ids[-4:]
    if tail and 0 <= tail[-1] < len(pieces) and (last := pieces[tail[-1]]) and last.__class__ is str:
        return ()  # nothing is open behind whole characters
    return tail if any(isinstance(pieces[i], bytes) for i in tail if 0 <= i < len(pieces)) else ()


class Utf8Stream:
    """Joins the bytes of all pieces."""

    __slots__ = ("_decoder", "_open", "_pieces")

    def __init__(self, pieces: list[Piece], prompt_ids: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._open = False
        self._decoder: codecs.IncrementalDecoder | None = None
        for token_id in seed(prompt_ids, pieces):
            self.step(token_id)

    def step(self, token_id: int) -> str:
        try:
            piece = self._pieces[token_id] if token_id >= 0 else ""
        except IndexError:
            return ""
        if piece.__class__ is str and not self._open:
            return piece
        return self._join(piece)

    def _join(self, piece: Piece) -> str:
        decoder = self._decoder
        if decoder is None:
            decoder = self._decoder = _new_decoder(errors="replace")
        if not piece:
            return ""
        text = decoder.decode(piece.encode() if isinstance(piece, str) else piece)
        self._open = bool(decoder.getstate()[0])
        return text


class FallbackStream:
    """Text pieces pass; runs of single bytes are put together."""

    __slots__ = ("_open", "_pieces")

    def __init__(self, pieces: list[Piece], prompt_ids: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._open = b""
        for token_id in seed(prompt_ids, pieces):
            self.step(token_id)

    def step(self, token_id: int) -> str:
        try:
            piece = self._pieces[token_id] if token_id >= 0 else ""
        except IndexError:
            return ""
        if piece.__class__ is str and not self._open:
            return piece
        return self._join(piece)

    def _join(self, piece: Piece) -> str:
        if not piece:
            return ""
        if isinstance(piece, str):
            text, self._open = REPLACEMENT * len(self._open) + piece, b""
            return text
        text, self._open = take_characters(self._open + piece)
        return text


def take_characters(data: bytes) -> tuple[str, bytes]:
    """Split `data` into its whole characters (one U+FFFD per invalid byte) and the incomplete rest."""
    text = ""
    while data:
        try:
            return text + data.decode(), b""
        except UnicodeDecodeError as error:
            text += data[: error.start].decode()
            data = data[error.start :]
            if error.reason == "unexpected end of data":
                return text, data
            text += REPLACEMENT
            data = data[1:]
    return text, data


class StrippedStream:
    """Drops one leading space of the whole text, for decoders that do so where there is no prompt."""

    __slots__ = ("_begun", "_inner")

    def __init__(self, inner: FallbackStream) -> None:
        self._inner = inner
        self._begun = False

    def step(self, token_id: int) -> str:
        text = self._inner.step(token_id)
        if self._begun or not text:
            return text
        self._begun = True
        return text.removeprefix(" ")


def byte_characters() -> dict[int, str]:
    """Return the character of each byte: printable ones stand for themselves, the others are moved above 255."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shown = set(plain)
    moved = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(moved)}


def written(data: bytes, characters: Mapping[int, str]) -> str:
    """Return the token that stands for `data`."""
    return "".join([characters[byte] for byte in data])


_SPACE: Final = "\u2581"
_REPLACE: Final = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
_STRIP: Final = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CHECKS: Final = 300


class PieceTable:
    """Pieces of one tokenizer, with special tokens shown and hidden."""

    def __init__(self, shown: list[Piece], special: set[int], *, fallback: bool, strips: bool) -> None:
        self._shown = shown
        self._hidden = list(shown)
        for token_id in special:
            self._hidden[token_id] = ""
        self._fallback = fallback
        self._strips = strips

    def stream(self, prompt_ids: Sequence[int], skip_special: bool) -> TextStream:
        """Start a sequence that follows `prompt_ids`."""
        pieces = self._hidden if skip_special else self._shown
        if not self._fallback:
            return Utf8Stream(pieces, prompt_ids)
        stream = FallbackStream(pieces, prompt_ids)
        return StrippedStream(stream) if self._strips and not prompt_ids else stream

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token stands for alone."""
        piece = self._shown[token_id] if 0 <= token_id < len(self._shown) else ""
        return piece.encode() if isinstance(piece, str) else piece

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """Return what tokens stand for one after the other."""
        if not ids or min(ids) >= 0:
            try:  # mostly all of them are whole characters
                return "".join(map(self._shown.__getitem__, ids)).encode()  # type: ignore[arg-type]
            except (TypeError, IndexError):
                pass
        return b"".join(map(self.token_bytes, ids))


def build_table(native: Native, layout: Layout, tokens: list[str | None]) -> PieceTable | None:
    """Return the checked table, None where the decoder is of another kind."""
    kind = decoder_kind(layout.decoder)
    if kind is None:
        return None
    special = {token.id for token in layout.added_tokens if token.special}
    make = _byte_level_piece if kind == "byte-level" else _fallback_piece
    byte_of = _byte_alphabet()
    pieces = ["" if token is None else make(token, byte_of) for token in tokens]
    table = PieceTable(pieces, special, fallback=kind != "byte-level", strips=kind == "fallback-strip")
    return table if _agrees(table, native, layout, tokens) else None


def decoder_kind(decoder: Any) -> str | None:
    """Name the family of a decoder as it stands in the file."""
    if not isinstance(decoder, dict):
        return None
    if decoder.get("type") == "ByteLevel":
        return "byte-level"
    if decoder.get("type") != "Sequence":
        return None
    steps = decoder.get("decoders")
    if not isinstance(steps, list):
        return None
    if [step.get("type") for step in steps] == ["ByteLevel"]:
        return "byte-level"
    if steps[:1] != [_REPLACE] or [step.get("type") for step in steps[1:3]] != ["ByteFallback", "Fuse"]:
        return None
    return {0: "fallback", 1: "fallback-strip" if steps[3:] == [_STRIP] else None}.get(len(steps) - 3)


def _byte_alphabet() -> dict[int, str]:
    """Map the printable stand-ins of byte-level tokens to the bytes (as characters), all else out of reach."""
    characters = byte_characters()
    hidden = [value for value in range(256) if characters[value] != chr(value)]
    return dict.fromkeys(hidden, "\uffff") | {ord(shown): chr(value) for value, shown in characters.items()}


def _byte_level_piece(token: str, byte_of: dict[int, str]) -> Piece:
    try:
        return as_piece(token.translate(byte_of).encode("latin-1"))
    except UnicodeEncodeError:  # an added token outside the alphabet stands for itself
        return token


def _fallback_piece(token: str, byte_of: dict[int, str]) -> Piece:
    match = _BYTE.fullmatch(token)
    return bytes([int(match.group(1), 16)]) if match else token.replace(_SPACE, " ")


def _agrees(table: PieceTable, native: Native, layout: Layout, tokens: list[str | None]) -> bool:
    chance = random.Random(7)
    known = [token_id for token_id, token in enumerate(tokens) if token is not None]
    samples = [[token.id] for token in layout.added_tokens[:64]]
    samples += [chance.choices(known, k=chance.randint(1, 8)) for _ in range(_CHECKS)]
    return all(_same(table, native, ids, skip) for ids in samples for skip in (False, True))


def _same(table: PieceTable, native: Native, ids: list[int], skip: bool) -> bool:
    expected = native.decode(ids, skip_special_tokens=skip)
    if "\ufffd" in expected:  # invalid sequences have no right text
        return True
    stream = table.stream((), skip)
    return "".join(map(stream.step, ids)) == expected
