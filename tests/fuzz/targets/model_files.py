"""Target `files`: GGUF, tokenizer.json, SentencePiece, tiktoken and what lies beside them, as a rogue model has them.

They go through the loaders that a worker opens a model with, and a frontend the files of a worker's card.
"""

from __future__ import annotations

import base64
import copy
import functools
import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.fuzz.targets.rawhttp import mutated
from tests.llm.conftest import fallback_data, train_byte_level
from tests.llm.models.gguf_writer import byte_level_fields, gguf_bytes, sentencepiece_fields

from dynamo.llm import FileCache, Preprocessor, open_model

TEXTS: Final = ("Hello, world! 123 é 漢字 🙂\n\n", "a" * 20_000, " " * 20_000, "\u0301" * 5_000, "<|im_start|>" * 500)
Maker = Callable[[], bytes]


@functools.cache
def byte_level() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(train_byte_level().to_str())
    return document


@functools.cache
def with_fallback() -> dict[str, Any]:
    return fallback_data(strip=True)


def ranks(tokens: list[bytes]) -> bytes:
    """A tiktoken file."""
    return b"".join(base64.b64encode(token) + b" %d\n" % number for number, token in enumerate(tokens))


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    data = b""
    while number > 127:
        data, number = data + bytes([number & 127 | 128]), number >> 7
    return data + bytes([number])


def pieces(tokens: list[bytes], kind: int = 2, charsmap: bytes = b"") -> bytes:
    """A SentencePiece model: its pieces, its trainer's kind, its normalizer."""
    data = b""
    for number, token in enumerate(tokens):
        data += _field(
            1, _field(1, token) + b"\x15" + struct.pack("<f", -float(number)) + bytes([0x18, 2 if number == 0 else 1])
        )
    return data + _field(2, bytes([0x18, kind])) + (_field(3, _field(2, charsmap)) if charsmap else b"")


def opened(name: str, data: bytes, **beside: bytes) -> None:
    """Open it as a worker does, then as a frontend does, and use it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-files-") as folder:
        root = Path(folder) / "model"
        root.mkdir()
        path = root / name
        path.write_bytes(data)
        if not name.endswith(".gguf"):
            (root / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 4096}')
        for more, content in beside.items():
            (root / more.replace("__", ".")).write_bytes(content)
        model = open_model(
            path if name.endswith(".gguf") else root, cache=FileCache(Path(folder) / "cache"), weights="none"
        )
        document = Preprocessor.load(model.card, model.files)
        for text in TEXTS:
            ids = document.tokenizer.encode(text, True)
            document.tokenizer.decode(ids[:2000])
        document.chat_prompt({"messages": [{"role": "user", "content": "hi"}]})


def _gguf(**fields: Any) -> Maker:
    return lambda: gguf_bytes({**sentencepiece_fields(), **fields})


def _bpe_gguf(**fields: Any) -> Maker:
    return lambda: gguf_bytes({**byte_level_fields(byte_level(), "llama-bpe"), **fields})


def _tokenizer(change: Callable[[dict[str, Any]], None], of: Callable[[], dict[str, Any]] = byte_level) -> Maker:
    def make() -> bytes:
        data = json.loads(json.dumps(of()))
        change(data)
        return json.dumps(data).encode()

    return make


def _nested_array(depth: int) -> Maker:
    """A GGUF whose only field is an array in an array in an array."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9)
    return lambda: head + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 4, 0)


def _set(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        into: Any = data
        for name in path[:-1]:
            into = into[name]
        into[path[-1]] = to

    return change


def _many(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def _without(token: str) -> list[str]:
    """The vocabulary, with something else in the place of a token."""
    tokens = byte_level_fields(byte_level(), "llama-bpe")["tokenizer.ggml.tokens"]
    return [f"<without {token}>" if known == token else known for known in tokens]


def _merges() -> list[str]:
    return list(byte_level_fields(byte_level(), "llama-bpe")["tokenizer.ggml.merges"])


BYTES: Final = [bytes([byte]) for byte in range(256)]
_CODE: Final = b'pat_str = r"""a"""\n'
KNOWN: Final[dict[str, tuple[str, Maker, dict[str, bytes]]]] = {
    "gguf: merges that are numbers": ("a.gguf", _bpe_gguf(**{"tokenizer.ggml.merges": [1, 2, 3]}), {}),
    "gguf: arrays 2,000 deep": ("a.gguf", _nested_array(2_000), {}),
    "gguf: arrays 200,000 deep": ("a.gguf", _nested_array(200_000), {}),
    "gguf: a token of 0.4 MB": ("a.gguf", lambda: gguf_bytes(_long_token(400_000)), {}),
    "gguf: a token of 1,000": ("a.gguf", lambda: gguf_bytes(_long_token(1_000)), {}),
    "gguf: merges of one long word": ("a.gguf", _bpe_gguf(**{"tokenizer.ggml.merges": ["a" * 200_000 + " b"] * 3}), {}),
    "gguf: types too few": ("a.gguf", _gguf(**{"tokenizer.ggml.token_type": [1]}), {}),
    "gguf: a template that isn't one": ("a.gguf", _gguf(**{"tokenizer.chat_template": "{% for"}), {}),
    "gguf: ids out of range": (
        "a.gguf",
        _gguf(**{"tokenizer.ggml.bos_token_id": 2**31, "tokenizer.ggml.eos_token_id": 2**32 - 1}),
        {},
    ),
    "tiktoken: a token of 0.4 MB": ("a.tiktoken", lambda: ranks([*BYTES, b"a" * 400_000]), {"tokenization__py": _CODE}),
    "tiktoken: all doublings": (
        "a.tiktoken",
        lambda: ranks([*BYTES, *(b"a" * 2**n for n in range(1, 18))]),
        {"tokenization__py": _CODE},
    ),
    "tiktoken: 10 MB of code": (
        "a.tiktoken",
        lambda: ranks(BYTES),
        {"tokenization__py": b"a = [" + b"1," * 5_000_000 + b"]\n" + _CODE},
    ),
    "tiktoken: deep code": (
        "a.tiktoken",
        lambda: ranks(BYTES),
        {"tokenization__py": b"a = " + b"(" * 5_000 + b")" * 5_000 + b"\n"},
    ),
    "tiktoken: a slow pattern": (
        "a.tiktoken",
        lambda: ranks(BYTES),
        {"tokenization__py": b'pat_str = r"""(a+)+(a+)+$"""\n'},
    ),
    "spm: a broken charsmap": ("tokenizer.model", lambda: pieces([b"<unk>", *_many("a", 50)], 1, b"\xff" * 40), {}),
    "spm: a short charsmap": (
        "tokenizer.model",
        lambda: pieces([b"<unk>", *_many("a", 50)], 1, b"\x04\0\0\0\xff\xff"),
        {},
    ),
    "spm: a piece of 0.4 MB": ("tokenizer.model", lambda: pieces([b"<unk>", b"a" * 400_000, *BYTES], 2), {}),
    "spm: no pieces": ("tokenizer.model", lambda: pieces([], 2), {}),
    "gguf: a byte that no token stands for": (
        "a.gguf",
        _bpe_gguf(**{"tokenizer.ggml.tokens": _without("×"), "tokenizer.ggml.merges": _merges()[:1]}),
        {},
    ),
    "json: a prefix that ends within a character": (
        "tokenizer.json",
        _tokenizer(_set("model", "continuing_subword_prefix", to="("), with_fallback),
        {},
    ),
    "json: a prefix longer than all merges": (
        "tokenizer.json",
        _tokenizer(_set("model", "continuing_subword_prefix", to="#" * 60)),
        {},
    ),
    "json: two models": (
        "tokenizer.json",
        lambda: b'{"model": {"type": "BPE", "vocab": {}, "merges": []},' + json.dumps(byte_level()).encode()[1:],
        {},
    ),
    "json: nested": ("tokenizer.json", lambda: b"[" * 100_000 + b"]" * 100_000, {}),
    "json: a normalizer of doublings": (
        "tokenizer.json",
        _tokenizer(
            _set(
                "normalizer",
                to={
                    "type": "Sequence",
                    "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}] * 5,
                },
            )
        ),
        {},
    ),
    "json: an expensive regex": (
        "tokenizer.json",
        _tokenizer(
            _set(
                "pre_tokenizer",
                to={"type": "Split", "pattern": {"Regex": "(a|a)*b"}, "behavior": "Isolated", "invert": False},
            )
        ),
        {},
    ),
    "json: an empty replaced text": (
        "tokenizer.json",
        _tokenizer(_set("normalizer", to={"type": "Replace", "pattern": {"Regex": ""}, "content": "aa"})),
        {},
    ),
    "json: 100,000 added tokens": (
        "tokenizer.json",
        _tokenizer(
            _set(
                "added_tokens",
                to=[
                    {
                        "id": 600 + n,
                        "content": f"<{n}>",
                        "single_word": False,
                        "lstrip": True,
                        "rstrip": True,
                        "normalized": False,
                        "special": True,
                    }
                    for n in range(100_000)
                ],
            )
        ),
        {},
    ),
    "json: a vocabulary id of 2**32": ("tokenizer.json", _tokenizer(_set("model", "vocab", "a", to=2**32 - 1)), {}),
    "json: an added id of 2**32": ("tokenizer.json", _tokenizer(_set("added_tokens", 0, "id", to=2**32 - 1)), {}),
    "json: a precompiled charsmap": (
        "tokenizer.json",
        _tokenizer(
            _set(
                "normalizer",
                to={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff" * 40).decode()},
            )
        ),
        {},
    ),
    "json: beside it a deep configuration": (
        "tokenizer.json",
        lambda: json.dumps(byte_level()).encode(),
        {"tokenizer_config__json": b'{"a":' * 50_000 + b"1" + b"}" * 50_000},
    ),
    "json: a configuration of other types": (
        "tokenizer.json",
        lambda: json.dumps(byte_level()).encode(),
        {
            "tokenizer_config__json": b'{"bos_token": [1], "chat_template": 7, "model_max_length": "x", '
            b'"added_tokens_decoder": 3}'
        },
    ),
    "json: a maximum of 1e400": (
        "tokenizer.json",
        lambda: json.dumps(byte_level()).encode(),
        {"tokenizer_config__json": b'{"model_max_length": 1e400}', "config__json": b'{"max_position_embeddings": NaN}'},
    ),
}


def _long_token(length: int) -> dict[str, Any]:
    fields = sentencepiece_fields()
    fields["tokenizer.ggml.tokens"][5] = "\u2581" + "th" * (length // 2)
    return fields


def corpus() -> dict[str, Callable[[], object]]:
    """Files that cost something once, or are likely to."""
    return {name: functools.partial(_opened, *of) for name, of in KNOWN.items()}


def _opened(name: str, make: Maker, beside: dict[str, bytes]) -> None:
    opened(name, make(), **beside)


_SEEDS: Final[dict[str, tuple[str, Maker]]] = {
    "gguf": ("a.gguf", _gguf()),
    "gguf-bpe": ("a.gguf", _bpe_gguf()),
    "tiktoken": ("a.tiktoken", lambda: ranks([*BYTES, *_many("th", 300)])),
    "spm-bpe": ("tokenizer.model", lambda: pieces([b"<unk>", *_many("a", 100), *BYTES[32:127]], 2)),
    "spm-unigram": ("tokenizer.model", lambda: pieces([b"<unk>", *_many("a", 100), *BYTES[32:127]], 1)),
    "json": ("tokenizer.json", lambda: json.dumps(byte_level()).encode()),
    "json-fallback": ("tokenizer.json", lambda: json.dumps(with_fallback()).encode()),
}
_VALUES: Final[tuple[Any, ...]] = (
    None,
    -1,
    0,
    2**31,
    2**64,
    1e308,
    "",
    "a",
    "a" * 100_000,
    [],
    {},
    [[]],
    [None] * 1000,
    True,
    {"type": "Sequence"},
    "(",
    "(a+)+$",
    "\ud800",
    ["a"] * 10_000,
    {"type": "ByteLevel"},
    {"Regex": "("},
    {"String": ""},
)


def case(random: Random) -> tuple[str, Callable[[], object]]:
    """A file with some bytes, or, where it is JSON, some values changed."""
    kind = random.choice([*_SEEDS])
    name, make = _SEEDS[kind]
    data = make()
    if kind.startswith("json") and random.random() < 0.8:
        tree = json.loads(data)
        where = _changed(random, tree)
        data = json.dumps(tree).encode()
        return f"{kind} {where}", functools.partial(opened, name, data)
    times = random.choice((1, 1, 3, 10, 100))
    head = data if random.random() < 0.5 else data[:400]
    changed = mutated(random, head, times) + data[len(head) :]
    return f"{kind} with {times} changes", functools.partial(opened, name, changed)


def _changed(random: Random, tree: Any) -> str:
    """Put something else at some place of it."""
    path: list[Any] = []
    while isinstance(tree, (dict, list)) and tree:
        key: Any = random.choice([*tree]) if isinstance(tree, dict) else random.randrange(len(tree))
        path.append(key)
        if not isinstance(tree[key], (dict, list)) or not tree[key] or random.random() < 0.35:
            tree[key] = copy.deepcopy(random.choice(_VALUES))
            break
        tree = tree[key]
    return ".".join(map(str, path))[:60]
