"""In front of the routing of one model: lets requests pass, keeps them waiting, or refuses them.

The shell of `admission_policy.py`: looks at the workers, calls back, keeps one timer while somebody waits. A model
without thresholds and queue has no gate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol, TypeVar

from dynamo.frontend.errors import ApiError, internal, overloaded
from dynamo.frontend.metrics import ModelMeter
from dynamo.frontend.routing.admission_policy import (
    Admission,
    Load,
    Queue,
    QueueEntry,
    QueueOptions,
    Thresholds,
    Verdict,
)
from dynamo.runtime.errors import DeadlineExceeded, DynamoException

log = logging.getLogger(__name__)
LOOK_EVERY: Final = 0.05
"""Seconds between two looks at the workers while somebody waits: for what nobody tells (other frontends, figures)."""
S = TypeVar("S")


class QueuedRequest(NamedTuple):
    """A request at the gate."""

    go: Callable[[], None]
    refuse: Callable[[ApiError | DynamoException], None]
    tokens: int = 0
    """Of its prompts."""
    deadline: float | None = None
    """Its own, if it has one."""
    priority: int = 0
    strict_priority: int = 0


class Workers(Protocol):
    """What a gate looks at (`model_set.py`)."""

    name: str

    def loads(self) -> Iterator[Load]: ...

    def loads_of(self, instance: int, dp_rank: int | None) -> list[Load]:
        """Return the loads of its data-parallel ranks, or of one; none: it isn't there."""


class AdmissionGate:
    """Lets requests of one model pass, keeps them waiting, or refuses them; all of it runs on the loop."""

    def __init__(
        self, workers: Workers, thresholds: Thresholds, options: QueueOptions, meter: ModelMeter,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._workers, self._options, self._meter, self._clock = workers, options, meter, clock
        self._admission: Admission[QueuedRequest] = Admission(
            thresholds, options.threshold, Queue(options.limit, options.policy)
        )
        self._queue = self._admission.queue
        self._timer: asyncio.TimerHandle | None = None
        self._looking = False
        self._counted = (0, 0)

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._queue)

    @property
    def thresholds(self) -> Thresholds:
        return self._admission.thresholds

    @thresholds.setter
    def thresholds(self, changed: Thresholds) -> None:
        self._admission.thresholds = changed
        self.eased()

    def look(self, instance: int | None = None, dp_rank: int | None = None) -> None:
        """Raise what `enter` (or `enter_pinned`) would refuse a request with now: before anything is done for it."""
        if instance is not None:
            if self._is_busy(instance, dp_rank):
                raise self._busy(f"instance {instance} is")
            return
        verdict = self._admission.ask(self._workers.loads())
        if verdict is Verdict.BUSY:
            raise self._busy()
        if verdict is Verdict.WAIT and len(self._queue) >= self._queue.limit:
            raise self._full()

    def enter(self, request: QueuedRequest) -> QueueEntry[QueuedRequest] | None:
        """Let it go on or refuse it at once (None), or keep its entry, which `leave` gives up."""
        verdict = self._admission.ask(self._workers.loads())
        if verdict is Verdict.GO:
            request.go()
        elif verdict is Verdict.BUSY:
            request.refuse(self._busy())
        else:
            return self._wait(request)
        return None

    def enter_pinned(self, request: QueuedRequest, instance: int, dp_rank: int | None = None) -> None:
        """Let a request to one worker or rank go on, or refuse it: it doesn't wait, and only that one is looked at."""
        if self._is_busy(instance, dp_rank):
            request.refuse(self._busy(f"instance {instance} is"))
        else:
            request.go()

    def leave(self, entry: QueueEntry[QueuedRequest]) -> None:
        """Remove the entry of a client that is gone; fine where it waits no more."""
        if self._queue.leave(entry):
            self._count()

    def with_room(self, workers: list[S], load: Callable[[S], Load]) -> list[S]:
        """Return those with room for one who waits; all where none has, or where there is no queue."""
        if self._admission.queue_threshold is None:
            return workers
        return [worker for worker in workers if self._admission.has_room(load(worker))] or workers

    def eased(self) -> None:
        """Look soon whether a request can go on: a worker has less to do."""
        if len(self._queue) and not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def stop(self) -> None:
        """Let all go on, since the model has no worker any more: routing tells each what becomes of it."""
        if self._timer is not None:
            self._timer.cancel()
        while len(self._queue):
            self._go(self._queue.next())

    def _wait(self, request: QueuedRequest) -> QueueEntry[QueuedRequest] | None:
        now = self._clock()
        deadline = now + self._options.seconds
        if request.deadline is not None:
            deadline = min(deadline, request.deadline)
        entry = self._queue.enter(
            request, now, deadline, tokens=request.tokens, priority=request.priority,
            strict_priority=request.strict_priority,
        )  # fmt: skip
        if entry is None:
            request.refuse(self._full())
            return None
        self._count()
        self._set_timer()
        self.eased()
        return entry

    def _look(self) -> None:
        self._looking = False
        for entry in self._queue.expired(self._clock()):
            self._expire(entry)
        while len(self._queue) and self._admission.room(self._workers.loads()):
            self._go(self._queue.next())
        self._count()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if len(self._queue):
            wait = min(LOOK_EVERY, max(0.0, self._queue.deadline - self._clock()))
            self._timer = asyncio.get_running_loop().call_later(wait, self._look)

    def _go(self, entry: QueueEntry[QueuedRequest]) -> None:
        self._meter.observe("router_queue_wait_seconds", self._clock() - entry.entered)
        self._count()
        try:
            entry.owner.go()
        except Exception:  # a mistake of ours: it must not keep those behind it waiting
            log.exception("a request that had waited could not go on")
            entry.owner.refuse(internal())

    def _expire(self, entry: QueueEntry[QueuedRequest]) -> None:
        request = entry.owner
        self._meter.observe("router_queue_wait_seconds", self._clock() - entry.entered)
        if request.deadline == entry.deadline:
            request.refuse(DeadlineExceeded("the request's time limit passed while it waited for a worker"))
            return
        seconds = self._options.seconds
        text = f"no worker of model '{self._workers.name}' had room for the request within {seconds:g} s"
        request.refuse(self._refusal("queue_timeout", text))

    def _is_busy(self, instance: int, dp_rank: int | None) -> bool:
        loads = self._workers.loads_of(instance, dp_rank)
        return bool(loads) and all(map(self.thresholds.busy, loads))

    def _busy(self, who: str = "") -> ApiError:
        who = who or f"every worker of model '{self._workers.name}' is"
        return self._refusal("busy", f"{who} over its busy threshold")

    def _full(self) -> ApiError:
        text = f"{self._queue.limit} requests wait for a worker of model '{self._workers.name}' already"
        return self._refusal("queue_full", text)

    def _refusal(self, reason: str, text: str) -> ApiError:
        return overloaded(f"{text}; try again in a moment.", reason)

    def _count(self) -> None:
        # Differences: several sets of one model share the figures.
        gauges, before, now = self._meter.gauges, self._counted, (len(self._queue), self._queue.tokens)
        if now != before:
            self._counted = now
            gauges["router_queue_pending_requests"] += now[0] - before[0]
            gauges["router_queue_pending_isl_tokens"] += now[1] - before[1]
