"""Whether a process or server grows while it does the same work over and over. Pure.

Memory is judged by its slope, which is the median of the slopes between all pairs of readings (Theil and Sen): a few
readings in the middle of a busy moment don't move it. What is counted (descriptors, tasks, keys) is judged by how much
more of it there is in the last quarter than in the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

WARM: Final = 0.25
"""Share of a run in which caches fill; what is read then isn't judged."""
READ_UNTIL: Final = 0.9
"""Share of a run after which there must be a reading."""
LEAST: Final = 12
"""Readings without which nothing is said."""
MOST_PAIRED: Final = 400
"""Readings whose pairs are looked at; of more, each second or third."""
MB_AN_HOUR: Final = 1.0
MORE: Final = 2.0
"""By so much a count may differ: a reading may fall into a moment with a request, or a reconnect."""


@dataclass(frozen=True)
class Series:
    """Readings of one figure of one process or server, in order."""

    of: str
    what: str
    times: Sequence[float]
    """Seconds since the run began."""
    values: Sequence[float]
    is_memory: bool = False
    """In MB."""


@dataclass(frozen=True)
class Growth:
    """What became of one figure."""

    of: str
    what: str
    first: float
    """Median of the first quarter of what is judged."""
    last: float
    an_hour: float
    """How much it grew, by the median slope."""
    bar: float
    missed: bool

    def __str__(self) -> str:
        verdict = "MISSED" if self.missed else "ok"
        return (
            f"{self.of:<20}{self.what:<18}{self.first:>10.1f}{self.last:>10.1f}{self.an_hour:>+10.2f} an hour"
            f"  (bar {self.bar:g}: {verdict})"
        )


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the median of the slopes between all pairs; 0 where there is no pair."""
    step = -(-len(times) // MOST_PAIRED) or 1
    points = list(zip(times[::step], values[::step], strict=True))
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2) if b[0] > a[0]]
    return median(slopes) if slopes else 0.0


def judged(series: Series, seconds: float) -> Growth:
    """Judge one figure of a run of so many seconds.

    Raises `ValueError` where there are too few readings after the warm-up, or none near the end.
    """
    points = [(t, v) for t, v in zip(series.times, series.values, strict=True) if t >= seconds * WARM]
    if max(series.times, default=0.0) < seconds * READ_UNTIL:
        raise ValueError(f"{series.of} gave no reading of {series.what} near the end: see its log")
    if len(points) < LEAST:
        raise ValueError(f"{len(points)} readings of {series.of} after the warm-up, {LEAST} are needed: run for longer")
    times, values = [t for t, _ in points], [v for _, v in points]
    quarter = max(1, len(values) // 4)
    first, last = median(values[:quarter]), median(values[-quarter:])
    an_hour = slope(times, values) * 3600
    bar = MB_AN_HOUR if series.is_memory else MORE
    missed = an_hour > bar if series.is_memory else last - first > bar
    return Growth(series.of, series.what, first, last, an_hour, bar, missed)


class Readings:
    """Figures by process and name, as they come."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], tuple[list[float], list[float]]] = {}

    def add(self, at: float, of: str, **figures: float) -> None:
        """Take in what was read at one moment."""
        for what, value in figures.items():
            times, values = self._of.setdefault((of, what), ([], []))
            times.append(at)
            values.append(value)

    def line(self) -> str:
        """The last readings of memory, in one line; who waits for hours sees that it goes on."""
        last = {of: values[-1] for (of, what), (_, values) in self._of.items() if what == "megabytes"}
        return ", ".join(f"{of} {value:.0f} MB" for of, value in sorted(last.items()))

    def series(self) -> list[Series]:
        """All that was read; megabytes by their name."""
        return [
            Series(of, what, times, values, is_memory=what == "megabytes")
            for (of, what), (times, values) in sorted(self._of.items())
        ]
