"""Short ASCII texts word by word, from a cache: what most of a chat's new turns are made of.

Byte-level BPE splits a text with a regular expression and merges inside each piece alone, so
the ids of a piece are always the same. Splitting is also what costs `tokenizers` most of its
time; for ASCII the model's own expression can be said in Python's `re`. Everything that is
not plainly that case (other letters, other expressions, pieces that depend on what follows)
is the library's work as before, and the result is compared with it when a model is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, filterfalse
from typing import Any, Final

from dynamo.llm.tokenizer.segment_cache import Layout

Encode = Callable[[list[str]], list[list[int]]]

LONGEST: Final = 4096
"""Characters; the library encodes longer texts without the GIL."""
MOST_LEARNED: Final = 64
"""New pieces per text; a text with more of them is encoded by the library."""
MOST_KNOWN: Final = 65_536
_LONGEST_PIECE: Final = 64
_GPT2: Final = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ASCII_OF: Final = {
    "L": "A-Za-z", "Lu": "A-Z", "Ll": "a-z", "Lt": "", "Lm": "", "Lo": "", "M": "", "Mn": "", "N": "0-9", "Nd": "0-9",
    "P": r"!-#%-*,-/:;?@\[-\]_{}", "S": r"$+<->\^`|~",
}  # fmt: skip
_PROPERTY: Final = re.compile(r"\\p\{(\w+)\}")


def word_encoder(layout: Layout, encode: Encode, cut: Iterable[str], probes: Sequence[str]) -> Encode | None:
    """Return an encoder equal to `encode`, with a cache; None where a model's texts can't be taken apart so.

    `cut` are the special tokens that never stand in a text to encode; `probes` are tried on both.
    """
    apart = set(cut)
    pattern = _pattern(layout.pre_tokenizer)
    if layout.normalizer is not None or pattern is None or any(t.content not in apart for t in layout.added_tokens):
        return None
    words = Words(pattern, encode)
    texts = [text for text in probes if not any(token in text for token in apart)]
    equal = words(texts) == encode(texts) and words(texts) == encode(texts)  # first learned, then known
    return words if equal else None


class Words:
    """Cache the ids of short texts, for several threads."""

    def __init__(self, pattern: re.Pattern[str], encode: Encode) -> None:
        self._split, self._encode = pattern.findall, encode
        self._known: dict[str, tuple[int, ...]] = {}

    def __call__(self, texts: list[str]) -> list[list[int]]:
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> list[int]:
        pieces = self._split(text) if len(text) <= LONGEST and text.isascii() else ()
        if not pieces or "".join(pieces) != text:
            return self._encode([text])[0]
        try:
            return _joined(self._known, pieces)
        except KeyError:
            return self._with_new(text, pieces)

    def _with_new(self, text: str, pieces: list[str]) -> list[int]:
        """Learn the new pieces; their ids are mostly all that was missing."""
        new = [*filterfalse(self._known.__contains__, dict.fromkeys(pieces))]
        try:
            return _joined(self._learned(new[:MOST_LEARNED]), pieces)
        except KeyError:  # there were more, or one isn't a piece by itself; or the cache has just begun anew
            return self._encode([text])[0]

    def _learned(self, new: list[str]) -> dict[str, tuple[int, ...]]:
        """Return what is known, now with those of the new pieces that are pieces by themselves, too."""
        new = [piece for piece in new if len(piece) <= _LONGEST_PIECE and self._split(piece) == [piece]]
        known = self._known
        if len(known) > MOST_KNOWN:
            self._known = known = {}
        known.update(zip(new, map(tuple, self._encode(new)), strict=True))
        return known


def _joined(known: dict[str, tuple[int, ...]], pieces: list[str]) -> list[int]:
    """Return the ids of all pieces, without a step of Python's for each; raises KeyError for one that isn't known."""
    return [*chain.from_iterable(map(known.__getitem__, pieces))]


def _pattern(pre_tokenizer: Any) -> re.Pattern[str] | None:
    """Return what splits ASCII text as this pre-tokenizer does, None where that is not known."""
    source = _source(pre_tokenizer)
    ascii_source = None if source is None else _in_ascii(source)
    if ascii_source is None:
        return None
    try:
        pattern = re.compile(ascii_source, re.ASCII)
    except re.error:
        return None
    return pattern if pattern.groups == 0 else None


def _source(node: Any) -> str | None:
    """Return the expression of a byte-level pre-tokenizer, in its own dialect."""
    if not isinstance(node, dict):
        return None
    if node.get("type") == "Sequence":
        steps = node.get("pretokenizers")
        if not isinstance(steps, list) or len(steps) != 2 or not _bytes_only(steps[1]):
            return None
        return _split_source(steps[0])
    return _GPT2 if _bytes_only(node, use_regex=True) else None


def _split_source(step: Any) -> str | None:
    if not isinstance(step, dict) or step.get("type") != "Split":
        return None
    source = (step.get("pattern") or {}).get("Regex")
    plain = step.get("behavior") == "Isolated" and not step.get("invert")
    return source if plain and isinstance(source, str) else None


def _bytes_only(step: Any, use_regex: bool = False) -> bool:
    return (
        isinstance(step, dict)
        and step.get("type") == "ByteLevel"
        and not step.get("add_prefix_space")
        and step.get("use_regex", True) is use_regex
    )


def _in_ascii(source: str) -> str | None:
    """Say `\\p{…}` by the ASCII characters that it stands for; None where one is not known."""
    out, position, in_class = [], 0, False
    while position < len(source):
        match = _PROPERTY.match(source, position)
        if match:
            characters = _ASCII_OF.get(match[1])
            if characters is None:
                return None
            out.append(characters if in_class else f"[{characters}]" if characters else "(?!)")
            position = match.end()
            continue
        step = 2 if source[position] == "\\" else 1
        part = source[position : position + step]
        if part == "[" and in_class:
            return None  # a class in a class: another dialect
        in_class = part == "[" or (in_class and part != "]")
        out.append(part)
        position += step
    return "".join(out)
