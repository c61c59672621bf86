"""Markers in a text that grows at its end: where the first one stands, and what may yet become one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dynamo.llm.stopping import by_last_character


class Markers:
    """Several markers, none of which begins another."""

    __slots__ = ("_beginnings", "find")

    def __init__(self, markers: Iterable[str]) -> None:
        known = [*dict.fromkeys(markers)]
        self.find = re.compile("|".join(map(re.escape, known)) or "(?!)").search
        """The first marker in a text, as a match."""
        self._beginnings = by_last_character(known)

    def begun(self, text: str) -> int:
        """Return how many characters at the end of `text` may be the beginning of a marker."""
        beginnings = self._beginnings.get(text[-1:])
        if beginnings is None or not text.endswith(beginnings):
            return 0
        return next(len(beginning) for beginning in beginnings if text.endswith(beginning))


def leads(text: str, markers: Iterable[str]) -> tuple[str | None, bool]:
    """Return the marker that `text` begins with, and whether more text may yet make one."""
    waits = False
    for marker in markers:
        if text.startswith(marker):
            return marker, False
        waits = waits or marker.startswith(text)
    return None, waits
