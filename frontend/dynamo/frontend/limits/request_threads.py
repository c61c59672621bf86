"""The threads in which large requests are read: decoded, checked, rendered, tokenised. `routes/model_request.py`
asks for turns.

Few threads, since most of that work holds the interpreter, and each thread that does delays the event loop. Callers
take turns, one request at a time: one that sends a hundred large bodies delays its own, not those of others. A turn is
kept until its work is really over, also where nobody waits for it any more: threads can't be stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, TypeVar

from dynamo.frontend.errors import ApiError, overloaded
from dynamo.frontend.limits.memory import return_memory
from dynamo.runtime.errors import DeadlineExceeded

log = logging.getLogger(__name__)
T = TypeVar("T")
THREADS: Final = max(2, (os.cpu_count() or 1) // 4)
MOST_WAITING: Final = 1024
THREADS_FULL: Final = "large_requests"
SECONDS: Final = 30.0
"""Within which a large request must be read, waiting included; then 503, or 504 where its own limit is shorter."""
_TRIM_EVERY: Final = 0.5
"""Seconds between two looks whether memory can be given back."""


class RequestThreads:
    """Runs the reading of large requests, a few at once, callers in turn."""

    def __init__(
        self, threads: int = THREADS, most_waiting: int = MOST_WAITING, seconds: float = SECONDS,
        refused: Callable[[str], None] = lambda reason: None,
    ) -> None:  # fmt: skip
        self._executor = ThreadPoolExecutor(threads, "requests")
        self._free, self._most_waiting, self.seconds, self._refused = threads, most_waiting, seconds, refused
        self._queues: OrderedDict[bytes, deque[asyncio.Future[None]]] = OrderedDict()
        """Who waits, by caller; the caller that has waited longest for a turn comes first."""
        self.waiting = 0
        self._trim: asyncio.TimerHandle | None = None

    def turn(self, caller: bytes, deadline: float | None) -> Turn:
        """Return a turn in the threads, for an `async with`."""
        return Turn(self, caller, deadline)

    def close(self) -> None:
        """Start nothing more."""
        if self._trim is not None:
            self._trim.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def enter(self, caller: bytes, until: float) -> None:
        """Wait for a free thread; raises the 503 of too many that wait, or `TimeoutError`."""
        if self._free and not self.waiting:
            self._free -= 1
            return
        if self.waiting >= self._most_waiting:
            raise self.full()
        place = asyncio.get_running_loop().create_future()
        self._queues.setdefault(caller, deque()).append(place)
        self.waiting += 1
        try:
            async with asyncio.timeout(until - time.monotonic()):
                await place
        except BaseException:
            self._withdraw(caller, place)
            raise

    def full(self) -> ApiError:
        """Return the 503 of what can't be read in time."""
        self._refused(THREADS_FULL)
        return overloaded("too many large requests wait to be read here; try again in a moment.", THREADS_FULL)

    def _withdraw(self, caller: bytes, place: asyncio.Future[None]) -> None:
        if place.done() and not place.cancelled():
            self.leave()  # its turn came in the moment in which it stopped waiting
        elif (queue := self._queues.get(caller)) is not None and place in queue:
            queue.remove(place)
            self.waiting -= 1
            if not queue:
                del self._queues[caller]

    def leave(self) -> None:
        """Give the thread back: the next caller's first request gets it."""
        while self._queues:
            caller, queue = self._queues.popitem(last=False)
            place = queue.popleft()
            self.waiting -= 1
            if queue:
                self._queues[caller] = queue  # behind the other callers
            if not place.done():  # else it has stopped waiting, and is about to say so
                place.set_result(None)
                return
        self._free += 1
        self._trim_soon()

    def start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run it in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._executor, contextvars.copy_context().run, work)

    def _trim_soon(self) -> None:
        if self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(_TRIM_EVERY, self._trimmed)

    def _trimmed(self) -> None:
        self._trim = None
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._executor.submit(return_memory)


class Turn:
    """One request's turn: from when it has a thread until its work there is over."""

    def __init__(self, threads: RequestThreads, caller: bytes, deadline: float | None) -> None:
        self._threads, self._caller = threads, caller
        limit = time.monotonic() + threads.seconds
        self._own = deadline is not None and deadline <= limit
        self._until = limit if deadline is None else min(limit, deadline)
        self._inside = False
        self._running: asyncio.Future[Any] | None = None

    async def __aenter__(self) -> Turn:
        await self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    async def enter(self) -> None:
        """Wait for a thread."""
        try:
            await self._threads.enter(self._caller, self._until)
        except TimeoutError:
            raise self._late() from None
        self._inside = True

    def leave(self) -> None:
        """Give the thread to the next one, once it is free."""
        if not self._inside:
            return
        self._inside = False
        running, self._running = self._running, None
        if running is None or running.done():
            self._threads.leave()
        else:
            running.add_done_callback(lambda _: self._threads.leave())

    async def run(self, work: Callable[[], T]) -> T:
        """Do it in the thread; raises where that takes too long, and nobody waits for it any more."""
        running = self._running = self._threads.start(work)
        running.add_done_callback(_look)
        try:
            async with asyncio.timeout(self._until - time.monotonic()) as limit:
                return await asyncio.shield(running)
        except TimeoutError:
            if not limit.expired():  # the work's own
                raise
            raise self._late() from None
        finally:
            del running  # an error that it ends with would hold this frame, this frame it, and both the whole body

    def _late(self) -> Exception:
        if self._own:
            return DeadlineExceeded("the request's time limit passed before its prompt was read")
        return self._threads.full()


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for nothing, without a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("work in a request's thread waits for the event loop")


def _look(running: asyncio.Future[Any]) -> None:
    """Look at what nobody waits for: it may fail without a word."""
    if not running.cancelled():
        running.exception()
