"""Stop strings in a text that arrives in pieces: pure, exact, independent of where the pieces end.

The rule: the stop string that is *complete first* in the text ends it; of those that are
complete at the same character, the one that began first. Text is held back only while it
may still turn out to be the beginning of a stop string.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class StopMatcher:
    """Feed text, get what may be shown. `matched` is the stop string that ended the text."""

    __slots__ = ("_beginnings", "_found", "_held", "_include", "_stops", "matched")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops = [stop for stop in dict.fromkeys(stops) if stop]
        self._include = include
        self._held = ""
        self._found = re.compile("|".join(map(re.escape, self._stops)) or "(?!)").search
        self._beginnings = by_last_character(self._stops)
        self.matched: str | None = None

    def feed(self, text: str, armed: bool = True) -> str:
        """Return the text that is safe to show. Unarmed (below `min_tokens`), no match may end in `text`."""
        if not text:
            return ""
        held = self._held
        whole = held + text if held else text
        if armed and self._found(whole) is not None:
            end, stop = self._first(whole, len(held))
            if stop is not None:
                self.matched, self._held = stop, ""
                return whole[: end if self._include else end - len(stop)]
        beginnings = self._beginnings.get(text[-1])
        if beginnings is not None and whole.endswith(beginnings):
            return self._hold(whole, beginnings)
        if held:
            self._held = ""
        return whole

    def flush(self) -> str:
        """Return what was held back: the text ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first(self, whole: str, seen: int) -> tuple[int, str | None]:
        """Return the end of the first complete match and its stop string."""
        best: tuple[int, int] | None = None
        winner = None
        for stop in self._stops:
            size = len(stop)
            # A match that ended in the `seen` characters was refused already.
            start = whole.find(stop, max(0, seen + 1 - size))
            if start >= 0 and (best is None or (start + size, start) < best):
                best, winner = (start + size, start), stop
        return (best[0] if best else 0), winner

    def _hold(self, whole: str, beginnings: tuple[str, ...]) -> str:
        beginning = next(prefix for prefix in beginnings if whole.endswith(prefix))
        self._held = beginning
        return whole[: len(whole) - len(beginning)]


def by_last_character(stops: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the proper beginnings of all stop strings by their last character, longest first."""
    found: dict[str, set[str]] = {}
    for stop in stops:
        for end in range(1, len(stop)):
            found.setdefault(stop[end - 1], set()).add(stop[:end])
    return {last: tuple(sorted(prefixes, key=len, reverse=True)) for last, prefixes in found.items()}
