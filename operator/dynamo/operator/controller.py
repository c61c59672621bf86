"""Works off the queue: reconciles up to N pipelines at once as they become due, and schedules each again.

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

from dynamo.operator.kube.client import Api
from dynamo.operator.kube.errors import ApiError, is_leaving
from dynamo.operator.kube.resources import PIPELINES, Key
from dynamo.operator.manifests.nats import GROUP
from dynamo.operator.metrics import Backlog, Metrics
from dynamo.operator.reconcile.reconciler import Outcome
from dynamo.operator.workqueue import Attempt, WorkQueue

log = logging.getLogger(__name__)


class Reconciles(Protocol):
    """What the controller needs of `reconciler.Reconciler`."""

    async def reconcile(self, key: Key, attempt: Attempt = ...) -> Outcome:
        """Reconcile a pipeline once."""


class Controller:
    """Owns the queue and the tasks that reconcile."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        limit: int = 24,
        queue: WorkQueue | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._metrics, self._limit = metrics, limit
        self._clock, self._draw = clock, draw
        self.queue = WorkQueue() if queue is None else queue  # an empty one is false
        self._woken = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._last_errors: dict[Key, str] = {}
        """The error that was logged last, by failing pipeline."""

    def mark(self, key: Key, *, urgent: bool = False) -> None:
        """Have a pipeline reconciled."""
        self.queue.mark(key, self._clock(), urgent=urgent)
        self._woken.set()

    def mark_urgent(self, key: Key) -> None:
        """Have a pipeline reconciled at once, also where its last reconcile failed."""
        self.mark(key, urgent=True)

    def mark_owner(self, key: Key) -> None:
        """Have the owner of a changed object reconciled; the NATS of a namespace belongs to all pipelines there."""
        if key.name != GROUP:
            self.mark(key)
            return
        for pipeline in self.queue.known:
            if pipeline.namespace == key.namespace:
                self.mark(pipeline)

    def backlog(self) -> Backlog:
        """Return the backlog for the metrics."""
        return Backlog(len(self.queue), self.oldest(), len(self.queue.known))

    def oldest(self) -> float:
        """Return how long the longest waiting pipeline has waited."""
        return self.queue.oldest(self._clock())

    async def run(self, reconciler: Reconciles) -> None:
        """Reconcile until cancelled; reconciles that are under way are cut off, which the next ones make good."""
        try:
            while True:
                self._start(reconciler)
                await self._wait()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, reconciler: Reconciles) -> None:
        while len(self._running) < self._limit and (key := self.queue.take(self._clock())) is not None:
            task = asyncio.create_task(self._reconcile(key, reconciler), name=f"reconcile {key}")
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

    async def _reconcile(self, key: Key, reconciler: Reconciles) -> None:
        begun = self._clock()
        try:
            outcome = await reconciler.reconcile(key, self.queue.attempt(key))
        except ApiError as error:
            self._log_failure(key, error)
            outcome = Outcome(failed=True, seconds=error.retry_after)
        except Exception:  # a defect must not end the loop for all the other pipelines
            log.exception("%s: reconcile failed", key)
            outcome = Outcome(failed=True)
        self._finish(key, outcome, self._clock() - begun)

    def _log_failure(self, key: Key, error: ApiError) -> None:
        """Log an error once, however often it repeats: a namespace that is being deleted may take minutes."""
        text = f"the namespace {key.namespace} is being deleted" if is_leaving(error) else str(error)
        log.log(
            logging.DEBUG if self._last_errors.get(key) == text else logging.WARNING, "%s: %s; trying again", key, text
        )
        self._last_errors[key] = text

    def _finish(self, key: Key, outcome: Outcome, seconds: float) -> None:
        now = self._clock()
        if not outcome.failed:
            self._last_errors.pop(key, None)
        if outcome.gone:
            self.queue.forget(key, now)
        elif outcome.failed:
            self.queue.failed(key, now, self._draw(), outcome.seconds)
        else:
            self.queue.succeeded(key, now, self._draw(), outcome.seconds, underway=outcome.underway)
        later = "requeue_after" if outcome.seconds else "success"
        self._metrics.reconciled("error" if outcome.failed else later, seconds)


async def sweep(api: Api, namespaces: tuple[str, ...], controller: Controller, metrics: Metrics) -> dict[Key, int]:
    """Mark pipelines that are new, and known ones that are gone; return the resourceVersions of all."""
    versions: dict[Key, int] = {}
    for namespace in namespaces or (None,):
        for item in await api.items(PIPELINES, namespace, heads_only=True):
            metadata = item["metadata"]
            versions[Key(metadata["namespace"], metadata["name"])] = int(metadata["resourceVersion"])
    for key in versions.keys() ^ controller.queue.known:
        controller.mark(key, urgent=True)
    metrics.sweeps += 1
    return versions
