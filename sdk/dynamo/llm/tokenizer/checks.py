"""What a `tokenizer.json` may hold, looked at before the library that uses it: pure, from JSON data to a refusal.

The library is written in Rust: it ends the process where memory runs out, and its expressions (Oniguruma's) take time
without end. A frontend loads the files of every worker, so what only an attacker writes is refused here.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from dynamo.runtime.errors import InvalidArgument

MOST_BYTES: Final = 1 << 27
"""Of the file; the largest known ones have 40 MB."""
MOST_ADDED: Final = 65_536
LONGEST_ADDED: Final = 256
LONGEST_TOKEN: Final = 4096
MOST_STEPS: Final = 64
"""Steps of a normalizer, say, those within steps counted, too."""
MOST_GROWTH: Final = 256
"""How much longer a text may become before it is cut into tokens."""
LONGEST_EXPRESSION: Final = 4096
_LONGEST_PREFIX: Final = 64
_LONGEST_WORD: Final = 1000
_MOST_PARTS: Final = 16
_GROWS: Final = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "BertNormalizer": 4, "Lowercase": 3, "ByteLevel": 2}
"""How much longer Unicode's own rules make a text, in characters."""
_COUNTED: Final = re.compile(r"\{(\d*)(,?)(\d*)\}")
_KEY: Final = re.compile(rb'[\s,]*("(?:[^"\\]|\\.)*+")\s*:\s*')
"""A key of an object of JSON, behind the part before it."""
_FEW: Final = 3
"""Repetitions that are as good as none."""
_DEEPEST: Final = 10
"""Groups in groups of an expression."""


def check_keys(data: bytes) -> None:
    """Refuse a file, or a model in it, that has a key twice: the library reads both, the checks here the last."""
    parts = _keys_once(data, "file")
    if "model" in parts:
        _keys_once(parts["model"], "model")


def _keys_once(data: bytes, what: str) -> dict[str, bytes]:
    """Return the parts of an object, as they are written."""
    parts = {key: bytes(part) for key, part in msgspec.json.decode(data, type=dict[str, msgspec.Raw]).items()}
    left, at = dict(parts), data.index(b"{") + 1
    while written := _KEY.match(data, at):
        part = left.pop(msgspec.json.decode(written[1], type=str), None)
        at = written.end()
        if part is None or not data.startswith(part, at):
            raise InvalidArgument(f"the tokenizer's {what} has the key {written[1].decode()[:80]} twice")
        at += len(part)
    return parts


def check_added(tokens: list[Any]) -> None:
    """Refuse more added tokens than any model has: they become one expression."""
    if len(tokens) > MOST_ADDED:
        raise InvalidArgument(f"the tokenizer adds {len(tokens)} tokens: at most {MOST_ADDED} are read")
    longest = max((len(token.content) for token in tokens), default=0)
    if longest > LONGEST_ADDED:
        raise InvalidArgument(f"the tokenizer adds a token of {longest} characters: at most {LONGEST_ADDED} are read")


def check_steps(normalizer: Any, pre_tokenizer: Any, post_processor: Any, decoder: Any) -> None:
    """Refuse steps that make a text longer and longer, or look at it for ever."""
    for name, node in (("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("decoder", decoder)):
        growth = 1.0
        steps = list(_steps(node, name))
        for step in steps:
            growth *= _growth(step)
        if growth > MOST_GROWTH:
            raise InvalidArgument(f"the tokenizer's {name} makes texts more than {MOST_GROWTH} times as long")
    for step in _steps(post_processor, "post_processor"):
        for form in ("single", "pair"):
            parts = step.get(form)
            if isinstance(parts, list) and len(parts) > _MOST_PARTS:
                raise InvalidArgument(f"the tokenizer's post_processor puts {len(parts)} parts around a text")


def check_model(model: Mapping[str, Any]) -> None:
    """Refuse a model whose way to look at a word takes the square of its length, or makes it longer."""
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, int) and longest > _LONGEST_WORD:
        raise InvalidArgument(f"the tokenizer reads words of {longest} characters: at most {_LONGEST_WORD} are read")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        affix = model.get(name)
        if isinstance(affix, str) and len(affix) > _LONGEST_PREFIX:
            raise InvalidArgument(f"the tokenizer's {name} has {len(affix)} characters")


def check_merges(model: Mapping[str, Any], merges: Any) -> None:
    """Refuse merges whose second part isn't longer than the prefix that is taken off it.

    The library cuts off as many bytes as the prefix has, wherever that is: behind the end it panics, and within a
    character it makes a text that is none, whose error ends the process.
    """
    prefix = model.get("continuing_subword_prefix")
    if not isinstance(prefix, str) or not prefix or not isinstance(merges, list):
        return
    length = len(prefix.encode())
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        for part in parts[1:] if isinstance(parts, list) else ():
            data = part.encode() if isinstance(part, str) else b""
            if len(data) < length or (data[length : length + 1] and data[length] & 0xC0 == 0x80):
                raise InvalidArgument(
                    f"the tokenizer's continuing_subword_prefix {prefix!r} doesn't fit its merge with {part!r:.80}"
                )


def _steps(node: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield all steps, those within a `Sequence` one by one."""
    left, count = [node], 0
    while left:
        step = left.pop()
        count += 1
        if count > MOST_STEPS:
            raise InvalidArgument(f"the tokenizer's {name} has more than {MOST_STEPS} steps")
        if isinstance(step, Mapping):
            yield step
            for within in ("normalizers", "pretokenizers", "decoders", "processors"):
                inner = step.get(within)
                left += inner[: MOST_STEPS + 1] if isinstance(inner, list) else ()


def _growth(step: Mapping[str, Any]) -> float:
    """Return how much longer one step makes a text at most; refuses what it must not hold."""
    kind, content = step.get("type"), step.get("content")
    pattern = step.get("pattern")
    if isinstance(pattern, Mapping) and isinstance(expression := pattern.get("Regex"), str):
        check_expression(expression)
    if kind == "Precompiled":
        return _charsmap(step.get("precompiled_charsmap"))
    if kind == "Replace" and isinstance(content, str) and isinstance(pattern, Mapping):
        plain = pattern.get("String")
        return max(1.0, len(content) / max(1, len(plain))) if isinstance(plain, str) and plain else 1.0 + len(content)
    if kind == "Prepend" and len(str(step.get("prepend"))) > _LONGEST_PREFIX:
        raise InvalidArgument("the tokenizer puts a long text before every text")
    return float(_GROWS.get(str(kind), 1))


def _charsmap(value: Any) -> float:
    """Look into SentencePiece's table of characters, which begins with the size of its first part.

    The library takes that number for granted: a wrong one makes it ask for memory that there isn't.
    """
    if not value:
        return 1.0
    try:
        data = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (ValueError, binascii.Error):
        data = b""
    size = int.from_bytes(data[:4], "little")
    if len(data) < 4 or size % 4 or size > len(data) - 4:
        raise InvalidArgument("the tokenizer's precompiled_charsmap is broken: get the file again")
    return float(max(map(len, data[4 + size :].split(b"\0"))) or 1)


def check_expression(expression: str) -> None:
    """Refuse an expression that may take time without end: something repeated in what is itself repeated.

    Expressions of models cut words in one pass. Of repetition within repetition, or of a choice that is repeated,
    there is none; a fixed number of things may be (`(\\\\d{3})+`).
    """
    if len(expression) > LONGEST_EXPRESSION:
        raise InvalidArgument(f"the tokenizer has an expression of {len(expression)} characters")
    stack, loose = [False], False
    """By group that is open: whether what is in it may have several lengths."""
    at = 0
    while at < len(expression):
        character = expression[at]
        ended = at + 1
        if character == "(":
            stack.append(False)
            at = _behind_flags(expression, ended)
            continue
        if character == ")":
            loose = stack.pop() if len(stack) > 1 else False
        elif character == "|":
            stack[-1] = True
            loose = False
        elif character == "[":
            ended, loose = _behind_class(expression, at), False
        else:
            ended, loose = at + (2 if character == "\\" else 1), False
            if expression[at : at + 3] in ("\\p{", "\\P{") and "}" in expression[at:]:
                ended = expression.index("}", at) + 1
        least, most, at = _repeated(expression, ended)
        if (loose and most > _FEW) or len(stack) > _DEEPEST:
            raise InvalidArgument(f"the tokenizer has an expression that may take for ever: {expression[:80]!r}")
        stack[-1] = stack[-1] or loose or least != most


def _behind_flags(expression: str, at: int) -> int:
    """Return where a group's own text begins."""
    if expression[at : at + 1] != "?":
        return at
    match = re.compile(r"\?(?:[<']\w+[>']|<?[=!>]|>|[a-zA-Z-]*:|[a-zA-Z-]*(?=\)))").match(expression, at)
    return at + 1 if match is None else match.end()


def _behind_class(expression: str, at: int) -> int:
    """Return where a class ends, with the classes in it."""
    depth = 0
    while at < len(expression):
        character = expression[at]
        if character == "\\":
            at += 1
        elif character == "[":
            depth += 1
            if expression[at + 1 : at + 2] == "^":
                at += 1
            if expression[at + 1 : at + 2] == "]":
                at += 1
        elif character == "]":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return at


def _repeated(expression: str, at: int) -> tuple[int, float, int]:
    """Return how often what ends at `at` is repeated, at least and at most, and where that ends."""
    least, most = 1, 1.0
    while at < len(expression):
        character = expression[at]
        counted = _COUNTED.match(expression, at) if character == "{" else None
        if character in "*+?":
            least = min(least, 1 if character == "+" else 0)
            most = max(most, 1.0 if character == "?" else float("inf"))
            at += 1
        elif counted is not None and (counted[1] or counted[3]):
            least = int(counted[1][:6] or 0)
            most = most * float(counted[3][:6] or ("inf" if counted[2] else counted[1][:6]))
            at = counted.end()
        else:
            break
    return least, most, at
