"""A tiktoken vocabulary (`*.tiktoken`, `tiktoken.model`) as a `tokenizer.json`: pure, from texts to JSON data.

The file has one `base64 rank` per line and no more. The expression that cuts words stands in the Python code that
comes with the model: it is read there as text (nothing is executed), or known by the tokenizer's class. Special
tokens stand in `tokenizer_config.json`, or are known likewise.
"""

from __future__ import annotations

import ast
import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dynamo.llm.models.added_tokens import stated
from dynamo.llm.models.gguf_pretokenizers import KIMI, LLAMA3, QWEN2
from dynamo.llm.models.gguf_tokenizer import MOST_TEXT
from dynamo.llm.tokenizer.token_table import byte_characters, written
from dynamo.runtime.errors import InvalidArgument

_LINE: Final = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n?")
LONGEST_TOKEN: Final = 1024
"""Bytes; looking for all ways to make a token of two others takes the square of its length."""
MOST_CODE: Final = 1 << 18
"""Characters of a Python file that is looked into; parsing 1 MB takes up to 7 s."""
_NAMES: Final = ("pat_str", "pattern", "pretokenizer_pattern")
_NO_REPEAT: Final = re.compile(r"(\{\d+(?:,\d*)?\})\+")
"""`{1,3}+` is possessive in tiktoken's expressions and one more repetition in those of `tokenizers`."""
_QWEN_CLASS: Final = "QWenTokenizer"
_RESERVED_CLASS: Final = "TikTokenTokenizer"
_PATTERNS: Final = {_QWEN_CLASS: QWEN2, _RESERVED_CLASS: KIMI, "ChatGLM4Tokenizer": LLAMA3}
"""By `tokenizer_class`, for checkouts without the code."""
_QWEN_SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{n}|>" for n in range(205)))
_MOST_RANKS: Final = 1 << 22
_RESERVED: Final = 256
"""Special tokens that Kimi's models have after their vocabulary, named ones among them."""


def is_tiktoken(data: bytes) -> bool:
    """Tell whether a file is such a vocabulary by its first line."""
    return _LINE.fullmatch(data[: data.find(b"\n") + 1] or data[:1024]) is not None


def build(data: bytes, settings: Mapping[str, Any], code: Iterable[str]) -> dict[str, Any]:
    """Return the content of a `tokenizer.json`; `settings` is the tokenizer's configuration, `code` its Python files.

    `InvalidArgument` where the file is broken, or nothing says how words are cut.
    """
    ranks = read_ranks(data)
    kind = str(settings.get("tokenizer_class") or "")
    pattern = next((match for text in code if (match := pattern_in(text))), None) or _PATTERNS.get(kind)
    if pattern is None:
        raise InvalidArgument(
            "the tiktoken vocabulary comes without the expression that cuts words (pat_str in a .py file of the "
            "model): use a checkout that has it, or one with a tokenizer.json"
        )
    characters = byte_characters()
    special = special_tokens(ranks, settings, kind)
    tokens = {written(token, characters): rank for token, rank in ranks.items()}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for content, number in sorted(special.items(), key=lambda item: item[1])
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, plain]},
        "post_processor": None,
        "decoder": plain,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": True,  # tiktoken looks a whole word up before it merges
            "vocab": tokens | special,
            "merges": merges(ranks, characters),
        },
    }  # fmt: skip


def read_ranks(data: bytes) -> dict[bytes, int]:
    """Read the vocabulary."""
    ranks = {}
    try:
        for line in data.splitlines():
            if line:
                token, _, rank = line.partition(b" ")
                number = int(rank)
                if not 0 <= number < _MOST_RANKS or len(token) > 2 * LONGEST_TOKEN:
                    raise ValueError("an impossible rank or token")
                ranks[base64.b64decode(token, validate=True)] = number
    except (ValueError, binascii.Error) as error:
        raise InvalidArgument(
            f"the tiktoken vocabulary is broken in line {len(ranks) + 1}: get the file again"
        ) from error
    if max(map(len, ranks), default=0) > LONGEST_TOKEN:
        raise InvalidArgument(f"the tiktoken vocabulary has a token of more than {LONGEST_TOKEN} bytes: get it again")
    if not ranks:
        raise InvalidArgument("the tiktoken vocabulary is empty: get the file again")
    return ranks


def merges(ranks: Mapping[bytes, int], characters: Mapping[int, str]) -> list[tuple[str, str]]:
    """Return every way to make a token of two others, lowest rank first, as tiktoken merges whatever gives a token."""
    if sum(map(len, ranks)) > MOST_TEXT:
        raise InvalidArgument(f"the tiktoken vocabulary has more than {MOST_TEXT} bytes of tokens")
    pairs: list[tuple[str, str]] = []
    for token in sorted((token for token in ranks if len(token) > 1), key=ranks.__getitem__):
        cuts = []
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                cuts.append((ranks[left], ranks[right], left, right))
        pairs += [(written(left, characters), written(right, characters)) for _, _, left, right in sorted(cuts)]
    return pairs


def special_tokens(ranks: Mapping[bytes, int], settings: Mapping[str, Any], kind: str) -> dict[str, int]:
    """Return the special tokens: those that the configuration numbers, and those of known kinds."""
    first = max(ranks.values()) + 1
    added: dict[str, int] = {about["content"]: number for number, about in stated(settings).items()}
    if kind == _QWEN_CLASS and not added:
        added = {content: first + n for n, content in enumerate(_QWEN_SPECIAL)}
    if kind == _RESERVED_CLASS:
        taken = set(added.values())
        reserved = {f"<|reserved_token_{number}|>": number for number in range(first, first + _RESERVED)}
        added |= {content: number for content, number in reserved.items() if number not in taken}
    return added


def pattern_in(code: str) -> str | None:
    """Find the expression in a model's Python code, without executing any of it; not in more than `MOST_CODE`."""
    if len(code) > MOST_CODE or not any(name in code.lower() for name in _NAMES):
        return None
    try:
        return _pattern_of(ast.parse(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _pattern_of(tree: ast.Module) -> str | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(_target(target) in _NAMES for target in node.targets):
            text = _text(node.value)
            if text and "\\p{" in text:
                return _NO_REPEAT.sub(r"\1", text)
    return None


def _target(node: ast.expr) -> str:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lower().lstrip("_")


def _text(node: ast.expr) -> str | None:
    """Return the value of a string, of strings that are added, or of `"|".join([...])`."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join" and node.args:
        between, parts = _text(node.func.value), node.args[0]
        texts = [_text(part) for part in parts.elts] if isinstance(parts, (ast.List, ast.Tuple)) else [None]
        known = [text for text in texts if text is not None]
        return between.join(known) if between is not None and len(known) == len(texts) else None
    return None
