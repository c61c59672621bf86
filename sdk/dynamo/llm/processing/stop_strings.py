"""Stop strings in a text that arrives in pieces: pure, exact, independent of where the pieces end.

The rule: the stop string that is *complete first* in the text ends it; of those that are
complete at the same character, the one that began first. Text is held back only while it
may still turn out to be the beginning of a stop string.

What is held back is at most one stop string long, and each character of the answer is compared with a few of them
only: 64 long stop strings that begin alike cost no more than the text that they are looked for in.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence


class StopMatcher:
    """Feed text, get what may be shown. `matched` is the stop string that ended the text."""

    __slots__ = ("_complete", "_first", "_held", "_include", "_stops", "matched")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops = sorted({stop for stop in stops if stop})
        self._include = include
        self._held = ""
        """The longest end of the text that begins a stop string and isn't the whole of one."""
        firsts = "".join(map(re.escape, {stop[0] for stop in self._stops}))
        self._first = re.compile(f"[{firsts}]" if firsts else "(?!)").search
        self._complete = _by_last_character(self._stops)
        self.matched: str | None = None

    def feed(self, text: str, armed: bool = True) -> str:
        """Return the text that is safe to show. Unarmed (below `min_tokens`), no match may end in `text`."""
        held = self._held
        if not held and self._first(text) is None:
            return text
        end = self._ended(text, armed)
        whole = held + text if held else text
        if self.matched is not None:
            self._held = ""
            return whole[: len(held) + end - (0 if self._include else len(self.matched))]
        return whole[: len(whole) - len(self._held)]

    def flush(self) -> str:
        """Return what was held back: the text ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _ended(self, text: str, armed: bool) -> int:
        """Go through `text` up to the end of the first stop string, or of all; return how far that is."""
        held, at = self._held, 0
        while at < len(text):
            if not held:
                match = self._first(text, at)
                if match is None:
                    break
                at = match.start()
            character, at = text[at], at + 1
            held += character
            if armed and (stops := self._complete.get(character)) is not None and held.endswith(stops):
                self.matched = next(stop for stop in stops if held.endswith(stop))
                return at
            while held and not self._begins(held):
                held = held[1:]
        self._held = held
        return at

    def _begins(self, text: str) -> bool:
        """Tell whether a stop string begins with `text` and goes on."""
        stops = self._stops
        place = bisect_left(stops, text)
        if place < len(stops) and stops[place] == text:
            place += 1
        return place < len(stops) and stops[place].startswith(text)


def _by_last_character(stops: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the stop strings by their last character, longest first."""
    by_last: dict[str, list[str]] = {}
    for stop in sorted(stops, key=len, reverse=True):
        by_last.setdefault(stop[-1], []).append(stop)
    return {last: tuple(stops) for last, stops in by_last.items()}
