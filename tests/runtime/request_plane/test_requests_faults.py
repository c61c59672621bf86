"""Losses, delays and outages on purpose, over the memory bus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.runtime.request_plane.streams import Holding, count, start

from dynamo.runtime.context import Context
from dynamo.runtime.names import InstanceKey, new_id
from dynamo.runtime.request_plane import caller as calling
from dynamo.runtime.request_plane import inbox
from dynamo.runtime.request_plane.caller import Verdict
from dynamo.runtime.request_plane.server import from_generator


class Loss:
    """Loses the messages whose subject ends so, from the given number on, so many of them."""

    def __init__(self, ending: str, first: int = 1, many: int = 1) -> None:
        self.ending, self.first, self.many = ending, first, many
        self.seen = self.lost = 0

    def __call__(self, subject: str, data: bytes) -> bool:
        if not subject.endswith(self.ending):
            return False
        self.seen += 1
        if self.seen < self.first or self.lost >= self.many:
            return False
        self.lost += 1
        return True


@pytest.mark.parametrize("which", [1, 2, 5])
async def test_a_lost_frame_is_one_clean_error(memory: Any, reader: Any, which: int, until: Any) -> None:
    """The stream ends with one retryable error, its items are a beginning, and the worker is freed."""
    server, instance = await memory.worker(from_generator(count))
    caller = await memory.caller()
    memory.network.drop = Loss(".s", which)
    sink, _ = start(caller, instance, 10**6, reader)
    error = await sink.end()
    assert (error.code, error.retryable) == ("incomplete", True)
    assert sink.items == list(range(len(sink.items)))
    await until("the worker is free", lambda: server.active == 0)
    await memory.close()


async def test_the_last_frame_lost(memory: Any, reader: Any, until: Any) -> None:
    """The worker finished and is silent for ever: within two seconds the client knows that it missed the end."""
    holding = Holding()
    _, instance = await memory.worker(holding)
    sink, call = start(await memory.caller(), instance, None, reader)
    await until("acceptance", lambda: call.accepted)
    memory.network.drop = Loss(".s")
    holding.streams[0].finish("all")
    begin = time.monotonic()
    assert (await sink.end()).code == "incomplete"
    assert time.monotonic() - begin < 2
    await memory.close()


async def test_a_lost_request_is_noticed(memory: Any, reader: Any) -> None:
    """The request itself is lost: a ping shows that the worker never saw it; retryable."""
    _, instance = await memory.worker(from_generator(count))
    caller = await memory.caller()
    memory.network.drop = Loss(".req")
    sink, _ = start(caller, instance, 3, reader)
    error = await sink.end()
    assert (error.code, error.retryable) == ("timeout", True)
    again, _ = start(caller, instance, 3, reader)
    assert await again.end() is None
    await memory.close()


async def test_a_lost_cancel_is_repeated(memory: Any, reader: Any, until: Any) -> None:
    """Items of an unknown stream make the client cancel again."""
    holding = Holding()
    server, instance = await memory.worker(holding)
    sink, call = start(await memory.caller(), instance, None, reader)
    await until("acceptance", lambda: call.accepted)
    memory.network.drop = Loss(".ctl", many=2)
    call.cancel()

    async def produce() -> None:
        while server.active:
            holding.streams[0].send("x")
            await asyncio.sleep(0.01)

    await asyncio.wait_for(produce(), 5)
    assert memory.network.drop.lost == 2
    assert sink.ends == []
    await memory.close()


async def test_a_lost_chunk_is_noticed_and_forgotten(memory: Any, reader: Any) -> None:
    """A large request that lost a piece ends retryably; its pieces are dropped."""
    server, instance = await memory.worker(from_generator(count))
    caller = await memory.caller()
    memory.network.drop = Loss(".req", 2)
    sink, _ = start(caller, instance, bytes(3_000_000), reader)
    assert (await sink.end()).code == "timeout"
    (peer,) = server._peers.values()
    assert peer.chunks.size > 0
    peer.chunks.expire(time.monotonic() + 11)
    assert peer.chunks.size == 0
    await memory.close()


async def test_late_pongs_and_frames_are_no_death(memory: Any, reader: Any) -> None:
    """Everything is late by 300 ms: slow, but nothing fails."""
    _, instance = await memory.worker(from_generator(count))
    caller = await memory.caller()
    memory.network.delay = lambda subject, data: 0.3
    sinks = [start(caller, instance, 20, reader)[0] for _ in range(3)]
    for sink in sinks:
        assert await sink.end() is None
        assert sink.items == list(range(20))
    memory.network.delay = None
    await memory.close()


async def test_a_worker_that_dies_is_known_within_two_seconds(memory: Any, reader: Any, until: Any) -> None:
    """It vanishes in mid-stream: one retryable error, a verdict, and other workers' streams go on."""
    dying, other = Holding(), Holding()
    _, instance = await memory.worker(dying)
    _, survivor = await memory.worker(other)
    caller = await memory.caller()
    verdicts: list[Any] = []
    caller.on_verdict(lambda key, verdict: verdicts.append((key, verdict)))
    sink, _ = start(caller, instance, None, reader)
    fine, _ = start(caller, survivor, None, reader)
    await until("the requests", lambda: dying.streams and other.streams)
    dying.streams[0].send("a")
    await asyncio.wait_for(sink.begun.wait(), 5)
    begin = time.monotonic()
    memory.buses[0].crash()
    error = await sink.end()
    assert (error.code, error.retryable, sink.items) == ("worker_lost", True, ["a"])
    assert time.monotonic() - begin < 2
    assert verdicts == [(instance, Verdict.DEAD)]
    other.streams[0].finish("b")
    assert (await fine.end(), fine.items) == (None, ["b"])
    await memory.close()


async def test_a_silent_worker_is_suspect_then_dead(
    memory: Any, reader: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither sends nor answers, but still listens: suspect, then dead, its streams retryable."""
    monkeypatch.setattr(inbox, "PING_TIMEOUT", 0.2)
    monkeypatch.setattr(inbox, "DEAD_AFTER", 1.0)
    monkeypatch.setattr(inbox, "DEAD_PING", 0.3)

    _, instance = await memory.worker(Holding())
    caller = await memory.caller()
    verdicts: list[Verdict] = []
    caller.on_verdict(lambda _, verdict: verdicts.append(verdict))
    sink, call = start(caller, instance, None, reader)
    await until("acceptance", lambda: call.accepted)
    memory.network.drop = lambda subject, data: ".in." in subject
    assert (await sink.end()).code == "worker_lost"
    assert verdicts == [Verdict.SILENT, Verdict.DEAD]
    memory.network.drop = None
    await until("it is found again", lambda: verdicts[-1] is Verdict.ALIVE)
    await memory.close()


async def test_requests_wait_for_a_bus_that_is_away(memory: Any, reader: Any, until: Any) -> None:
    """Opened during an outage: sent when the bus is back; the deadline still counts."""
    _, instance = await memory.worker(from_generator(count))
    caller = await memory.caller()
    bus = memory.buses[-1]
    bus.disconnect()
    sink, _ = start(caller, instance, 5, reader)
    late, _ = start(caller, instance, 5, reader, Context(deadline=time.monotonic() + 0.1))
    assert (await late.end()).code == "deadline"
    assert sink.ends == []
    bus.reconnect()
    assert (await sink.end(), sink.items) == (None, list(range(5)))
    await memory.close()


async def test_a_request_lost_in_an_outage_is_sent_again(memory: Any, reader: Any) -> None:
    """It left before the outage and never arrived; nobody accepted it, so it goes out again."""
    _, instance = await memory.worker(from_generator(count))
    caller = await memory.caller()
    memory.network.drop = Loss(".req")
    sink, _ = start(caller, instance, 5, reader)
    memory.buses[-1].disconnect()
    memory.buses[-1].reconnect()
    assert (await sink.end(), sink.items) == (None, list(range(5)))
    await memory.close()


async def test_after_a_reconnect_nobody_there_means_try_again(memory: Any, reader: Any, until: Any) -> None:
    """The worker's own reconnect comes a little after the client's: the request waits for it."""
    _, instance = await memory.worker(from_generator(count))
    caller = await memory.caller()
    worker_bus, client_bus = memory.buses
    worker_bus.disconnect()
    client_bus.disconnect()
    client_bus.reconnect()
    sink, _ = start(caller, instance, 5, reader)
    await asyncio.sleep(0.4)
    assert sink.ends == []
    worker_bus.reconnect()
    assert (await sink.end(), sink.items) == (None, list(range(5)))
    await memory.close()


async def test_streams_through_an_outage_end_cleanly(memory: Any, reader: Any) -> None:
    """What was produced meanwhile is lost, and that shows; nothing hangs, nothing is wrong."""

    async def slowly(request: Any) -> AsyncIterator[int]:
        for number in range(10**6):
            yield number
            await asyncio.sleep(0.005)

    _, instance = await memory.worker(from_generator(slowly))
    caller = await memory.caller()
    sink, _ = start(caller, instance, None, reader)
    await asyncio.wait_for(sink.begun.wait(), 5)
    worker_bus, client_bus = memory.buses
    worker_bus.disconnect()
    client_bus.disconnect()
    await asyncio.sleep(0.05)
    client_bus.reconnect()
    worker_bus.reconnect()
    error = await sink.end()
    assert (error.code, error.retryable) == ("incomplete", True)
    assert sink.items == list(range(len(sink.items)))
    await memory.close()


async def test_a_worker_that_leaves_in_an_outage_is_not_blamed_on_its_streams(
    memory: Any, reader: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was drained while the bus was away, say: the stream is incomplete, and nobody takes it for its murderer."""
    monkeypatch.setattr("dynamo.runtime.request_plane.caller.GRACE", 0.3)
    _, instance = await memory.worker(Holding())
    caller = await memory.caller()
    sink, call = start(caller, instance, None, reader)
    await until("acceptance", lambda: call.accepted)
    worker_bus, client_bus = memory.buses
    client_bus.disconnect()
    worker_bus.crash()
    client_bus.reconnect()
    error = await sink.end()
    assert (error.code, error.retryable) == ("incomplete", True)
    await memory.close()


async def test_a_bus_that_stays_away_ends_everything(memory: Any, reader: Any, until: Any, monkeypatch: Any) -> None:
    """Every wait has an end: open streams and held requests fail retryably."""
    monkeypatch.setattr(calling, "OUTAGE", 0.2)
    monkeypatch.setattr(calling, "HOLD", 0.4)

    _, instance = await memory.worker(Holding())
    caller = await memory.caller()
    sink, call = start(caller, instance, None, reader)
    await until("acceptance", lambda: call.accepted)
    memory.buses[-1].disconnect()
    held, _ = start(caller, instance, None, reader)
    for ended in (sink, held):
        assert (await ended.end()).code == "unreachable"
    assert sink.ended_at < held.ended_at
    await memory.close()


async def test_a_stalled_loop_of_ours_blames_nobody(memory: Any, reader: Any, until: Any) -> None:
    """The client's own loop is blocked for a second: no stream fails, no verdict is given."""
    holding = Holding()
    _, instance = await memory.worker(holding)
    caller = await memory.caller()
    verdicts: list[Any] = []
    caller.on_verdict(lambda *verdict: verdicts.append(verdict))
    sink, call = start(caller, instance, None, reader)
    await until("acceptance", lambda: call.accepted)
    time.sleep(1.2)  # noqa: ASYNC251 - the very thing that is tested
    await asyncio.sleep(0.5)
    assert sink.ends == []
    assert verdicts == []
    holding.streams[0].finish("x")
    assert await sink.end() is None
    await memory.close()


async def test_unknown_instances_are_forgotten(memory: Any, reader: Any) -> None:
    """Asking many instances that do not exist leaves nothing behind that grows for ever."""
    now = [100.0]
    caller = await memory.caller(clock=lambda: now[0])
    _, instance = await memory.worker(from_generator(count))
    for _ in range(20):
        sink, _ = start(caller, InstanceKey(instance.path, new_id()), 1, reader)
        await sink.end()
    here = caller._listening[memory.namespace]
    assert len(here.inboxes) == 20
    assert caller._ticking is not None
    for _ in range(700):
        now[0] += 0.1
        caller._ticking.cancel()
        caller._tick()
        await asyncio.sleep(0)
        if caller._ticking is None:
            break
    assert len(here.inboxes) == 0
    await memory.close()
