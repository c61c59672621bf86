"""Requests from client to worker and back: over memory and over a real NATS server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.runtime.request_plane.streams import Holding, count, spy_on_frames, start

from dynamo.runtime.context import Context
from dynamo.runtime.errors import (
    CannotConnect,
    CapacityExceeded,
    ConnectionTimeout,
    EngineError,
    InvalidArgument,
)
from dynamo.runtime.names import EndpointPath, InstanceKey, new_id
from dynamo.runtime.request_plane.caller import Verdict
from dynamo.runtime.request_plane.server import Incoming, from_generator


async def test_a_stream_is_exact(world: Any, reader: Any) -> None:
    """Items come in order, then the end, once; the worker is free again."""
    server, instance = await world.worker(from_generator(count))
    caller = await world.caller()
    sink, call = start(caller, instance, 500, reader)
    assert sink.items == []
    assert await sink.end() is None
    assert sink.items == list(range(500))
    assert call.accepted
    assert (server.active, caller.active) == (0, 0)
    await world.close()


async def test_two_hundred_streams_at_once_are_exact(world: Any, reader: Any) -> None:
    """200 streams of two clients on two workers: each gets its own items, all of them."""

    async def spell(request: list[Any]) -> AsyncIterator[str]:
        for number in range(request[1]):
            yield f"{request[0]}-{number}"
            if number % 3 == 0:
                await asyncio.sleep(0)

    workers = [(await world.worker(from_generator(spell)))[1] for _ in range(2)]
    callers = [await world.caller() for _ in range(2)]
    sinks = []
    for number in range(200):
        sink, _ = start(callers[number % 2], workers[number // 2 % 2], [number, 50 + number], reader)
        sinks.append(sink)
    for number, sink in enumerate(sinks):
        assert await sink.end(30) is None
        assert sink.items == [f"{number}-{n}" for n in range(50 + number)]
    await world.close()


async def test_one_step_is_one_message(world: Any, reader: Any, until: Any) -> None:
    """What one turn of the worker's loop sends to 20 streams of a client is one message."""
    holding = Holding()
    server, instance = await world.worker(holding)
    caller = await world.caller()
    sinks = [start(caller, instance, n, reader)[0] for n in range(20)]
    await until("acceptance", lambda: len(holding.streams) == 20)
    frames: list[bytes] = []
    spy_on_frames(server, frames)
    for incoming in holding.streams:
        incoming.send(incoming.payload)
        incoming.finish()
    await asyncio.gather(*(sink.end() for sink in sinks))
    assert [sink.items for sink in sinks] == [[n] for n in range(20)]
    assert len(frames) == 1
    await world.close()


async def test_context_travels(world: Any, reader: Any) -> None:
    """Id, metadata and the remaining time reach the handler."""

    async def tell(request: Any, context: Context) -> AsyncIterator[Any]:
        left = None if context.deadline is None else context.deadline - time.monotonic()
        yield [context.id(), context.metadata, left]

    _, instance = await world.worker(from_generator(tell))
    caller = await world.caller()
    context = Context("abc", {"traceparent": "00-1"}, deadline=time.monotonic() + 30)
    sink, _ = start(caller, instance, None, reader, context)
    assert await sink.end() is None
    (identity, metadata, left) = sink.items[0]
    assert (identity, metadata) == ("abc", {"traceparent": "00-1"})
    assert 20 < left <= 30
    await world.close()


@pytest.mark.parametrize("size", [100_000, 8 * 1024 * 1024], ids=["100 kB", "8 MB"])
async def test_large_requests_pass(world: Any, reader: Any, size: int) -> None:
    """A request over the bus's limit goes in pieces and arrives whole."""

    async def measure(request: bytes) -> AsyncIterator[Any]:
        yield [len(request), request[:3], request[-3:]]

    _, instance = await world.worker(from_generator(measure))
    caller = await world.caller()
    sink, _ = start(caller, instance, b"abc" + bytes(size) + b"xyz", reader)
    assert await sink.end(20) is None
    assert sink.items == [[size + 6, b"abc", b"xyz"]]
    await world.close()


async def test_large_steps_pass(world: Any, reader: Any) -> None:
    """Items that together are over the bus's limit arrive in several frames, in order."""

    def handler(incoming: Incoming) -> None:
        for number in range(10):
            incoming.send([number, "x" * 300_000])
        incoming.finish()

    _, instance = await world.worker(handler)
    sink, _ = start(await world.caller(), instance, None, reader)
    assert await sink.end(20) is None
    assert [item[0] for item in sink.items] == list(range(10))
    await world.close()


def failing(error: BaseException) -> Any:
    async def handler(request: Any) -> AsyncIterator[int]:
        yield 1
        raise error

    return from_generator(handler)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RuntimeError("boom"), "engine_error", "RuntimeError: boom"),
        (InvalidArgument("no"), "bad_request", "no"),
        (CapacityExceeded(), "full", "room"),
        (asyncio.CancelledError(), "cancelled", "cancelled"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_errors_of_a_handler(world: Any, reader: Any, error: BaseException, code: str, text: str) -> None:
    """Our own errors keep their code, others are the engine's; the items before them arrive."""
    server, instance = await world.worker(failing(error))
    sink, _ = start(await world.caller(), instance, None, reader)
    found = await sink.end()
    assert (found.code, sink.items, server.active) == (code, [1], 0)
    assert text in found.message
    await world.close()


async def test_a_low_level_handler_that_raises(world: Any, reader: Any) -> None:
    """An exception in the handler itself fails that request alone."""

    def handler(incoming: Incoming) -> None:
        if incoming.payload == "bad":
            raise ValueError("boom")
        incoming.finish("fine")

    _, instance = await world.worker(handler)
    caller = await world.caller()
    bad, _ = start(caller, instance, "bad", reader)
    good, _ = start(caller, instance, "good", reader)
    assert isinstance(await bad.end(), EngineError)
    assert (await good.end(), good.items) == (None, ["fine"])
    await world.close()


async def test_coroutine_handlers_answer_once(world: Any, reader: Any) -> None:
    """A coroutine function is a handler of one item."""

    async def double(request: int) -> int:
        return 2 * request

    _, instance = await world.worker(from_generator(double))
    sink, _ = start(await world.caller(), instance, 21, reader)
    assert (await sink.end(), sink.items) == (None, [42])
    await world.close()


async def test_payloads_that_cannot_be_sent(world: Any, reader: Any) -> None:
    """The caller hears it at once, in words."""
    _, instance = await world.worker(from_generator(count))
    caller = await world.caller()
    with pytest.raises(InvalidArgument, match="can't be sent"):
        start(caller, instance, object(), reader)
    with pytest.raises(InvalidArgument, match="listen"):
        start(caller, InstanceKey(EndpointPath("other", "c", "e"), 1), 1, reader)
    assert caller.active == 0
    await world.close()


async def test_nobody_there(world: Any, reader: Any) -> None:
    """A request to an instance that does not exist fails at once, retryably, and the verdict is told."""
    caller = await world.caller()
    verdicts: list[Any] = []
    caller.on_verdict(lambda key, verdict: verdicts.append((key, verdict)))
    nobody = InstanceKey(EndpointPath(world.namespace, "backend", "generate"), new_id())
    begin = time.monotonic()
    sink, _ = start(caller, nobody, 1, reader)
    error = await sink.end()
    assert isinstance(error, CannotConnect)
    assert error.retryable
    assert time.monotonic() - begin < 1
    assert await caller.ping(nobody) is Verdict.DEAD
    assert verdicts == [(nobody, Verdict.DEAD)]
    await world.close()


async def test_a_full_worker_says_so(world: Any, reader: Any, until: Any) -> None:
    """Beyond its limit of open streams a worker refuses retryably."""
    holding = Holding()
    _, instance = await world.worker(holding, max_streams=1)
    caller = await world.caller()
    start(caller, instance, None, reader)
    sink, _ = start(caller, instance, None, reader)
    error = await sink.end()
    assert (error.code, error.retryable) == ("full", True)
    await world.close()


async def test_control_operations(world: Any) -> None:
    """Sync and async operations answer; their errors, unknown names and large answers come back in words."""
    server, instance = await world.worker(from_generator(count))
    caller = await world.caller()

    async def later(body: Any) -> Any:
        await asyncio.sleep(0)
        return [body, "later"]

    def broken(body: Any) -> Any:
        raise KeyError("bug")

    async def never(body: Any) -> Any:
        await asyncio.Event().wait()

    server.on_control(instance.path, "add", lambda body: body + 1)
    server.on_control(instance.path, "later", later)
    server.on_control(instance.path, "broken", broken)
    server.on_control(instance.path, "never", never)
    server.on_control(instance.path, "large", lambda body: bytes(body))
    assert await caller.control(instance, "add", 41, timeout=5) == 42
    assert await caller.control(instance, "later", {"a": 1}, timeout=5) == [{"a": 1}, "later"]
    assert len(await caller.control(instance, "large", 900_000, timeout=5)) == 900_000
    with pytest.raises(EngineError, match="KeyError"):
        await caller.control(instance, "broken", None, timeout=5)
    with pytest.raises(InvalidArgument, match="over the bus's limit"):
        await caller.control(instance, "large", 2_000_000, timeout=5)
    with pytest.raises(InvalidArgument, match="no operation 'x'"):
        await caller.control(instance, "x", None, timeout=5)
    with pytest.raises(ConnectionTimeout):
        await caller.control(instance, "never", None, timeout=0.05)
    nobody = InstanceKey(instance.path, new_id())
    with pytest.raises(CannotConnect):
        await caller.control(nobody, "add", 1, timeout=5)
    await world.close()


async def test_a_cancelled_question_is_cancelled_though_its_answer_has_come(memory: Any) -> None:
    """Whoever asks and is told to stop in that very moment stops."""
    server, instance = await memory.worker(from_generator(count))
    caller = await memory.caller()
    server.on_control(instance.path, "add", lambda body: body + 1)
    asking = asyncio.ensure_future(caller.control(instance, "add", 1, timeout=5))
    heard = caller._control_client.on_reply

    def hear(token: str, message: Any) -> None:
        heard(token, message)
        asking.cancel()

    caller._control_client.on_reply = hear
    with pytest.raises(asyncio.CancelledError):
        await asking
    await memory.close()


async def test_after_batch_runs_once_per_read(world: Any, reader: Any, until: Any) -> None:
    """Everything that a frame brings is handled before a writer acts, once."""
    holding = Holding()
    _, instance = await world.worker(holding)
    caller = await world.caller()
    log: list[Any] = []

    def on_item(data: Any, last: bool) -> None:
        if not any(entry == "scheduled" for entry in log):
            log.append("scheduled")
            caller.after_batch(lambda: log.append("write"))
        log.append(data)

    done = asyncio.Event()
    for _ in range(3):
        caller.open(instance, None, context=Context(), on_item=on_item, on_end=lambda _: done.set())
    await until("the requests", lambda: len(holding.streams) == 3)
    for incoming in holding.streams:
        incoming.send("item")
    await until("the write", lambda: "write" in log)
    assert log == ["scheduled", "item", "item", "item", "write"]
    await world.close()
