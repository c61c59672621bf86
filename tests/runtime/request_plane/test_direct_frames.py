"""Frames beside the bus: they take the way that is there, and whoever wasn't told the secret gets nothing."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.runtime.request_plane.streams import Holding, count, start

from dynamo.runtime.names import new_id
from dynamo.runtime.request_plane import caller as caller_module
from dynamo.runtime.request_plane import direct_frames
from dynamo.runtime.request_plane.direct_frames import MOST_GREETING, DirectSender, worker_proof
from dynamo.runtime.request_plane.early_frames import ENOUGH
from dynamo.runtime.request_plane.peer import Peer, Peers
from dynamo.runtime.request_plane.server import from_generator
from dynamo.runtime.request_plane.wire import VERSION, Hello, Item, StepFrame, encoder
from dynamo.runtime.transport.local_stream import SHORT, FrameStream, Listener, ReadingTime, connect


async def linked(world: Any, reader: Any, until: Any, handler: Any) -> tuple[Any, Any, Any]:
    """Return a worker, its instance and a client to which it has a stream."""
    server, instance = await world.worker(handler, direct=True)
    caller = await world.caller(direct=True)
    _, call = start(caller, instance, 1, reader)
    await until("a stream", lambda: len(caller._direct) == 1 and len(server._direct) == 1)
    call.cancel()
    await until("the end", lambda: server.active == 0)
    return server, instance, caller


async def hung_up(stream: FrameStream, until: Any) -> bool:
    await until("the end of the connection", lambda: not stream.open)
    return True


async def test_frames_go_directly(memory: Any, reader: Any, until: Any) -> None:
    """Of a worker with a stream only the question whether its client still listens is on the bus."""
    server, instance, caller = await linked(memory, reader, until, from_generator(count))
    frames: list[str] = []
    publish = server._bus.publish

    def noting(subject: str, data: bytes, reply: str = "") -> None:
        if subject.endswith(".s") and not reply:
            frames.append(subject)
        publish(subject, data, reply)

    server._bus.publish = noting
    sinks = [start(caller, instance, 100 + n, reader)[0] for n in range(20)]
    assert [await sink.end() for sink in sinks] == [None] * 20
    assert [sink.items for sink in sinks] == [list(range(100 + n)) for n in range(20)]
    assert frames == []
    del server._bus.publish
    await memory.close()


@pytest.mark.parametrize(("client", "worker"), [(True, False), (False, True)])
async def test_one_side_alone_uses_the_bus(memory: Any, reader: Any, client: bool, worker: bool) -> None:
    """A program of an older version, or one that is told not to, is spoken to as before."""
    _, instance = await memory.worker(from_generator(count), direct=worker)
    caller = await memory.caller(direct=client)
    sink, _ = start(caller, instance, 50, reader)
    assert await sink.end() is None
    assert sink.items == list(range(50))
    await memory.close()


async def test_an_open_stream_survives_the_end_of_the_way(memory: Any, reader: Any, until: Any) -> None:
    """What is sent after the connection ended comes over the bus, under the next number."""
    holding = Holding()
    server, instance, caller = await linked(memory, reader, until, holding)
    sink, _ = start(caller, instance, 1, reader)
    await until("the request", lambda: len(holding.streams) == 2)
    incoming = holding.streams[1]
    incoming.send("directly")
    await until("an item", lambda: sink.items == ["directly"])
    caller._direct.hang_up(next(iter(caller._direct._links)))
    await until("both sides to know", lambda: len(caller._direct) == len(server._direct) == 0)
    incoming.send("over the bus")
    incoming.finish()
    assert await sink.end() is None
    assert sink.items == ["directly", "over the bus"]
    await memory.close()


async def test_streams_are_exact_or_fail_while_ways_come_and_go(
    memory: Any, reader: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are cut again and again under traffic: no item is lost, doubled or out of order."""

    async def slowly(request: int) -> AsyncIterator[int]:
        for number in range(request):
            yield number
            await asyncio.sleep(0.001)

    monkeypatch.setattr(direct_frames, "AGAIN", 0.0)
    server, instance, caller = await linked(memory, reader, until, from_generator(slowly))
    ends, links = set(), 0
    for _ in range(10):
        sinks = [start(caller, instance, 40, reader)[0] for _ in range(5)]
        await until("a first item", lambda s=sinks: all(sink.items for sink in s))
        links += len(caller._direct)
        for stream in tuple(server._direct._links):
            stream.abort()
        for sink in sinks:
            error = await sink.end()
            ends.add(None if error is None else error.code)
            assert sink.items == list(range(len(sink.items)))
            assert error is not None or len(sink.items) == 40
    assert links >= 5
    assert ends <= {None, "incomplete"}
    await memory.close()


async def test_thousands_of_frames_overtake_the_first(memory: Any, reader: Any, until: Any) -> None:
    """A bus that lags behind the stream costs nothing: the stream waits for it."""
    _, instance = await memory.worker(from_generator(count), direct=True)
    caller = await memory.caller(direct=True)
    memory.network.delay = lambda subject, _: 0.1 if subject.endswith(".s") else 0.0
    most = []
    receive = caller._on_direct_frame

    def noting(inbox: Any, data: bytes) -> None:
        receive(inbox, data)
        most.append(len(inbox.early.frames))

    caller._direct._on_frame = noting
    sink, _ = start(caller, instance, 5000, reader)
    assert await sink.end() is None
    assert sink.items == list(range(5000))
    assert max(most) == ENOUGH, "it was held up"
    await memory.close()


async def test_a_lost_frame_costs_no_stream_that_comes_later(memory: Any, reader: Any, until: Any) -> None:
    """The bus lost the first, and thousands behind it held the stream up: only who waited for it fails."""
    server, instance = await memory.worker(from_generator(count), direct=True)
    caller = await memory.caller(direct=True)
    memory.network.drop = lambda subject, _: subject.endswith(".s")
    first, _ = start(caller, instance, 5000, reader)
    await until("it is held up", lambda: any(inbox.early.held for inbox in caller._direct._links))
    later, _ = start(caller, instance, 50, reader)
    error = await first.end()
    assert error is not None
    assert error.code == "incomplete"
    assert await later.end() is None
    assert later.items == list(range(50))
    assert len(caller._direct) == len(server._direct) == 1
    await memory.close()


async def test_a_bus_that_stays_away_holds_no_stream_up(
    memory: Any, reader: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can't bring what is missing: after its time what came counts, and the worker's stream is read again."""
    monkeypatch.setattr(caller_module, "OUTAGE", 0.2)
    _, instance = await memory.worker(from_generator(count), direct=True)
    caller = await memory.caller(direct=True)
    memory.network.drop = lambda subject, _: subject.endswith(".s")
    sink, _ = start(caller, instance, 5000, reader)
    await until("it is held up", lambda: any(inbox.early.held for inbox in caller._direct._links))
    (inbox,) = caller._direct._links
    memory.buses[-1].disconnect()
    assert (await sink.end()).code == "incomplete"
    await until("it is read again", lambda: not inbox.early.held and inbox.early.since is None)
    await memory.close()


async def test_who_was_not_told_the_secret_gets_nothing(memory: Any, reader: Any, until: Any) -> None:
    """A wrong proof, another worker's name, a used secret, no hello: hung up on, and no frame is taken."""
    holding = Holding()
    _, instance = await memory.worker(holding)
    caller = await memory.caller(direct=True)
    sink, _ = start(caller, instance, 1, reader)
    await until("the request", lambda: len(holding.streams) == 1)
    direct = caller._direct
    (secret, _), name, worker = next(iter(direct._offers.values())), direct._name.hex(), instance.id
    false = StepFrame(VERSION, worker, 1, [1], [Item(1, "injected", 1)])
    for hello in (
        Hello(VERSION, worker, 0, worker_proof(b"x" * 16, worker, 0)),
        Hello(VERSION, worker + 1, 0, worker_proof(secret, worker + 1, 0)),
        Hello(VERSION, worker, 5, worker_proof(secret, worker, 0)),
        Hello(VERSION + 1, worker, 0, worker_proof(secret, worker, 0)),
        false,
    ):
        stream = await connect(name, 1024)
        stream.send(encoder.encode(hello))
        stream.send(encoder.encode(false))
        assert await hung_up(stream, until)
    right = encoder.encode(Hello(VERSION, worker, 0, worker_proof(secret, worker, 0)))
    first, second = await connect(name, 1024), await connect(name, 1024)
    first.send(right)
    await until("the stream", lambda: len(direct) == 1)
    second.send(right)
    assert await hung_up(second, until)
    other = StepFrame(VERSION, worker + 1, 1, [1], [Item(1, "injected", 1)])
    first.send(encoder.encode(other))
    assert await hung_up(first, until)
    assert (sink.items, sink.ends) == ([], [])
    await memory.close()


async def test_idle_and_greedy_connections_are_bounded(memory: Any, until: Any) -> None:
    """Of those that say nothing only some are kept, for a second; a huge frame ends its connection unread."""
    caller = await memory.caller(direct=True)
    direct = caller._direct
    greedy = await connect(direct._name.hex(), 1024)
    greedy.send(b"x" * 1000)
    assert await hung_up(greedy, until)
    streams = [await connect(direct._name.hex(), 1024) for _ in range(MOST_GREETING + 10)]
    await until("the surplus to be refused", lambda: sum(stream.open for stream in streams) == MOST_GREETING)
    await until("the others to be given up", lambda: not any(stream.open for stream in streams))
    assert not direct._greeting
    await memory.close()


async def test_an_offer_that_leads_nowhere_costs_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker elsewhere tries, remembers that it failed, and doesn't try with each request."""
    attempts: list[str] = []

    async def attempt(name: str, most: int) -> FrameStream:
        attempts.append(name)
        return await connect(name, most)

    monkeypatch.setattr(direct_frames, "connect", attempt)
    now = [100.0]
    sender, peer = DirectSender(lambda: now[0]), Peer("n", 5, 7, 0.0)
    for _ in range(10):
        sender.take_up(peer, os.urandom(32))
        await asyncio.sleep(0)
    await sender._tasks.ended()
    assert (len(attempts), peer.link) == (1, None)
    now[0] += direct_frames.AGAIN
    sender.take_up(peer, os.urandom(32))
    await sender._tasks.ended()
    assert len(attempts) == 2
    sender.take_up(Peer("n", 6, 7, 0.0), b"of another form")
    assert len(attempts) == 2


async def test_who_answers_without_the_secret_gets_no_frames(until: Any) -> None:
    """A process that took the client's name can't make a worker send to it."""
    name = os.urandom(16)
    heard: list[bytes] = []

    def answer(stream: FrameStream, data: bytes) -> None:
        heard.append(data)
        stream.send(b"p" * 32)

    def pretend(stream: FrameStream) -> None:
        stream.on_frame = functools.partial(answer, stream)

    listener = await Listener.at(name.hex(), 1024, pretend)
    sender, peer = DirectSender(lambda: 100.0), Peer("n", 5, 7, 0.0)
    secret = os.urandom(16)
    sender.take_up(peer, name + secret)
    await sender._tasks.ended()
    assert (peer.link, len(sender)) == (None, 0)
    assert len(heard) == 1
    assert secret not in heard[0]
    listener.close()


async def test_a_client_that_restarts_gets_a_stream_again(memory: Any, reader: Any, until: Any) -> None:
    """The worker sees the old one's end, and connects to the new one."""
    server, instance, caller = await linked(memory, reader, until, from_generator(count))
    await caller.stop()
    await until("the end of the old stream", lambda: len(server._direct) == 0)
    again = await memory.caller(direct=True)
    sink, _ = start(again, instance, 30, reader)
    assert await sink.end() is None
    await until("a stream to the new one", lambda: len(server._direct) == len(again._direct) == 1)
    await memory.close()


def test_a_forgotten_client_is_hung_up_on() -> None:
    """Its frames would be counted from 1 again, which only the bus's clients expect."""

    class Link:
        closed = False

        def send(self, frame: bytes) -> bool:
            return not self.closed

        def close(self) -> None:
            self.closed = True

    peers = Peers()
    peer = peers.of("n", new_id(), 7, 0.0)
    peer.link = link = Link()
    peers.prune(1000.0)
    assert link.closed
    assert peer.forgotten
    assert len(peers) == 0


async def test_a_reader_that_stands_still_is_hung_up_on(until: Any) -> None:
    """What it leaves unread has a bound; then the frame goes another way."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    _, stream = await asyncio.get_running_loop().create_unix_connection(lambda: FrameStream(1024), sock=ours)
    stream.most_unsent = 256 * 1024
    sent = 0
    while stream.send(b"x" * 10_000):
        sent += 1
        assert sent < 1000
    assert await hung_up(stream, until)
    theirs.close()


async def test_frames_arrive_whatever_their_cut(until: Any) -> None:
    """Frames in many pieces, several in one piece, an empty one and a large one come whole and in order."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    got: list[bytes] = []
    _, stream = await asyncio.get_running_loop().create_unix_connection(lambda: FrameStream(2**20), sock=ours)
    stream.on_frame = got.append
    frames = [b"", b"a", os.urandom(300_000), b"b" * 255, b""]
    data = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    for cut in (1, 2, 3, 5, 7):
        theirs.sendall(data[: cut * 2])
        await asyncio.sleep(0)
        await asyncio.to_thread(theirs.sendall, data[cut * 2 :])
        await until("all frames", lambda c=cut: len(got) == len(frames))
        assert got == frames
        got.clear()
    stream.close()
    theirs.close()


async def test_much_that_comes_at_once_is_read_in_turns(until: Any) -> None:
    """Frames of many workers share a few milliseconds of each turn; each stream's stay in order, and none is lost."""
    reading, read, opened = ReadingTime(0.003, time.monotonic), list[tuple[int, int]](), list[FrameStream]()

    def take(stream: int, frame: bytes) -> None:
        time.sleep(0.001)
        read.append((stream, int(frame)))

    def on_open(stream: FrameStream) -> None:
        stream.reading = reading
        stream.on_frame = functools.partial(take, len(opened))
        opened.append(stream)

    name = os.urandom(16).hex()
    listener = await Listener.at(name, 1 << 16, on_open)
    senders = [await connect(name, 1 << 16) for _ in range(4)]
    await until("all are open", lambda: len(opened) == len(senders))
    for number in range(25):
        for sender in senders:
            assert sender.send(b"%02000d" % number)
    turns = 0
    while len(read) < 100:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 100 / 4 / 2, "a turn has three of them, and the one that is over the time"
    for stream in range(4):
        assert [number for of, number in read if of == stream] == list(range(25))
    for sender in senders:
        sender.close()
    await until("all have ended", lambda: not any(stream.open for stream in opened))
    listener.close()


async def test_a_short_frame_does_not_wait_behind_long_ones(until: Any) -> None:
    """The first token of a request comes while forty engines' steps wait for their turns."""
    reading, read, opened = ReadingTime(0.004, time.monotonic), list[int](), list[FrameStream]()

    def take(frame: bytes) -> None:
        time.sleep(0.001)
        read.append(len(frame))

    def on_open(stream: FrameStream) -> None:
        stream.reading, stream.on_frame = reading, take
        opened.append(stream)

    name = os.urandom(16).hex()
    listener = await Listener.at(name, 1 << 16, on_open)
    *engines, one = [await connect(name, 1 << 16) for _ in range(9)]
    await until("all are open", lambda: len(opened) == 9)
    for engine in engines:
        for _ in range(10):
            assert engine.send(bytes(SHORT + 1))
    await until("the first ones are read", lambda: len(read) >= 4)
    assert one.send(b"token")
    await until("all are read", lambda: len(read) == 81)
    assert read.index(5) <= 24, "some turns later at most, of twenty"
    for sender in (*engines, one):
        sender.close()
    await until("all have ended", lambda: not any(stream.open for stream in opened))
    listener.close()
