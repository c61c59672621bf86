"""Whose turn it is: `Lanes`, so that one namespace with much to do never keeps the others waiting.

Who comes while others wait is served lane by lane, not in the order of coming. `Api` gives each namespace a
lane for its requests, `reconcile/compute_thread.py` one for what takes long to work out. Nothing is held back while
nobody else waits. A `Budget` limits the rate of requests: a token bucket on a clock given from outside."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

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
