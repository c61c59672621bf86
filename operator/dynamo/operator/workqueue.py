"""Which pipelines to reconcile, and when: a queue without clock or chance of its own. Pure.

Anything may mark a pipeline, any number of times: it is reconciled once, never twice at the
same time, and again afterwards if it was marked meanwhile. Failures wait longer and longer;
success is reconciled again after the resync. Of one namespace only so many are reconciled at the same
time, so that others always find room. `controller.py` drives it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from dynamo.operator.intervals import Intervals
from dynamo.operator.kube.resources import Key


class Attempt(NamedTuple):
    """What led to a reconcile."""

    failures: int = 0
    """How many reconciles before it have failed, in a row."""
    is_quiet: bool = False
    """Nothing has been reported since the last reconcile, which was a while ago."""


@dataclass(frozen=True)
class Backoff:
    """Waiting times in seconds; `spacing` lets the events of our own writes come together before the next reconcile.

    `underway` does so for a pipeline whose pods are still starting: each of them reports several times on its way.
    """

    first_retry: float = 0.5
    last_retry: float = 300.0
    resync: float = Intervals.resync
    spacing: float = 0.25
    underway: float = 0.6
    quiet: float = 20.0
    """After so long without news, a reconcile that comes by itself asks the server whether there is none."""

    def delay(self, failures: int, jitter: float) -> float:
        """Return the seconds to wait after so many failures in a row; `jitter` in [0, 1) spreads their upper half."""
        most = min(self.last_retry, self.first_retry * 2.0 ** min(failures - 1, 30))
        return most * (0.5 + 0.5 * jitter)


@dataclass
class _Entry:
    due: float
    marked: float | None
    """Since when it waits to be reconciled."""
    running: bool = False
    is_urgent: bool = False
    """It has a new spec."""
    spacing: float = 0.0
    """From the end of the last reconcile."""
    failures: int = 0
    ended: float = float("-inf")
    is_quiet: bool = False


class WorkQueue:
    """Queues pipelines by when they are due; times are any clock's that only goes forward."""

    def __init__(self, backoff: Backoff | None = None, share: int = 16) -> None:
        self.backoff, self._share = backoff or Backoff(), share
        self._entries: dict[Key, _Entry] = {}
        self._heap: list[tuple[float, Key]] = []
        """Every time at which a pipeline became due; those that no longer hold are passed over."""
        self._running: Counter[str] = Counter()
        """How many are being reconciled, by namespace."""
        self._held: dict[str, list[tuple[float, Key]]] = {}
        """Due, but their namespace has its share of the reconciles."""

    def __len__(self) -> int:
        return sum(e.marked is not None for e in self._entries.values())

    @property
    def known(self) -> frozenset[Key]:
        """Return the pipelines that were marked and not forgotten."""
        return frozenset(self._entries)

    def mark(self, key: Key, now: float, *, urgent: bool = False) -> None:
        """Have it reconciled soon. Where the last reconcile failed, only what is urgent (a new spec) ends the wait."""
        entry = self._entries.setdefault(key, _Entry(now, None))
        entry.marked = now if entry.marked is None else entry.marked
        entry.failures = 0 if urgent else entry.failures
        entry.is_urgent |= urgent
        if not entry.failures:
            entry.due = min(entry.due, max(now, entry.ended + self._spacing(entry)))
        self._queue(key, entry)

    def take(self, now: float) -> Key | None:
        """Take the pipeline that is due longest, to be reconciled now; None where none is due."""
        key = self._due(now)
        if key is None:
            return None
        entry = self._entries[key]
        self._running[key.namespace] += 1
        entry.is_quiet = entry.marked is None and now - entry.ended >= self.backoff.quiet
        entry.running, entry.marked, entry.due, entry.is_urgent = True, None, float("inf"), False
        return key

    def _due(self, now: float) -> Key | None:
        """Take a due pipeline off the heap; those of a namespace that has its share are put aside."""
        while (due := self.next_due()) is not None and due <= now:
            _, key = heappop(self._heap)
            if self._running[key.namespace] < self._share:
                return key
            heappush(self._held.setdefault(key.namespace, []), (due, key))
        return None

    def _released(self, namespace: str) -> None:
        """Count the end of a reconcile in this namespace: the next pipeline that was put aside is due."""
        self._running[namespace] -= 1
        if self._running[namespace] <= 0:
            del self._running[namespace]
        held = self._held.get(namespace, [])
        while held:
            due, key = heappop(held)
            if self._is_current(due, key):
                heappush(self._heap, (due, key))
                break
        if not held:
            self._held.pop(namespace, None)

    def attempt(self, key: Key) -> Attempt:
        """Return what led to the reconcile of a pipeline that was taken."""
        entry = self._entries.get(key)
        return Attempt(entry.failures, entry.is_quiet) if entry else Attempt()

    def succeeded(
        self, key: Key, now: float, jitter: float, after: float | None = None, *, underway: bool = False
    ) -> None:
        """Note a success; reconcile again after `after` seconds, or the resync give or take a tenth."""
        if key in self._entries:
            self._entries[key].spacing = self.backoff.underway if underway else self.backoff.spacing
        wait = self.backoff.resync * (0.9 + 0.2 * jitter) if after is None else after
        self._ended(key, now, wait, 0)

    def failed(self, key: Key, now: float, jitter: float, at_least: float | None = None) -> None:
        """Note a failure: try again later, not before the seconds that the server asked for."""
        entry = self._entries.get(key)
        failures = (entry.failures if entry else 0) + 1
        self._ended(key, now, max(self.backoff.delay(failures, jitter), at_least or 0.0), failures)

    def forget(self, key: Key, now: float) -> None:
        """Forget a pipeline that is gone; if it was made again meanwhile, it stays."""
        entry = self._entries.get(key)
        if entry is not None and entry.running:
            self._released(key.namespace)
        if entry is not None and entry.marked is None:
            del self._entries[key]
        elif entry is not None:
            entry.running, entry.failures, entry.due = False, 0, now
            self._queue(key, entry)

    def next_due(self) -> float | None:
        """Return when the next pipeline can be taken."""
        while self._heap and not self._is_current(*self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def oldest(self, now: float) -> float:
        """Return how long the longest waiting pipeline has waited since it was due; a backoff doesn't count."""
        marked = ((e, e.marked) for e in self._entries.values() if e.marked is not None)
        since = (at if e.running else max(at, e.due) for e, at in marked)
        return max((now - begun for begun in since if begun <= now), default=0.0)

    def _ended(self, key: Key, now: float, wait: float, failures: int) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        if entry.running:
            self._released(key.namespace)
        entry.running, entry.failures, entry.ended = False, failures, now
        soon = now + self._spacing(entry) if entry.marked is not None and not failures else float("inf")
        entry.due = min(soon, now + wait)
        self._queue(key, entry)

    def _spacing(self, entry: _Entry) -> float:
        return self.backoff.spacing if entry.is_urgent else entry.spacing

    def _queue(self, key: Key, entry: _Entry) -> None:
        if entry.running or entry.due == float("inf"):
            return
        heappush(self._heap, (entry.due, key))
        if len(self._heap) > 4 * len(self._entries) + 64:
            self._heap = [(e.due, k) for k, e in self._entries.items() if not e.running]
            heapify(self._heap)
            self._held.clear()

    def _is_current(self, due: float, key: Key) -> bool:
        entry = self._entries.get(key)
        return entry is not None and not entry.running and entry.due == due
