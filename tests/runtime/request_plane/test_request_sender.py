"""No more bytes under way to one worker than a window, by turns; and what that is for, over a real NATS."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dynamo.runtime.config import NatsConfig
from dynamo.runtime.context import Context
from dynamo.runtime.errors import CapacityExceeded
from dynamo.runtime.names import EndpointPath, InstanceKey, new_id
from dynamo.runtime.request_plane import request_sender
from dynamo.runtime.request_plane.request_sender import ASK_AGAIN, EXTRA, SMALL, Pace
from dynamo.runtime.request_plane.server import Incoming, RequestServer, from_generator
from dynamo.runtime.transport.nats import NatsBus

WINDOW = 10 * SMALL


@pytest.fixture
def pace() -> Pace[str]:
    return Pace(WINDOW)


def test_a_window(pace: Pace[str]) -> None:
    """Large requests fit while it has room; small ones a little longer; a pong makes room for what was before it."""
    large = WINDOW // 2 + 1
    assert pace.fits(large)
    pace.sent(large)
    assert not pace.fits(large)
    assert pace.fits(SMALL)
    assert pace.asks(0.0)
    pace.asked(0.0)
    assert not pace.asks(0.1), "one question at a time"
    assert pace.asks(ASK_AGAIN), "it may be lost"
    pace.sent(SMALL)
    pace.answered()
    assert pace.fits(large - SMALL - 2)
    assert not pace.fits(WINDOW), "what was sent after the question is under way still"
    pace.sent(WINDOW + EXTRA - 2 * SMALL)
    assert pace.fits(SMALL)
    pace.sent(SMALL)
    assert not pace.fits(1)
    pace.reset()
    assert pace.fits(large)


def test_turns(pace: Pace[str]) -> None:
    """Flows by turns, each in its own order; a request that has begun goes on; nobody goes while there is no room."""
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        pace.wait(item[0], item)
    assert (pace.waits("a"), pace.waits("x"), pace.waiting) == (True, False, True)
    assert not pace.fits(SMALL + 1), "others wait"
    assert [pace.next(), pace.next()] == ["a1", "b1"]
    pace.more("b1")
    assert [pace.next() for _ in range(6)] == ["b1", "c1", "a2", "b2", "a3", None]
    assert not pace.waiting
    pace.wait("a", "a4")
    pace.sent(WINDOW)
    assert pace.next() is None
    pace.asked(0.0)
    pace.answered()
    assert pace.next() == "a4"


class Worker:
    """A worker with a loop of its own, in a thread, that counts and answers."""

    def __init__(self, url: str, namespace: str) -> None:
        self._url, self.path = url, EndpointPath(namespace, "backend", "generate")
        self.instance = InstanceKey(self.path, new_id())
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self.lost = 0

    def __enter__(self) -> Worker:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        self._over = asyncio.Event()
        bus = NatsBus(NatsConfig(servers=(self._url,)))
        bus.on_state(self._on_state)
        await bus.connect()
        server = RequestServer(bus, self.instance.id)
        await server.serve(self.path, self._handle)
        self._ready.set()
        await self._over.wait()
        await server.stop()
        await bus.close()

    def _on_state(self, connected: bool) -> None:
        self.lost += not connected and not self._over.is_set()

    def _handle(self, incoming: Incoming) -> None:
        if isinstance(incoming.payload, dict):
            incoming.finish(len(incoming.payload["token_ids"]))
        else:
            from_generator(ticking)(incoming)


async def ticking(request: int) -> AsyncIterator[int]:
    for number in range(request):
        yield number
        await asyncio.sleep(0.02)


def opened(caller: Any, instance: InstanceKey, payload: Any, reader: Any, context: Context | None = None) -> Any:
    sink = reader()
    caller.open(instance, payload, context=context or Context(), on_item=sink.on_item, on_end=sink.on_end)
    return sink


@pytest.mark.servers
@pytest.mark.timeout(180)
def test_a_flood_harms_nobody(start_nats: Callable[..., Any], over: Any, reader: Any) -> None:
    """One request of 400 choices with a prompt of 100,000 tokens each, several times what NATS keeps for a worker here.

    The worker is never cut off, each choice is answered, and the streams of others on it, and those that begin
    meanwhile, are whole. (Without the window NATS cut it off, and all of them ended.)
    """
    server = start_nats("max_pending: 32MB")
    world = over(server)
    prompt = {"model": "m", "token_ids": [300] * 100_000}

    async def main(worker: Worker) -> None:
        caller = await world.caller()
        victims = [opened(caller, worker.instance, 200, reader) for _ in range(20)]
        for victim in victims:
            await asyncio.wait_for(victim.begun.wait(), 20)
        flood = Context("flood")
        choices = [opened(caller, worker.instance, prompt, reader, flood) for _ in range(400)]
        victims += [opened(caller, worker.instance, 20, reader) for _ in range(5)]
        assert [await choice.end(120) for choice in choices] == [None] * len(choices)
        assert [await victim.end(60) for victim in victims] == [None] * len(victims)
        assert all(choice.items == [100_000] for choice in choices)
        assert all(victim.items == list(range(len(victim.items))) for victim in victims)
        assert {len(victim.items) for victim in victims} == {200, 20}
        await world.close()

    with Worker(server.url, world.namespace) as worker:
        asyncio.run(main(worker))
    assert worker.lost == 0


@pytest.mark.servers
@pytest.mark.timeout(120)
def test_one_request_larger_than_all(start_nats: Callable[..., Any], over: Any, reader: Any) -> None:
    """Of several windows: it goes in pieces as they are read, and a small one doesn't wait for it."""
    server = start_nats("max_pending: 16MB")
    world = over(server)

    async def main(worker: Worker) -> None:
        caller = await world.caller()
        large = opened(caller, worker.instance, {"token_ids": [300] * 12_000_000}, reader)
        small = opened(caller, worker.instance, {"token_ids": [1]}, reader)
        assert await small.end(30) is None
        assert large.ends == []
        assert await large.end(60) is None
        assert (small.items, large.items) == ([1], [12_000_000])
        await world.close()

    with Worker(server.url, world.namespace) as worker:
        asyncio.run(main(worker))
    assert worker.lost == 0


def test_a_worker_that_reads_nothing(memory: Any, reader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has waited too long for its turn ends, retryably; nothing beyond the window was sent."""
    monkeypatch.setattr("dynamo.runtime.request_plane.request_sender.HOLD", 0.3)
    sent: list[int] = []

    def drop(subject: str, data: bytes) -> bool:
        sent.append(len(data))
        return True

    async def main() -> None:
        _, instance = await memory.worker(from_generator(ticking))
        caller = await memory.caller()
        memory.network.drop = drop
        flood = Context("flood")
        choices = [opened(caller, instance, {"token_ids": [300] * 100_000}, reader, flood) for _ in range(60)]
        last = choices[-1]
        assert isinstance(await last.end(20), CapacityExceeded)
        await memory.close()

    asyncio.run(main())
    assert sum(sent) < request_sender.WINDOW + 1024 * 1024


async def test_what_can_not_be_encoded_ends_alone(memory: Any, reader: Any) -> None:
    """Also where that shows only when its turn comes."""
    _, instance = await memory.worker(from_generator(ticking))
    caller = await memory.caller()
    flood, large = Context("flood"), {"token_ids": [300] * 1_000_000}
    before = [opened(caller, instance, large, reader, flood) for _ in range(6)]
    bad = opened(caller, instance, object(), reader, flood)
    error = await bad.end(20)
    assert error is not None
    assert error.code == "bad_request"
    for one in before:
        await one.end(20)
    await memory.close()
