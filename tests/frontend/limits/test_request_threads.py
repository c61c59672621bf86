"""Turns in the threads that read large requests."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable

import pytest
from tests.waiting import until

from dynamo.frontend.errors import ApiError
from dynamo.frontend.limits.request_threads import RequestThreads, at_once
from dynamo.runtime.errors import DeadlineExceeded


@contextlib.asynccontextmanager
async def threads(count: int = 1, most_waiting: int = 200, seconds: float = 20.0) -> AsyncIterator[RequestThreads]:
    """Some, closed at the end."""
    made = RequestThreads(count, most_waiting, seconds)
    try:
        yield made
    finally:
        made.close()


async def test_callers_take_turns() -> None:
    """One that has asked a hundred times delays another caller by one piece of work."""
    order: list[str] = []
    async with threads() as pool:

        async def ask(caller: str) -> None:
            async with pool.turn(caller.encode(), None) as turn:
                await turn.run(lambda: order.append(caller))

        async with pool.turn(b"first", None):
            tasks = [asyncio.create_task(ask("a")) for _ in range(100)]
            await asyncio.sleep(0)
            tasks += [asyncio.create_task(ask("b")) for _ in range(2)]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert order[:4] == ["a", "b", "a", "b"]
        assert len(order) == 102
        assert pool.waiting == 0


async def test_too_many_that_wait_are_refused() -> None:
    """The queue has an end, and says so by 503."""
    async with threads(most_waiting=1) as pool, pool.turn(b"a", None):
        waits = asyncio.create_task(pool.turn(b"b", None).enter())
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await pool.turn(b"c", None).enter()
        assert caught.value.status == 503
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert pool.waiting == 0


async def test_a_thread_is_taken_until_its_work_is_over() -> None:
    """Who stops waiting for its work doesn't free the thread: nobody else starts before it is really done."""
    gate, order = threading.Event(), list[str]()
    async with threads() as pool:

        def slow() -> None:
            gate.wait(10)
            order.append("slow")

        async def ask(work: Callable[[], None]) -> None:
            async with pool.turn(b"a", None) as turn:
                await turn.run(work)

        left = asyncio.create_task(ask(slow))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        following = asyncio.create_task(ask(lambda: order.append("next")))
        await until("one piece of work waits", lambda: pool.waiting == 1)
        gate.set()
        await following
        assert order == ["slow", "next"]


async def test_time_limits_hold_for_waiting_and_for_work() -> None:
    """A request's own limit is a deadline, the threads' own a 503; both give the place back."""
    gate = threading.Event()
    async with threads(seconds=0.05) as pool:
        with pytest.raises(DeadlineExceeded):
            async with pool.turn(b"a", time.monotonic() + 0.01) as turn:
                await turn.run(lambda: gate.wait(10))
        with pytest.raises(ApiError) as caught:
            await pool.turn(b"a", None).enter()
        assert caught.value.status == 503
        with pytest.raises(DeadlineExceeded):
            await pool.turn(b"a", time.monotonic() + 0.01).enter()
        gate.set()
    async with threads(seconds=20) as pool, pool.turn(b"a", None) as turn:
        assert await turn.run(lambda: 7) == 7


async def test_an_error_lets_go_of_what_caused_it() -> None:
    """What fails in a thread reaches its caller, and holds neither frames nor what lay in them afterwards."""

    class Body:
        """Something large."""

    def fail(body: Body) -> None:
        raise ValueError("wrong")

    async def ask(body: Body) -> None:
        async with pool.turn(b"a", None) as turn:
            await turn.run(lambda: fail(body))

    gc.disable()
    try:
        async with threads() as pool:
            body = Body()
            gone = weakref.ref(body)
            with contextlib.suppress(ValueError):
                await ask(body)
            del body
            await until("nothing holds it", lambda: gone() is None)
    finally:
        gc.enable()


def test_work_in_a_thread_waits_for_no_loop() -> None:
    """A coroutine that never suspends is run to its end; one that does is an error, not a hang."""

    async def seven() -> int:
        return 7

    async def waits() -> None:
        await asyncio.sleep(0)

    assert at_once(seven()) == 7
    with pytest.raises(RuntimeError):
        at_once(waits())
