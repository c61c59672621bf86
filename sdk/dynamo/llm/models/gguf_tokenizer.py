"""The tokenizer in a GGUF header as a `tokenizer.json`: pure, from header fields to JSON data.

Two kinds cover nearly all models that make text: `llama` (SentencePiece BPE with byte
fallback, whose merges are rebuilt from the vocabulary's scores) and `gpt2` (byte-level BPE,
which brings its merges and names its pre-tokenizer). `bert` (WordPiece) is that of models
for vectors. Others are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dynamo.llm.models.gguf_header import Header
from dynamo.llm.models.gguf_pretokenizers import pre_tokenizer
from dynamo.runtime.errors import InvalidArgument

CONVERSION: Final = 1
"""Goes up when the same header gives another tokenizer: caches are keyed by it."""

LONGEST_TOKEN: Final = 1024
"""Characters; looking for all ways to make a token of two others takes the square of its length."""
MOST_TOKENS: Final = 1 << 22
MOST_TEXT: Final = 1 << 24
"""Characters of all tokens together; large vocabularies have 2 million."""

_BERT: Final = "bert"
_NORMAL: Final = 1
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_SPACE: Final = "\u2581"
_CONTINUES: Final = "##"


def build_tokenizer(header: Header) -> dict[str, Any]:
    """Return the content of a `tokenizer.json`."""
    kind = header.text("tokenizer.ggml.model")
    if kind == "llama":
        return _assemble(header, _sentencepiece(header))
    if kind == "gpt2":
        return _assemble(header, _byte_level(header))
    if kind == _BERT:
        return _assemble(header, _word_piece(header))
    if kind is None:
        raise InvalidArgument("the GGUF file has no tokenizer (tokenizer.ggml.model): it is no language model's file")
    raise InvalidArgument(
        f"the GGUF file's tokenizer is of kind {kind[:100]!r}; only 'llama', 'gpt2' and 'bert' are read: "
        "use the model's folder with a tokenizer.json instead"
    )


def token_list(header: Header) -> list[str]:
    """Return the vocabulary."""
    tokens = header.fields.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise InvalidArgument("the GGUF file has no vocabulary (tokenizer.ggml.tokens)")
    if len(tokens) > MOST_TOKENS:
        raise InvalidArgument(f"the GGUF file has {len(tokens)} tokens: at most {MOST_TOKENS} are read")
    return tokens


def token_types(header: Header) -> list[int]:
    """Return the kind of each token; all are normal where the file doesn't say."""
    tokens = token_list(header)
    types = header.fields.get("tokenizer.ggml.token_type")
    fits = isinstance(types, list) and len(types) == len(tokens) and all(type(kind) is int for kind in types)
    return types if isinstance(types, list) and fits else [_NORMAL] * len(tokens)


def adds_bos(header: Header) -> bool:
    """Tell whether a text begins with BOS: as the file says, else as llama.cpp does for its kind."""
    stated = header.flag("tokenizer.ggml.add_bos_token")
    if stated is not None:
        return stated
    return header.text("tokenizer.ggml.model") in ("llama", _BERT) or _traits(header)[1]


def begin_and_end(header: Header) -> tuple[int | None, int | None]:
    """Return what stands before and behind a text where the file adds them: BOS and EOS, of BERT's [CLS] and [SEP]."""
    tokens = token_list(header)
    if header.text("tokenizer.ggml.model") != _BERT:
        return _named(header, tokens, ("bos",)), _named(header, tokens, ("eos",))
    # As llama.cpp writes it; with one p, too, so that a file whose writer knows better is read.
    last = ("seperator", "separator", "eos")
    return _named(header, tokens, ("cls", "bos"), "[CLS]"), _named(header, tokens, last, "[SEP]")


def _adds_end(header: Header) -> bool:
    if header.text("tokenizer.ggml.model") == _BERT:
        return header.flag("tokenizer.ggml.add_sep_token") is not False
    return header.flag("tokenizer.ggml.add_eos_token") is True


def _assemble(header: Header, parts: dict[str, Any]) -> dict[str, Any]:
    tokens, types = token_list(header), token_types(header)
    added = [
        {
            "id": number, "content": tokens[number], "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": types[number] == _CONTROL,
        }
        for number in range(len(tokens))
        if types[number] in (_CONTROL, _USER_DEFINED) and tokens[number]
    ]  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": parts["normalizer"],
        "pre_tokenizer": parts["pre_tokenizer"],
        "post_processor": _post_processor(header, tokens),
        "decoder": parts["decoder"],
        "model": parts["model"],
    }  # fmt: skip


def _bpe(**parts: Any) -> dict[str, Any]:
    unsaid = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    return {"type": "BPE", **unsaid, **parts}


def _word_piece(header: Header) -> dict[str, Any]:
    """Return BERT's vocabulary: pieces that begin a word have a mark in the file, the others in a `tokenizer.json`."""
    tokens, types = token_list(header), token_types(header)
    names = [_piece(token, kind) for token, kind in zip(tokens, types, strict=True)]
    unknown = _named(header, tokens, ("unknown",), "[UNK]")
    if unknown is None:
        raise InvalidArgument("the GGUF file's tokenizer has no token for what it doesn't know ([UNK])")
    # The file doesn't say whether capitals count: where no piece has one, they don't, nor do accents.
    small = not any(kind == _NORMAL and name != name.lower() for name, kind in zip(names, types, strict=True))
    return {
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": small,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": _CONTINUES, "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": tokens[unknown], "continuing_subword_prefix": _CONTINUES,
            "max_input_chars_per_word": 100, "vocab": _vocabulary(names),
        },
    }  # fmt: skip


def _piece(token: str, kind: int) -> str:
    if kind == _CONTROL:
        return token
    return token.removeprefix(_SPACE) if token.startswith(_SPACE) else _CONTINUES + token


def _named(header: Header, tokens: list[str], names: tuple[str, ...], content: str = "") -> int | None:
    """Return the token that the file names by one of these, or that is written so."""
    for name in names:
        number = header.number(f"tokenizer.ggml.{name}_token_id")
        if number is not None and 0 <= number < len(tokens):
            return number
    return tokens.index(content) if content and content in tokens else None


def _sentencepiece(header: Header) -> dict[str, Any]:
    tokens, types = token_list(header), token_types(header)
    scores = header.fields.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(type(score) is float for score in scores):
        raise InvalidArgument("the GGUF file's tokenizer has no score per token (tokenizer.ggml.scores)")
    prefix = header.flag("tokenizer.ggml.add_space_prefix") is not False
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    normalizers = [{"type": "Prepend", "prepend": _SPACE}, replace] if prefix else [replace]
    unknown = header.number("tokenizer.ggml.unknown_token_id")
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": _bpe(
            unk_token=tokens[unknown] if unknown is not None and 0 <= unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
            ignore_merges=False,
            vocab=_vocabulary(tokens),
            merges=list(rebuild_merges(tokens, types, scores)),
        ),
    }


def rebuild_merges(tokens: list[str], types: list[int], scores: list[float]) -> Iterator[tuple[str, str]]:
    """Return every way to make a normal token of two others, best score first."""
    if (longest := max(map(len, tokens))) > LONGEST_TOKEN:
        raise InvalidArgument(f"the tokenizer has a token of {longest} characters: at most {LONGEST_TOKEN} are read")
    if sum(map(len, tokens)) > MOST_TEXT:
        raise InvalidArgument(f"the tokenizer's tokens have more than {MOST_TEXT} characters together")
    normal = {token for token, kind in zip(tokens, types, strict=True) if kind == _NORMAL}
    order = sorted((n for n, kind in enumerate(types) if kind == _NORMAL), key=lambda n: -scores[n])
    for number in order:
        token = tokens[number]
        for cut in range(1, len(token)):
            left = token[:cut]
            if left in normal:
                right = token[cut:]
                if right in normal:
                    yield left, right


def _byte_level(header: Header) -> dict[str, Any]:
    tokens = token_list(header)
    merges = header.fields.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise InvalidArgument("the GGUF file's tokenizer has no merges (tokenizer.ggml.merges)")
    pairs = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else () for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise InvalidArgument("the GGUF file's tokenizer has a malformed merge (tokenizer.ggml.merges)")
    normalizer, splitter = pre_tokenizer(header.text("tokenizer.ggml.pre"))
    return {
        "normalizer": normalizer,
        "pre_tokenizer": splitter,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": _bpe(
            unk_token=None,
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=_traits(header)[0],
            vocab=_vocabulary(tokens),
            merges=pairs,
        ),
    }


def _traits(header: Header) -> tuple[bool, bool]:
    """Return `(ignore_merges, adds BOS)` of the pre-tokenizers that llama.cpp treats specially."""
    whole = header.text("tokenizer.ggml.pre") in ("llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2", "tekken")
    return whole, whole


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    vocabulary: dict[str, int] = {}
    for number, token in enumerate(tokens):
        vocabulary.setdefault(token, number)
    return vocabulary


def _post_processor(header: Header, tokens: list[str]) -> dict[str, Any] | None:
    around: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    used: dict[str, Any] = {}
    first, last = begin_and_end(header)
    if adds_bos(header) and first is not None:
        around.insert(0, _special(tokens[first], first, used))
    if _adds_end(header) and last is not None:
        around.append(_special(tokens[last], last, used))
    if not used:
        return None
    return {"type": "TemplateProcessing", "single": around, "pair": around, "special_tokens": used}


def _special(token: str, number: int, used: dict[str, Any]) -> dict[str, Any]:
    used[token] = {"id": token, "ids": [number], "tokens": [token]}
    return {"SpecialToken": {"id": token, "type_id": 0}}
