"""Model files that a rogue worker, hub or user might give: each is refused in a sentence, or read in bounded time.

Plain functions without arguments that return a file's bytes, by the kind of file, each with a name.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any, Final

from tests.llm.models.gguf_writer import gguf_bytes

_NAMES: Final = ["<unk>", "<s>", "</s>", "a", "b", "ab"]
_LLAMA: Final[dict[str, Any]] = {
    "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": _NAMES, "tokenizer.ggml.scores": [0.0] * 6,
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1],
}  # fmt: skip
_GPT2: Final[dict[str, Any]] = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.merges": ["a b"],
}  # fmt: skip


def _gguf(body: bytes, pairs: int = 1, tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + body


def _key(name: str) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode()


def _nested(depth: int) -> bytes:
    return _key("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 4, 0)


GGUF: Final[dict[str, Callable[[], bytes]]] = {
    "merges that are numbers": lambda: gguf_bytes({**_GPT2, "tokenizer.ggml.merges": [1, 2]}),
    "merges without a second part": lambda: gguf_bytes({**_GPT2, "tokenizer.ggml.merges": ["ab"]}),
    "an unknown way to cut words": lambda: gguf_bytes({**_GPT2, "tokenizer.ggml.pre": "x" * 100_000}),
    "an unknown kind": lambda: gguf_bytes({**_GPT2, "tokenizer.ggml.model": "x" * 100_000}),
    "tokens that are numbers": lambda: gguf_bytes({**_GPT2, "tokenizer.ggml.tokens": [1, 2, 3]}),
    "scores that are none": lambda: gguf_bytes({**_LLAMA, "tokenizer.ggml.scores": [1] * 6}),
    "a long token": lambda: gguf_bytes({**_LLAMA, "tokenizer.ggml.tokens": [*_NAMES[:5], "a" * 400_000]}),
    "arrays in arrays": lambda: _gguf(_nested(2000)),
    "arrays in arrays, deeper": lambda: _gguf(_nested(200_000)),
    "a wide array of arrays": lambda: _gguf(_key("a") + struct.pack("<IIQ", 9, 9, 1 << 24)),
    "an endless array": lambda: _gguf(_key("a") + struct.pack("<IIQ", 9, 4, (1 << 64) - 1)),
    "an endless array of strings": lambda: _gguf(_key("a") + struct.pack("<IIQ", 9, 8, (1 << 64) - 1)),
    "an endless string": lambda: _gguf(_key("a") + struct.pack("<IQ", 8, (1 << 64) - 1)),
    "an endless name": lambda: _gguf(struct.pack("<Q", (1 << 63) - 1)),
    "endless pairs": lambda: _gguf(b"", pairs=(1 << 64) - 1),
    "many pairs": lambda: _gguf(b"", pairs=1 << 24),
    "endless tensors": lambda: _gguf(b"", pairs=0, tensors=(1 << 64) - 1),
    "a tensor of many dimensions": lambda: _gguf(_key("t") + struct.pack("<I", 1 << 31), pairs=0, tensors=1),
    "a tensor beyond the end": lambda: _gguf(
        _key("t") + struct.pack("<IQQIQ", 2, (1 << 64) - 1, (1 << 64) - 1, 0, (1 << 64) - 1), pairs=0, tensors=1
    ),
    "an unknown type": lambda: _gguf(_key("a") + struct.pack("<I", 99)),
    "nothing behind its letters": lambda: b"GGUF",
    "another version": lambda: b"GGUF" + struct.pack("<IQQ", 1 << 31, 0, 0),
}


def _ranks(*tokens: bytes) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


TIKTOKEN: Final[dict[str, Callable[[], bytes]]] = {
    "a long token": lambda: _ranks(b"a", b"a" * 400_000),
    "long tokens": lambda: _ranks(b"a", *(b"a" * 1000 + b"%d" % n for n in range(20_000))),
    "a huge rank": lambda: b"YQ== 0\nYg== 99999999999999999999\n",
    "a rank of many digits": lambda: b"YQ== 0\nYg== " + b"9" * 100_000 + b"\n",
    "a line without end": lambda: b"YQ== 0\n" + b"YQ" * 200_000,
    "no token": lambda: b"YQ== 0\n 1\n= 2\n",
}


def _varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _piece(text: str) -> bytes:
    return _field(1, _field(1, text.encode()) + b"\x15" + struct.pack("<f", 1.0))


SENTENCEPIECE: Final[dict[str, Callable[[], bytes]]] = {
    "a long piece": lambda: _piece("<unk>") + _piece("a" * 400_000) + _field(2, b"\x18\x02"),
    "a field beyond the end": lambda: b"\x0a" + _varint((1 << 63) - 1),
    "a number without end": lambda: b"\xff" * 100_000,
    "groups, which are no longer written": lambda: b"\x0b" * 100_000,
    "no pieces": lambda: _field(2, b"\x18\x02") * 1000,
    "an unknown piece far away": lambda: _piece("a") + _field(2, b"\xc0\x02" + _varint(1 << 62)),
    "half a character": lambda: _field(1, _field(1, b"\xff\xfe")),
}


def tokenizer_json(**parts: Any) -> bytes:
    """A small tokenizer file with these parts instead of its own."""
    plain: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
    }  # fmt: skip
    return json.dumps({**plain, **parts}).encode()


def _split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def _charsmap(data: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def _within(depth: int) -> dict[str, Any]:
    step: dict[str, Any] = {"type": "NFC"}
    for _ in range(depth):
        step = _sequence(step)
    return step


def _added(number: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, "special": True, **flags}


_REPLACE: Final = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
_BPE: Final = {"type": "BPE", "merges": [], "vocab": {"a": 0}}

_MERGING: Final = {"type": "BPE", "vocab": {"a": 0, "é": 1, "aé": 2, "a\u20ac": 3, "\u20ac": 4}}


def _prefixed(prefix: str, *merges: Any) -> Callable[[], bytes]:
    """A file whose merges lose as many bytes as a prefix has."""
    return lambda: tokenizer_json(model={**_MERGING, "merges": [*merges], "continuing_subword_prefix": prefix})


_LOST: Final = {**_MERGING, "merges": [["a", "é"]], "continuing_subword_prefix": "("}


TOKENIZER_JSON: Final[dict[str, Callable[[], bytes]]] = {
    "a table of characters that is larger than itself": lambda: tokenizer_json(normalizer=_charsmap(b"\xff" * 68)),
    "a broken table of characters": lambda: tokenizer_json(normalizer=_charsmap(b"\x08\0\0\0" + b"\xff" * 64)),
    "a table of characters that makes them long": lambda: tokenizer_json(
        normalizer=_charsmap(b"\x04\0\0\0" + b"\0" * 4 + b"a" * 100_000)
    ),
    "a text doubled 40 times": lambda: tokenizer_json(normalizer=_sequence(*[_REPLACE] * 40)),
    "a long replacement": lambda: tokenizer_json(normalizer={**_REPLACE, "content": "a" * 100_000}),
    "a long beginning": lambda: tokenizer_json(normalizer={"type": "Prepend", "prepend": "a" * 100_000}),
    "steps in steps": lambda: tokenizer_json(normalizer=_within(100)),
    "many steps": lambda: tokenizer_json(normalizer=_sequence(*[{"type": "NFC"}] * 100_000)),
    "pieces of no length": lambda: tokenizer_json(pre_tokenizer={"type": "FixedLength", "length": 0}),
    "repetition in repetition": lambda: tokenizer_json(pre_tokenizer=_split("(a+)+$b")),
    "repetition in a repeated class": lambda: tokenizer_json(pre_tokenizer=_split(r"(?:[a-z\[]+\s?)+$")),
    "a repeated choice": lambda: tokenizer_json(pre_tokenizer=_split("(?:a|a|aa)*c")),
    "many options": lambda: tokenizer_json(pre_tokenizer=_split("(?:a?){100}b")),
    "counts of counts": lambda: tokenizer_json(pre_tokenizer=_split("(((a{1,1000}){1,1000}){1,1000})")),
    "small counts of small counts": lambda: tokenizer_json(pre_tokenizer=_split("(" * 30 + "a?" + "){0,3}" * 30)),
    "groups in groups": lambda: tokenizer_json(pre_tokenizer=_split("(" * 20_000 + "a" + ")" * 20_000)),
    "an expression that is none": lambda: tokenizer_json(pre_tokenizer=_split("[")),
    "an expression in a replacement": lambda: tokenizer_json(
        normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+$b"}, "content": ""}
    ),
    "many parts around a text": lambda: tokenizer_json(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 100_000,
            "pair": [],
            "special_tokens": {},
        }
    ),
    "words of any length": lambda: tokenizer_json(
        model={
            "type": "WordPiece",
            "vocab": {"[UNK]": 0, "a": 1},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 1 << 40,
        }
    ),
    "a long prefix of pieces": lambda: tokenizer_json(model={**_BPE, "continuing_subword_prefix": "a" * 100_000}),
    "a prefix that ends within a character": _prefixed("(", ["a", "é"]),
    "a prefix that ends within a longer character": _prefixed("((", ["a", "\u20ac"]),
    "a prefix that ends within a character, merges as texts": _prefixed("(", "a é"),
    "a prefix that is longer than what it begins": _prefixed("###", ["a", "é"]),
    "a prefix of a merge with nothing": _prefixed("#", ["a", ""]),
    "a long token": lambda: tokenizer_json(model={**_BPE, "vocab": {"a" * 100_000: 0}}),
    "a huge number": lambda: tokenizer_json(model={**_BPE, "vocab": {"a": (1 << 32) - 1}}),
    "a negative number": lambda: tokenizer_json(model={**_BPE, "vocab": {"a": -1}}),
    "a number larger than any": lambda: tokenizer_json(model={**_BPE, "vocab": {"a": 1 << 64}}),
    "a merge of what isn't there": lambda: tokenizer_json(model={**_BPE, "merges": [["x", "y"]]}),
    "merges that are numbers": lambda: tokenizer_json(model={**_BPE, "merges": [1, 2]}),
    "many added tokens": lambda: tokenizer_json(added_tokens=[_added(n + 2, f"<{n}>") for n in range(70_000)]),
    "a long added token": lambda: tokenizer_json(added_tokens=[_added(2, "a" * 100_000)]),
    "an added token with a huge number": lambda: tokenizer_json(added_tokens=[_added((1 << 32) - 1, "x")]),
    "an unknown model": lambda: tokenizer_json(model={"type": "None", "vocab": {}}),
    "values in values": lambda: b'{"model":{"vocab":{}},"normalizer":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "two models": lambda: b'{"model":' + json.dumps(_LOST).encode() + b"," + tokenizer_json()[1:],
    "two normalizers": lambda: (
        b'{"normaliz\\u0065r":' + json.dumps(_within(100)).encode() + b"," + tokenizer_json()[1:]
    ),
    "two prefixes": lambda: tokenizer_json(model={**_LOST, "a": 1}).replace(
        b'"a": 1', b'"continuing_subword_prefix": null'
    ),
    "half a file": lambda: tokenizer_json()[:100],
    "no object": lambda: b"[]",
    "nothing": lambda: b"",
}


def long_code() -> str:
    """Python code that takes long to parse, and has its expression at the end."""
    return "a = [" + "'a', " * 100_000 + "]\npat_str = r'\\p{L}'"


def many_added_settings(count: int = 100_000) -> dict[str, Any]:
    """A tokenizer's configuration that adds tokens without end."""
    return {"added_tokens_decoder": {str(number): {"content": f"<{number}>"} for number in range(count)}}
