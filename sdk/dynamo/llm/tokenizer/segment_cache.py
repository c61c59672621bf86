"""Cut a prompt at its special tokens and remember the ids of what lies between.

Tokenizers find special tokens before anything else looks at the text, so what lies between two
of them is tokenised by itself: concatenating the ids of the segments is exact. A chat's next
request repeats all but its last turn, and pays only for that.

`cutter_for` decides from the tokenizer's own file whether that holds (and `huggingface.py` tries it on a
set of probes); where it doesn't, a text is one segment.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from dynamo.llm.tokenizer.checks import LONGEST_TOKEN, check_added, check_merges, check_model, check_steps
from dynamo.runtime.errors import InvalidArgument

CACHE_BYTES: Final = 64 << 20
LARGEST_VOCABULARY: Final = 1 << 22
_FEW: Final = 256
"""Places that begin like a special token and are none, before a text is searched in the ordinary way."""
_SHORT: Final = 2048
"""Characters of a text that an expression splits faster than `Cutter` can ask for each place."""
_ONCE: Final = 4096
"""Long segments that came once."""
_ENTRY: Final = 250
"""What a cached segment costs beside its text and ids, roughly."""


class AddedToken(msgspec.Struct):
    """An entry of `added_tokens` in a tokenizer file."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class Model(msgspec.Struct):
    """The vocabulary: ids by token, or tokens with their scores in order."""

    vocab: dict[str, int] | list[tuple[str, float]] = {}
    max_input_chars_per_word: Any = None
    continuing_subword_prefix: Any = None
    end_of_word_suffix: Any = None
    merges: msgspec.Raw = msgspec.Raw(b"null")
    """Read where a prefix is taken off them: they are most of a file."""


class Layout(msgspec.Struct):
    """The parts of a `tokenizer.json` that matter here; what else it holds (merges, mostly) is skipped over."""

    model: Model
    added_tokens: list[AddedToken] = []
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None

    def check(self) -> None:
        """Raise `InvalidArgument` for what only an attacker writes, before a library reads the file."""
        check_added(self.added_tokens)
        check_steps(self.normalizer, self.pre_tokenizer, self.post_processor, self.decoder)
        model = msgspec.structs.asdict(self.model)
        check_model(model)
        if self.model.continuing_subword_prefix:
            check_merges(model, msgspec.json.decode(self.model.merges))
        longest = max((len(token if isinstance(token, str) else token[0]) for token in self.model.vocab), default=0)
        if longest > LONGEST_TOKEN:
            raise InvalidArgument(
                f"the tokenizer has a token of {longest} characters: at most {LONGEST_TOKEN} are read"
            )

    def take_tokens(self) -> list[str | None]:
        """Return the tokens by id (None: no such id) and forget the vocabulary, which is large."""
        vocab, self.model = self.model.vocab, Model()
        ids = vocab if isinstance(vocab, dict) else {token: number for number, (token, _) in enumerate(vocab)}
        if any(token.id < 0 for token in self.added_tokens) or (ids and min(ids.values()) < 0):
            raise ValueError("a token has a negative id")
        size = 1 + max([*ids.values(), *(token.id for token in self.added_tokens)], default=-1)
        if size > LARGEST_VOCABULARY:
            raise ValueError(f"a token has the id {size - 1}")
        tokens: list[str | None] = [None] * size
        for token, number in ids.items():
            tokens[number] = token
        for added in self.added_tokens:
            tokens[added.id] = added.content
        return tokens


Part = str | Sequence[int]
"""A segment, or the ids of a segment or of a special token."""


class Cutter:
    """Splits text into segments and special tokens."""

    def __init__(self, cut: dict[str, int], also: Iterable[str] = ()) -> None:
        self._cut = {token: (number,) for token, number in cut.items()}
        self.tokens = frozenset(cut)
        """The special tokens at which texts are cut."""
        words = {*cut, *also}
        pattern = _one_of(words)
        self._pattern = re.compile(pattern)
        self._between = re.compile(f"({pattern})") if len(words) == len(cut) else None
        """Splits a text at special tokens, where all that are looked for are."""
        # One character: the C library looks for that 16 or more at a time.
        firsts = {word[0] for word in words}
        self._first = firsts.pop() if len(firsts) == 1 else ""

    def __call__(self, text: str) -> list[Part]:
        """Return segments (text) and special tokens (their ids) in their order."""
        if self._between is not None and len(text) <= _SHORT:
            split: list[Part] = [*self._between.split(text)]
            split[1::2] = map(self._cut.__getitem__, split[1::2])  # type: ignore[arg-type] # every other is a token
            return [part for part in split if part]
        parts: list[Part] = []
        begin, cut = 0, self._cut
        for match in self._matches(text):
            ids = cut.get(match[0])
            if ids is None:
                continue
            start, end = match.span()
            if begin < start:
                parts.append(text[begin:start])
            parts.append(ids)
            begin = end
        if begin < len(text):
            parts.append(text[begin:])
        return parts

    def _matches(self, text: str) -> Iterable[re.Match[str]]:
        """Yield matches; where all begin alike and few places do, faster than an expression that reads each one."""
        first, tries = self._first, _FEW if self._first else 0
        position = text.find(first)
        while position >= 0 and tries:
            match = self._pattern.match(text, position)
            if match is None:
                tries -= 1
                position = text.find(first, position + 1)
            else:
                yield match
                position = text.find(first, match.end())
        if position >= 0:
            yield from self._pattern.finditer(text, position)


def whole(text: str) -> list[Part]:
    """Return the cutter of tokenizers whose special tokens can't be cut at."""
    return [text]


def cutter_for(layout: Layout) -> Cutter | None:
    """Return the exact cutter for a tokenizer, None where segments are not independent of each other."""
    first = [token for token in layout.added_tokens if token.content and not token.normalized]
    flagged = [token for token in first if token.lstrip or token.rstrip]
    if any(token.single_word for token in first) or _looks_at_beginning(layout):
        return None
    if flagged and any(token.content != token.content.strip() for token in first):
        return None
    cut = {t.content: t.id for t in first if t.special and not (t.lstrip or t.rstrip)}
    others = [token.content for token in first if token.content not in cut]
    return Cutter(cut, _overlapping(others, cut)) if cut else None


def _looks_at_beginning(layout: Layout) -> bool:
    """Tell whether the first segment of a text is treated unlike the others."""
    return any(node.get("prepend_scheme") == "first" for node in _nodes([layout.normalizer, layout.pre_tokenizer]))


def _nodes(value: Any) -> Iterable[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from _nodes(entry)


def _overlapping(others: Iterable[str], cut: Iterable[str]) -> list[str]:
    """Return those of `others` that can hide a token of `cut` by matching before it."""
    wholes = sorted({*cut})
    holds = re.compile(_one_of(wholes)).search

    def begins(text: str) -> bool:
        place = bisect_left(wholes, text)
        return place < len(wholes) and wholes[place].startswith(text)

    return [token for token in others if holds(token) or any(begins(token[at:]) for at in range(len(token)))]


def _one_of(words: Iterable[str]) -> str:
    """Return a pattern for the longest of `words`, as a tree, since some models have thousands."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return _branch(tree)


def _branch(tree: dict[str, Any]) -> str:
    literal = ""
    while len(tree) == 1:
        ((character, tree),) = tree.items()
        if not character:
            return literal
        literal += re.escape(character)
    branches = [re.escape(character) + _branch(below) for character, below in tree.items() if character]
    return f"{literal}(?:{'|'.join(branches)}){'?' if '' in tree else ''}" if branches else literal


class SegmentCache:
    """Segment text to ids, the least recently used dropped first. Used by several threads."""

    def __init__(self, limit: int = CACHE_BYTES, hesitate_from: int | None = None) -> None:
        self._limit = limit
        self.hesitate_from = hesitate_from
        """Segments of so many characters or more are remembered when they come for the second time.

        For a fast encoder: keeping the ids of a long text costs a sixth of finding them, and most never come again.
        """
        self._came_once: OrderedDict[int, None] = OrderedDict()
        self._ids: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        # Tuples of numbers: the garbage collector looks at them once and never again.
        self._lock = threading.Lock()
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, segment: str) -> tuple[int, ...] | None:
        """Return the ids, None where unknown."""
        parts: list[Part] = [segment]
        return None if self.fill(parts) else tuple(parts[0])  # type: ignore[arg-type] # a segment that was known

    def fill(self, parts: list[Part]) -> list[int]:
        """Put the ids of each segment in its place; return the places of those that are unknown."""
        unknown: list[int] = []
        with self._lock:
            known, use = self._ids, self._ids.move_to_end
            segments = 0
            for index, part in enumerate(parts):
                if type(part) is str:
                    segments += 1
                    if (ids := known.get(part)) is None:
                        unknown.append(index)
                    else:
                        use(part)
                        parts[index] = ids
            self.hits += segments - len(unknown)
            self.misses += len(unknown)
        return unknown

    def put(self, segment: str, ids: Sequence[int]) -> None:
        """Remember; a segment larger than a quarter of the cache isn't worth it."""
        size = _size(segment, ids)
        if size * 4 > self._limit:
            return
        with self._lock:
            if segment in self._ids or self._hesitates(segment):
                return
            self._ids[segment] = tuple(ids)
            self.bytes += size
            while self.bytes > self._limit:
                self.bytes -= _size(*self._ids.popitem(last=False))

    def _hesitates(self, segment: str) -> bool:
        if self.hesitate_from is None or len(segment) < self.hesitate_from:
            return False
        mark, came = hash(segment), self._came_once
        if mark in came:
            del came[mark]
            return False
        came[mark] = None
        if len(came) > _ONCE:
            came.popitem(last=False)
        return True


def _size(segment: str, ids: Sequence[int]) -> int:
    # Ids above 256 are objects of their own.
    return _ENTRY + 2 * len(segment) + 36 * len(ids)
