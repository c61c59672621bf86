"""How streams end early: cancelled, out of time, drained, stopped, their client gone; over memory and real NATS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.runtime.request_plane.streams import Holding, count, spy, start

from dynamo.runtime.context import Context
from dynamo.runtime.errors import (
    CannotConnect,
)
from dynamo.runtime.request_plane.caller import Verdict
from dynamo.runtime.request_plane.server import from_generator


async def test_cancel_frees_the_handler(world: Any, reader: Any, until: Any) -> None:
    """A cancelled call ends the generator at its next step, is silent afterwards and may be cancelled again."""
    closed = asyncio.Event()

    async def forever(request: Any) -> AsyncIterator[int]:
        try:
            for number in range(10**9):
                yield number
                await asyncio.sleep(0.001)
        finally:
            closed.set()

    server, instance = await world.worker(from_generator(forever))
    caller = await world.caller()
    sink, call = start(caller, instance, None, reader)
    await asyncio.wait_for(sink.begun.wait(), 10)
    call.cancel()
    call.cancel()
    seen = len(sink.items)
    await asyncio.wait_for(closed.wait(), 5)
    await until("the worker is free", lambda: server.active == 0)
    assert (sink.ends, len(sink.items), caller.active) == ([], seen, 0)
    await world.close()


async def test_many_cancels_are_one_message(world: Any, reader: Any, until: Any) -> None:
    """Streams given up in one turn of the loop are cancelled together."""
    holding = Holding()
    server, instance = await world.worker(holding)
    caller = await world.caller()
    calls = [start(caller, instance, None, reader)[1] for _ in range(50)]
    await until("acceptance", lambda: all(call.accepted for call in calls))
    published: list[str] = []
    spy(caller._bus, published)
    for call in calls:
        call.cancel()
    await until("all freed", lambda: server.active == 0)
    assert len([s for s in published if s.endswith(".ctl")]) == 1
    assert sorted(holding.cancelled) == sorted(incoming.stream for incoming in holding.streams)
    del world.buses[-1].publish
    await world.close()


async def test_stopping_the_context_ends_the_call(world: Any, reader: Any, until: Any) -> None:
    """`context.stop_generating()` ends the stream with `Cancelled` and frees the worker."""
    holding = Holding()
    server, instance = await world.worker(holding)
    context = Context()
    sink, _ = start(await world.caller(), instance, None, reader, context)
    await until("the request", lambda: holding.streams)
    context.stop_generating()
    error = await sink.end()
    assert error.code == "cancelled"
    await until("the worker is free", lambda: server.active == 0)
    assert holding.streams[0].context.is_killed()
    await world.close()


async def test_a_context_that_was_stopped_before(world: Any, reader: Any) -> None:
    """Opening with a stopped context ends with `Cancelled`, after `open` returned."""
    _, instance = await world.worker(from_generator(count))
    context = Context()
    context.kill()
    sink, _ = start(await world.caller(), instance, 3, reader, context)
    assert sink.ends == []
    assert (await sink.end()).code == "cancelled"
    await world.close()


async def test_deadlines_end_both_sides(world: Any, reader: Any, until: Any) -> None:
    """The client hears `deadline` in time, and the worker's slot is free."""
    holding = Holding()
    server, instance = await world.worker(holding)
    begin = time.monotonic()
    sink, _ = start(await world.caller(), instance, None, reader, Context(deadline=begin + 0.2))
    assert (await sink.end()).code == "deadline"
    assert 0.15 < sink.ended_at - begin < 2
    await until("the worker is free", lambda: server.active == 0)
    assert holding.cancelled
    await world.close()


async def test_drain_refuses_new_and_finishes_old(world: Any, reader: Any, until: Any) -> None:
    """While draining, open streams go on; new ones fail retryably; nobody takes the worker for dead."""
    holding = Holding()
    server, instance = await world.worker(holding)
    caller = await world.caller()
    old, _ = start(caller, instance, None, reader)
    await until("the request", lambda: holding.streams)
    await server.drain()
    late, _ = start(caller, instance, None, reader)
    error = await late.end()
    assert error.retryable
    assert await caller.ping(instance) is Verdict.ALIVE
    assert not await server.finished(0.01)
    holding.streams[0].send("still here")
    holding.streams[0].finish()
    assert (await old.end(), old.items) == (None, ["still here"])
    assert await server.finished(5)
    await server.serve(instance.path, holding)
    again, _ = start(caller, instance, None, reader)
    await until("the request after the return", lambda: len(holding.streams) == 2)
    holding.streams[1].finish()
    assert await again.end() is None
    await world.close()


async def test_late_arrivals_are_told_draining(world: Any, reader: Any) -> None:
    """A request that arrives between the decision to leave and the bus's knowledge of it is refused in words."""
    server, instance = await world.worker(from_generator(count))
    caller = await world.caller()
    sink, _ = start(caller, instance, 1, reader)
    server._served[instance.path].draining = True
    error = await sink.end()
    assert (error.code, error.retryable) == ("draining", True)
    await world.close()


async def test_stop_ends_open_streams_retryably(world: Any, reader: Any, until: Any) -> None:
    """A worker that stops at once tells its clients `shutdown`."""
    holding = Holding()
    server, instance = await world.worker(holding)
    sink, _ = start(await world.caller(), instance, None, reader)
    await until("the request", lambda: holding.streams)
    await server.stop()
    error = await sink.end()
    assert (error.code, error.retryable) == ("shutdown", True)
    assert holding.cancelled
    await world.close()


async def test_a_client_that_vanishes_frees_the_worker(world: Any, reader: Any, until: Any) -> None:
    """A frontend killed without a word: the bus says that nobody listens, and its streams end."""
    holding = Holding()
    server, instance = await world.worker(holding)
    caller = await world.caller()
    start(caller, instance, None, reader)
    await until("the request", lambda: holding.streams)
    bus = world.buses[-1]
    if world.server is None:
        bus.crash()
    else:
        await bus.close()
    await until("the worker is free", lambda: server.active == 0)
    assert holding.cancelled
    await world.close()


async def test_stopping_a_caller_ends_its_streams(world: Any, reader: Any, until: Any) -> None:
    """`Caller.stop`: open streams end with `Cancelled`, questions with `CannotConnect`, and the worker is free."""
    holding = Holding()
    server, instance = await world.worker(holding)
    caller = await world.caller()
    server.on_control(instance.path, "never", lambda _: asyncio.Event().wait())
    sink, _ = start(caller, instance, None, reader)
    question = asyncio.create_task(caller.control(instance, "never", None, timeout=30))
    await until("the request", lambda: holding.streams)
    await asyncio.sleep(0)
    await caller.stop()
    assert (await sink.end()).code == "cancelled"
    with pytest.raises(CannotConnect):
        await question
    with pytest.raises(CannotConnect):  # also one that comes too late
        await caller.control(instance, "never", None, timeout=30)
    await until("the worker is free", lambda: server.active == 0)
    await world.close()
