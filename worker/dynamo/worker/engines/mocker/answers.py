"""What a request to the mock engine is answered with: which tokens, and when that ends. Pure.

A `TokenSource` is asked token by token. `sure` lets a simulation take many at once: so many more can't end it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class TokenSource(Protocol):
    """The tokens that one request gets."""

    over: bool
    """The token taken last was its last."""

    @property
    def sure(self) -> int:
        """Return how many more tokens can be taken before one of them may be the last."""

    def take(self) -> int:
        """Take the next token."""

    def take_many(self, count: int) -> list[int]:
        """Take the next `count` tokens, of which there are at most `sure`."""


class Reasoning(NamedTuple):
    """NVIDIA Dynamo's `reasoning`: answers begin with thinking, marked by two tokens."""

    start_thinking_token_id: int
    end_thinking_token_id: int
    thinking_ratio: float
    """Share of the answer that is thinking, with both marks."""

    def marks(self, wanted: int) -> dict[int, int]:
        """Return which token stands where in an answer of `wanted`; nothing where both don't fit."""
        thinking = min(wanted, int(self.thinking_ratio * wanted))
        if thinking < 2:
            return {}
        return {0: self.start_thinking_token_id, thinking - 1: self.end_thinking_token_id}


class TextAnswer:
    """An endless text from `position` on: at most `wanted` tokens, less where a stop id stands behind the floor."""

    __slots__ = ("_at", "_floor", "_marks", "_position", "_stops", "_text", "_wanted", "over", "stopped_by")

    def __init__(
        self, text: Sequence[int], position: int, wanted: int, *, floor: int = 0,
        stops: Mapping[int, str] | None = None, marks: Mapping[int, int] | None = None, at: int = 0,
    ) -> None:  # fmt: skip
        """Begin at `at`: so many tokens of it were given by somebody else; they count for `wanted` and `floor`."""
        self._text, self._position, self._wanted, self._floor = text, position, wanted, floor
        self._stops, self._marks = stops or {}, marks or {}
        self._at = at
        self.over = False
        self.stopped_by: int | None = None
        """The stop id that ended it, if one did."""

    @property
    def sure(self) -> int:
        return 0 if self._stops else self._wanted - self._at - 1

    def take(self) -> int:
        token = self._token(self._at)
        self._at += 1
        if token in self._stops and self._at >= self._floor:
            self.over, self.stopped_by = True, token
        elif self._at >= self._wanted:
            self.over = True
        return token

    def take_many(self, count: int) -> list[int]:
        tokens = [self._token(at) for at in range(self._at, self._at + count)]
        self._at += count
        return tokens

    def _token(self, at: int) -> int:
        marked = self._marks.get(at)
        return self._text[(self._position + at) % len(self._text)] if marked is None else marked
