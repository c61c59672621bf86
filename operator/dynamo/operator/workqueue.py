"""Which pipelines have to be looked at, and when: a queue without clock or chance of its own. Pure.

Anything may mark a pipeline, any number of times: it is looked at once, never twice at the
same time, and again afterwards if it was marked meanwhile. Failures wait longer and longer;
success is looked at again after the resync. The reconciler's loop drives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from dynamo.operator.intervals import Intervals


class Key(NamedTuple):
    """A pipeline's name in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Turn(NamedTuple):
    """How a look comes about."""

    failures: int = 0
    """How many before it have failed, in a row."""
    is_quiet: bool = False
    """Nobody has told anything since the last one, which was a while ago."""


@dataclass(frozen=True)
class Pace:
    """Seconds; `spacing` lets the events of our own writes come together before the next look.

    `underway` does so for one whose pods are still starting: each of them reports several times on its way.
    """

    first_retry: float = 0.5
    last_retry: float = 300.0
    resync: float = Intervals.resync
    spacing: float = 0.25
    underway: float = 0.6
    quiet: float = 20.0
    """After so long without news, a look that comes by itself may ask whether there is none."""

    def backoff(self, failures: int, jitter: float) -> float:
        """After so many failures in a row; `jitter` in [0, 1) spreads it over its upper half."""
        most = min(self.last_retry, self.first_retry * 2.0 ** min(failures - 1, 30))
        return most * (0.5 + 0.5 * jitter)


@dataclass
class _Entry:
    due: float
    marked: float | None
    """Since when somebody waits for it."""
    running: bool = False
    is_urgent: bool = False
    """Somebody who waits for it has a new spec."""
    spacing: float = 0.0
    """From the end of the last look."""
    failures: int = 0
    ended: float = float("-inf")
    is_quiet: bool = False


class Dirty:
    """The queue; times are any clock's that only goes forward."""

    def __init__(self, pace: Pace | None = None) -> None:
        self.pace = pace or Pace()
        self._entries: dict[Key, _Entry] = {}
        self._heap: list[tuple[float, Key]] = []
        """Every time at which a pipeline became due anew; those that no longer hold are passed over."""

    def __len__(self) -> int:
        return sum(e.marked is not None for e in self._entries.values())

    @property
    def known(self) -> frozenset[Key]:
        """All pipelines that were seen and not forgotten."""
        return frozenset(self._entries)

    def mark(self, key: Key, now: float, *, urgent: bool = False) -> None:
        """Something happened; look soon. Where the last look failed, only what is urgent (a new spec) ends the wait."""
        entry = self._entries.setdefault(key, _Entry(now, None))
        entry.marked = now if entry.marked is None else entry.marked
        entry.failures = 0 if urgent else entry.failures
        entry.is_urgent |= urgent
        if not entry.failures:
            entry.due = min(entry.due, max(now, entry.ended + self._spacing(entry)))
        self._queue(key, entry)

    def take(self, now: float) -> Key | None:
        """The one that is due longest, now being worked on; None where none is."""
        due = self.next_due()
        if due is None or due > now:
            return None
        _, key = heappop(self._heap)
        entry = self._entries[key]
        entry.is_quiet = entry.marked is None and now - entry.ended >= self.pace.quiet
        entry.running, entry.marked, entry.due, entry.is_urgent = True, None, float("inf"), False
        return key

    def turn(self, key: Key) -> Turn:
        """Of the one that was taken."""
        entry = self._entries.get(key)
        return Turn(entry.failures, entry.is_quiet) if entry else Turn()

    def succeeded(
        self, key: Key, now: float, jitter: float, again: float | None = None, *, underway: bool = False
    ) -> None:
        """Worked on; look again after `again` seconds, or the resync give or take a tenth."""
        if key in self._entries:
            self._entries[key].spacing = self.pace.underway if underway else self.pace.spacing
        wait = self.pace.resync * (0.9 + 0.2 * jitter) if again is None else again
        self._ended(key, now, wait, 0)

    def failed(self, key: Key, now: float, jitter: float, at_least: float | None = None) -> None:
        """Try again later, not before the seconds that the server asked for."""
        entry = self._entries.get(key)
        failures = (entry.failures if entry else 0) + 1
        self._ended(key, now, max(self.pace.backoff(failures, jitter), at_least or 0.0), failures)

    def forget(self, key: Key, now: float) -> None:
        """The pipeline is gone; one that was made anew meanwhile stays."""
        entry = self._entries.get(key)
        if entry is not None and entry.marked is None:
            del self._entries[key]
        elif entry is not None:
            entry.running, entry.failures, entry.due = False, 0, now
            self._queue(key, entry)

    def next_due(self) -> float | None:
        """When the next one can be taken."""
        while self._heap and not self._is_current(*self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def oldest(self, now: float) -> float:
        """How long the one that waits longest has been waiting since it was due; a backoff is no waiting."""
        marked = ((e, e.marked) for e in self._entries.values() if e.marked is not None)
        since = (at if e.running else max(at, e.due) for e, at in marked)
        return max((now - begun for begun in since if begun <= now), default=0.0)

    def _ended(self, key: Key, now: float, wait: float, failures: int) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.running, entry.failures, entry.ended = False, failures, now
        soon = now + self._spacing(entry) if entry.marked is not None and not failures else float("inf")
        entry.due = min(soon, now + wait)
        self._queue(key, entry)

    def _spacing(self, entry: _Entry) -> float:
        return self.pace.spacing if entry.is_urgent else entry.spacing

    def _queue(self, key: Key, entry: _Entry) -> None:
        if entry.running or entry.due == float("inf"):
            return
        heappush(self._heap, (entry.due, key))
        if len(self._heap) > 4 * len(self._entries) + 64:
            self._heap = [(e.due, k) for k, e in self._entries.items() if not e.running]
            heapify(self._heap)

    def _is_current(self, due: float, key: Key) -> bool:
        entry = self._entries.get(key)
        return entry is not None and not entry.running and entry.due == due
