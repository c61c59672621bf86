"""In front of the routing of one model: lets requests pass, keeps them waiting, or refuses them.

The shell of `admission.py`: looks at the workers, calls back, keeps one timer while somebody waits. A model without
thresholds and queue has no gate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol, TypeVar

from dynamo.frontend.admission import Admission, Load, Place, Queue, Thresholds, Verdict
from dynamo.frontend.errors import ApiError, internal, overloaded
from dynamo.frontend.metrics import ModelMeter
from dynamo.runtime.errors import DeadlineExceeded, DynamoException

log = logging.getLogger(__name__)
LOOK_EVERY: Final = 0.05
"""Seconds between two looks at the workers while somebody waits: for what nobody tells (other frontends, figures)."""
S = TypeVar("S")


class QueueOptions(NamedTuple):
    """How a frontend queues."""

    threshold: float | None = None
    policy: str = "fcfs"
    limit: int = 1024
    seconds: float = 30.0


NO_QUEUE: Final = QueueOptions()


class Visitor(NamedTuple):
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
        """Of its data-parallel ranks, or of one; none: it isn't there."""


class Gate:
    """See the module. All of it runs on the loop; `stop` refuses who still waits."""

    def __init__(
        self, workers: Workers, thresholds: Thresholds, options: QueueOptions, meter: ModelMeter,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._workers, self._options, self._meter, self._clock = workers, options, meter, clock
        self._admission: Admission[Visitor] = Admission(
            thresholds, options.threshold, Queue(options.limit, options.policy)
        )
        self._queue = self._admission.queue
        self._timer: asyncio.TimerHandle | None = None
        self._looking = False
        self._counted = (0, 0)

    def __len__(self) -> int:
        """Requests that wait."""
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

    def enter(self, visitor: Visitor) -> Place[Visitor] | None:
        """Let it go on or refuse it at once (None), or keep it: the place is given up by `leave`."""
        verdict = self._admission.ask(self._workers.loads())
        if verdict is Verdict.GO:
            visitor.go()
        elif verdict is Verdict.BUSY:
            visitor.refuse(self._busy())
        else:
            return self._wait(visitor)
        return None

    def enter_pinned(self, visitor: Visitor, instance: int, dp_rank: int | None = None) -> None:
        """For a request to one worker, or one of its ranks: it doesn't wait, and only that one's thresholds count."""
        if self._is_busy(instance, dp_rank):
            visitor.refuse(self._busy(f"instance {instance} is"))
        else:
            visitor.go()

    def leave(self, place: Place[Visitor]) -> None:
        """The client is gone; also where it waits no more."""
        if self._queue.leave(place):
            self._count()

    def with_room(self, seats: list[S], load: Callable[[S], Load]) -> list[S]:
        """Those with room for one who waits; all where none has, or where there is no queue."""
        if self._admission.queue_threshold is None:
            return seats
        return [seat for seat in seats if self._admission.has_room(load(seat))] or seats

    def eased(self) -> None:
        """A worker has less to do: look soon whether somebody can go on."""
        if len(self._queue) and not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def stop(self) -> None:
        """The model has no worker any more: routing tells each what becomes of it."""
        if self._timer is not None:
            self._timer.cancel()
        while len(self._queue):
            self._go(self._queue.next())

    def _wait(self, visitor: Visitor) -> Place[Visitor] | None:
        now = self._clock()
        deadline = now + self._options.seconds
        if visitor.deadline is not None:
            deadline = min(deadline, visitor.deadline)
        place = self._queue.enter(
            visitor, now, deadline, tokens=visitor.tokens, priority=visitor.priority,
            strict_priority=visitor.strict_priority,
        )  # fmt: skip
        if place is None:
            visitor.refuse(self._full())
            return None
        self._count()
        self._set_timer()
        self.eased()
        return place

    def _look(self) -> None:
        self._looking = False
        for place in self._queue.expired(self._clock()):
            self._expire(place)
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

    def _go(self, place: Place[Visitor]) -> None:
        self._meter.observe("router_queue_wait_seconds", self._clock() - place.entered)
        self._count()
        try:
            place.owner.go()
        except Exception:  # a mistake of ours: it must not keep those behind it waiting
            log.exception("a request that had waited could not go on")
            place.owner.refuse(internal())

    def _expire(self, place: Place[Visitor]) -> None:
        visitor = place.owner
        self._meter.observe("router_queue_wait_seconds", self._clock() - place.entered)
        if visitor.deadline == place.deadline:
            visitor.refuse(DeadlineExceeded("the request's time limit passed while it waited for a worker"))
            return
        seconds = self._options.seconds
        text = f"no worker of model '{self._workers.name}' had room for the request within {seconds:g} s"
        visitor.refuse(self._refusal("queue_timeout", text))

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
        self._meter.refused(reason)
        return overloaded(f"{text}; try again in a moment.", reason)

    def _count(self) -> None:
        # Differences: several sets of one model share the figures.
        gauges, before, now = self._meter.gauges, self._counted, (len(self._queue), self._queue.tokens)
        if now != before:
            self._counted = now
            gauges["router_queue_pending_requests"] += now[0] - before[0]
            gauges["router_queue_pending_isl_tokens"] += now[1] - before[1]
