"""Whose turn it is: `Lanes`, so that one namespace with much to do never keeps the others waiting.

Who comes while others wait is served lane by lane, not in the order of coming. `Api` gives each namespace a
lane for its requests, `ComputeThread` one for what takes long to work out. Nothing is held back while
nobody else waits. A `Budget` limits the rate of requests: a token bucket on a clock given from outside.

`ComputeThread` works out what a reconcile needs without holding up the event loop: one computation at a time, since
threads share one interpreter. What took too long twice isn't tried again before the pipeline's spec changes:
`TooLong`. Counted is the thread's own time, so that a slow API server or a busy machine is nobody's fault.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeVar

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.kube.resources import Key

RATE = 200.0
BURST = 400


class Budget:
    """Limits the rate of requests; they take tokens in advance, so those who wait are served in order."""

    def __init__(self, rate: float = RATE, burst: int = BURST) -> None:
        self._rate, self._burst = rate, float(burst)
        self._tokens, self._at = float(burst), 0.0

    def take(self, now: float) -> float:
        """Return the seconds to wait before sending a request."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)


class Lanes:
    """Grants at most `at_once` turns at the same time, at the rate of a budget if there is one."""

    def __init__(self, at_once: int, budget: Budget | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._free, self._budget, self._clock = at_once, budget, clock
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By lane; the first one is next."""
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, lane: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it while the block runs."""
        await self._admitted(lane)
        try:
            yield
        finally:
            self._free += 1
            self._serve()

    async def _admitted(self, lane: str) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(lane, deque()).append(waiter)
        self._serve()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._free += 1  # it was given a turn that it doesn't take
            self._forget(lane, waiter)
            self._serve()
            raise

    def _serve(self) -> None:
        """Give turns, one lane after the other; goes on by itself when the budget allows the next turn."""
        while self._free and self._waiting and self._timer is None:
            seconds = self._budget.take(self._clock()) if self._budget else 0.0
            if seconds > 0:
                self._timer = asyncio.get_running_loop().call_later(seconds, self._paid)
            else:
                self._next()

    def _paid(self) -> None:
        """Give the turn that was paid for in advance."""
        self._timer = None
        self._next()
        self._serve()

    def _next(self) -> None:
        while self._waiting:
            lane, waiters = self._waiting.popitem(last=False)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[lane] = waiters  # behind all others
            if not waiter.done():
                self._free -= 1
                waiter.set_result(None)
                return

    def _forget(self, lane: str, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiting.get(lane)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[lane]


T = TypeVar("T")
LONG_SECONDS: Final = 5.0
PATIENCE: Final = 2
"""How often a spec may take so long."""
SWITCH_SECONDS: Final = 0.001
"""For so long the event loop may wait for the thread each time; Python's own 5 ms add up to seconds in a reconcile."""
SMALL: Final = 64
"""Objects and kilobytes that take a few milliseconds: they cost less than a thread's turn."""


class TooLong(Exception):  # noqa: N818 - says what it is
    """Raised when a spec has taken too long too often."""


def effort(pipeline: DynamoPipeline) -> float:
    """Return the cost of computing it, in the units of `SMALL`."""
    spec = pipeline.spec
    pods = sum((spec.replicas if c.replicas is None else c.replicas) * c.nodes for c in spec.components)
    templates = [spec.frontend.pod_template, *(c.pod_template for c in spec.components)]
    return pods + sum(len(repr(template)) for template in templates if template) / 1024


class _Spent(NamedTuple):
    generation: int
    times: int
    seconds: float


class ComputeThread:
    """Runs computations, long ones in its thread; shared by all reconciles."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock, self._lanes = clock, Lanes(at_once=1)
        self._spent: dict[Key, _Spent] = {}
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, key: Key, generation: int, size: float, what: Callable[[], T]) -> T:
        """Return what `what` returns; raises what it raises, and `TooLong`."""
        before = self._spent.get(key)
        if before is not None and before.generation != generation:
            self._spent.pop(key)
        elif before is not None and before.times >= PATIENCE:
            raise TooLong(
                f"computing this spec took the operator {before.seconds:.0f} s, the limit is {LONG_SECONDS:.0f} s: "
                "use fewer pods or a smaller podTemplate"
            )
        if size <= SMALL:
            return self._timed(key, generation, what)
        async with self._lanes.turn(key.namespace):
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "computing")
                sys.setswitchinterval(SWITCH_SECONDS)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._timed, key, generation, what)

    def gone(self, key: Key) -> None:
        """Forget a pipeline."""
        self._spent.pop(key, None)

    def close(self) -> None:
        """End the thread when it has done what it does."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None

    def _timed(self, key: Key, generation: int, what: Callable[[], T]) -> T:
        begun = self._clock()
        try:
            return what()
        finally:
            seconds = self._clock() - begun
            if seconds > LONG_SECONDS:
                before = self._spent.get(key)
                self._spent[key] = _Spent(generation, before.times + 1 if before else 1, seconds)
