"""Markers in a text that grows at its end: where the first one stands, and what may yet become one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

LONGEST_SPACE: Final = 1024
"""White space is kept back while it may belong to a marker; so many characters of it in a row are text."""
_TEXT: Final = re.compile(r"\S")


class Markers:
    """Several markers, none of which begins another."""

    __slots__ = ("_beginnings", "find")

    def __init__(self, markers: Iterable[str]) -> None:
        known = [*dict.fromkeys(markers)]
        self.find = re.compile("|".join(map(re.escape, known)) or "(?!)").search
        """The first marker in a text, as a match."""
        self._beginnings = _by_last_character(known)

    def begun(self, text: str, at: int = 0) -> int:
        """Return how many characters at the end of `text`, from `at` on, may be the beginning of a marker."""
        beginnings = self._beginnings.get(text[-1:])
        if beginnings is None or not text.endswith(beginnings, at):
            return 0
        return next(len(beginning) for beginning in beginnings if text.endswith(beginning, at))


def leads(text: str, markers: Iterable[str], at: int = 0) -> tuple[str | None, bool]:
    """Return the marker that stands in `text` at `at`, and whether more text may yet make one."""
    waits, left = False, len(text) - at
    for marker in markers:
        if text.startswith(marker, at):
            return marker, False
        waits = waits or (left < len(marker) and marker.startswith(text[at:]))
    return None, waits


def behind_space(text: str, at: int) -> int:
    """Return where white space ends that begins at `at`."""
    match = _TEXT.search(text, at)
    return len(text) if match is None else match.start()


def settled(text: str) -> int:
    """Return how many characters don't wait for a marker: all but the white space at the end, as far as it may."""
    space = len(text) - len(text.rstrip())
    return len(text) - space % LONGEST_SPACE


def _by_last_character(markers: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the proper beginnings of all markers by their last character, longest first."""
    beginnings: dict[str, set[str]] = {}
    for marker in markers:
        for end in range(1, len(marker)):
            beginnings.setdefault(marker[end - 1], set()).add(marker[:end])
    return {last: tuple(sorted(group, key=len, reverse=True)) for last, group in beginnings.items()}
