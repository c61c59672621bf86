"""Stop strings in a text that arrives in pieces: pure, exact, independent of where the pieces end.

The rule: the stop string that is *complete first* in the text ends it; of those that are
complete at the same character, the one that began first. Text is held back only while it
may still turn out to be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Feed text, get what may be shown. `matched` is the stop string that ended the text."""

    __slots__ = ("_alphabet", "_held", "_include", "_longest", "_prefixes", "_stops", "matched")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops = [stop for stop in dict.fromkeys(stops) if stop]
        self._include = include
        self._held = ""
        self._prefixes = {stop[:end] for stop in self._stops for end in range(1, len(stop))}
        self._alphabet = {prefix[-1] for prefix in self._prefixes}
        self._longest = max((len(stop) for stop in self._stops), default=1) - 1
        self.matched: str | None = None

    def feed(self, text: str, armed: bool = True) -> str:
        """Return the text that is safe to show. Unarmed (below `min_tokens`), no match may end in `text`."""
        if not text:
            return ""
        held = self._held
        whole = held + text
        if armed:
            end, stop = self._first(whole, len(held))
            if stop is not None:
                self.matched, self._held = stop, ""
                return whole[: end if self._include else end - len(stop)]
        if text[-1] not in self._alphabet:
            self._held = ""
            return whole
        return self._hold(whole)

    def flush(self) -> str:
        """Return what was held back: the text ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first(self, whole: str, seen: int) -> tuple[int, str | None]:
        best: tuple[int, int] | None = None
        winner = None
        for stop in self._stops:
            size = len(stop)
            # A match that ended in the `seen` characters was refused already.
            start = whole.find(stop, max(0, seen + 1 - size))
            if start >= 0 and (best is None or (start + size, start) < best):
                best, winner = (start + size, start), stop
        return (best[0] if best else 0), winner

    def _hold(self, whole: str) -> str:
        size = len(whole)
        for length in range(min(self._longest, size), 0, -1):
            if whole[size - length :] in self._prefixes:
                self._held = whole[size - length :]
                return whole[: size - length]
        self._held = ""
        return whole
