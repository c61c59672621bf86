"""The loop around the queue: takes what is due, looks at up to N pipelines at once, says when to look again.

Also the sweep: kopf delivers no DELETED for what went while a watch was away, and none of
the events of a time without a watch, so everything is listed now and then and compared.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Protocol

from dynamo.operator.answers import ApiError, is_leaving
from dynamo.operator.dirty import Dirty, Key, Turn
from dynamo.operator.kinds import PIPELINES
from dynamo.operator.kube import Api
from dynamo.operator.metrics import Backlog, Metrics
from dynamo.operator.reconcile import Outcome

log = logging.getLogger(__name__)


class Looks(Protocol):
    """What `reconcile.Reconciler` is here."""

    async def reconcile(self, key: Key, turn: Turn = ...) -> Outcome:
        """One look."""


class Work:
    """Owns the queue and the tasks that work it off."""

    def __init__(
        self,
        looks: Looks,
        metrics: Metrics,
        *,
        limit: int = 16,
        queue: Dirty | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._looks, self._metrics, self._limit = looks, metrics, limit
        self._clock, self._draw = clock, draw
        self.queue = Dirty() if queue is None else queue  # an empty one is false
        self._woken = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._told: dict[Key, str] = {}
        """What the log said last of those that fail."""

    def mark(self, key: Key, *, urgent: bool = False) -> None:
        """Something happened to this pipeline."""
        self.queue.mark(key, self._clock(), urgent=urgent)
        self._woken.set()

    def backlog(self) -> Backlog:
        """For the metrics."""
        return Backlog(len(self.queue), self.oldest(), len(self.queue.known))

    def oldest(self) -> float:
        """How long the longest waiting pipeline waits."""
        return self.queue.oldest(self._clock())

    async def run(self) -> None:
        """Until cancelled; what is being looked at then is cut off, which a look survives."""
        try:
            while True:
                self._start()
                await self._wait()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self) -> None:
        while len(self._running) < self._limit and (key := self.queue.take(self._clock())) is not None:
            task = asyncio.create_task(self._look(key), name=f"reconcile {key}")
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._woken.set()

    async def _wait(self) -> None:
        due = self.queue.next_due() if len(self._running) < self._limit else None
        seconds = None if due is None or due == float("inf") else max(0.0, due - self._clock())
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    async def _look(self, key: Key) -> None:
        begun = self._clock()
        try:
            outcome = await self._looks.reconcile(key, self.queue.turn(key))
        except ApiError as error:
            self._tell(key, error)
            outcome = Outcome(failed=True, seconds=error.retry_after)
        except Exception:  # a defect must not end the loop for all the other pipelines
            log.exception("%s: the look failed", key)
            outcome = Outcome(failed=True)
        self._after(key, outcome, self._clock() - begun)

    def _tell(self, key: Key, error: ApiError) -> None:
        """Once, however often the same is tried: a namespace that is being deleted may take minutes."""
        said = f"the namespace {key.namespace} is being deleted" if is_leaving(error) else str(error)
        log.log(logging.DEBUG if self._told.get(key) == said else logging.WARNING, "%s: %s; trying again", key, said)
        self._told[key] = said

    def _after(self, key: Key, outcome: Outcome, seconds: float) -> None:
        now = self._clock()
        if not outcome.failed:
            self._told.pop(key, None)
        if outcome.gone:
            self.queue.forget(key, now)
        elif outcome.failed:
            self.queue.failed(key, now, self._draw(), outcome.seconds)
        else:
            self.queue.succeeded(key, now, self._draw(), outcome.seconds, underway=outcome.underway)
        later = "requeue_after" if outcome.seconds else "success"
        self._metrics.reconciled("error" if outcome.failed else later, seconds)


async def sweep(api: Api, namespaces: tuple[str, ...], work: Work, metrics: Metrics) -> dict[Key, int]:
    """Marks pipelines that are new to us, and those that we know and that aren't there any more; all versions."""
    found: dict[Key, int] = {}
    for namespace in namespaces or (None,):
        for item in await api.items(PIPELINES, namespace, heads_only=True):
            metadata = item["metadata"]
            found[Key(metadata["namespace"], metadata["name"])] = int(metadata["resourceVersion"])
    for key in found.keys() ^ work.queue.known:
        work.mark(key, urgent=True)
    metrics.sweeps += 1
    return found
