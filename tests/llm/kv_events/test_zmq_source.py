"""The ZMQ shell against real sockets that speak as vLLM's and SGLang's publishers do: PUB, and ROUTER for replays."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from dynamo.llm.kv.block_hash import block_hashes
from dynamo.llm.kv.messages import KvStep
from dynamo.llm.kv_events import zmq_source
from dynamo.llm.kv_events.engine_wire import END_OF_REPLAY, read_number, write_number
from dynamo.llm.kv_events.zmq_source import ZmqSource, rank_endpoint
from dynamo.runtime.errors import InvalidArgument

BLOCK = 4
WITHIN = 20.0


def payload(number: int, *, rank: int | None = None) -> bytes:
    """A batch with one block of its own."""
    return msgspec.msgpack.encode([1.0, [["BlockStored", [number], None, [number] * BLOCK, BLOCK, None, "GPU"]], rank])


def name(number: int) -> int:
    return block_hashes([number] * BLOCK, BLOCK)[0]


class Engine:
    """A publisher as the engines have it: numbers from 0, a buffer, answers that end with -1.

    `topic_in_replay`: newer vLLM and SGLang put the topic in front of a replayed message too.
    """

    def __init__(self, folder: Path, *, topic: str = "", topic_in_replay: bool = True, keeps: int = 10_000) -> None:
        self.topic, self.topic_in_replay = topic.encode(), topic_in_replay
        self.endpoint, self.replay_endpoint = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        self.context = zmq.asyncio.Context()
        self.pub, self.router = self.context.socket(zmq.XPUB), self.context.socket(zmq.ROUTER)
        self.pub.bind(self.endpoint)
        self.router.bind(self.replay_endpoint)
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=keeps)
        self.number = 0
        self.asked: list[int] = []
        self.silent = False
        self._answering = asyncio.get_running_loop().create_task(self._answer())

    async def subscribed(self) -> None:
        """Wait for a subscriber."""
        await asyncio.wait_for(self.pub.recv(), WITHIN)

    async def say(self, data: bytes, *, lose: bool = False) -> None:
        number, self.number = self.number, self.number + 1
        self.buffer.append((number, data))
        if not lose:
            await self.pub.send_multipart([self.topic, write_number(number), data])

    async def _answer(self) -> None:
        while True:
            client, empty, first = await self.router.recv_multipart()
            assert empty == b""
            self.asked.append(read_number(first))
            if self.silent:
                continue
            for number, data in list(self.buffer):
                if number >= read_number(first):
                    await self._reply(client, number, data)
            await self._reply(client, END_OF_REPLAY, b"", end=True)

    async def _reply(self, client: bytes, number: int, data: bytes, *, end: bool = False) -> None:
        topic = [b"" if end else self.topic] if self.topic_in_replay else []
        await self.router.send_multipart([client, b"", *topic, write_number(number), data])

    def close(self) -> None:
        self._answering.cancel()
        self.context.destroy(linger=0)


class Reader:
    """A source and what it told."""

    def __init__(self, engine: Engine, *, replays: bool = True, **options: Any) -> None:
        self.steps: list[KvStep] = []
        self.source = ZmqSource(
            engine.endpoint, self.steps.append, BLOCK, replay_endpoint=engine.replay_endpoint if replays else None,
            **options,
        )  # fmt: skip
        self.source.start()

    async def hears(self, *numbers: int) -> None:
        """Exactly these blocks, in this order."""
        wanted = [name(number) for number in numbers]
        try:
            async with asyncio.timeout(WITHIN):
                while self.stored() != wanted:  # noqa: ASYNC110 - a source sets no event
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"{self.stored()} instead of {wanted}") from None

    def stored(self) -> list[int]:
        return [block for step in self.steps for block in step.stored]


def play(case: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(case(), 60))


@contextlib.asynccontextmanager
async def pair(folder: Path, *, replays: bool = True, **engine_options: Any) -> AsyncIterator[tuple[Engine, Reader]]:
    engine = Engine(folder, **engine_options)
    reader = Reader(engine, replays=replays, topic=engine_options.get("topic", ""))
    try:
        await engine.subscribed()
        yield engine, reader
    finally:
        reader.source.stop()
        await asyncio.wait_for(reader.source.ended(), WITHIN)
        engine.close()


@pytest.mark.parametrize("topic_in_replay", [False, True], ids=["older", "newer"])
def test_gaps_are_filled_from_the_replay_socket(tmp_path: Path, topic_in_replay: bool) -> None:
    """What was said before anybody listened, and what was lost on the way; each once, in order."""

    async def case() -> None:
        engine = Engine(tmp_path, topic="kv", topic_in_replay=topic_in_replay)
        await engine.say(payload(1))
        await engine.say(payload(2))
        reader = Reader(engine, topic="kv")
        try:
            await engine.subscribed()
            await reader.hears(1, 2)
            await engine.say(payload(3))
            await engine.say(payload(4), lose=True)
            await engine.say(payload(5), lose=True)
            await engine.say(payload(6))
            await reader.hears(1, 2, 3, 4, 5, 6)
            assert engine.asked == [0, 3]
            assert (reader.source.stream.gaps, reader.source.unanswered) == (0, 0)
        finally:
            reader.source.stop()
            await reader.source.ended()
            engine.close()

    play(case)


def test_without_a_replay_socket_it_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And says once that something is missing."""

    async def case() -> None:
        async with pair(tmp_path, replays=False) as (engine, reader):
            for number in (1, 2, 3, 4, 5):
                await engine.say(payload(number), lose=number in (2, 4))
            await reader.hears(1, 3, 5)
            assert (reader.source.stream.gaps, engine.asked) == (2, [])

    play(case)
    assert sum("with a gap" in line for line in caplog.messages) == 1


def test_a_replay_that_reaches_not_far_enough(tmp_path: Path) -> None:
    """The engine keeps a few batches only: the rest counts as lost."""

    async def case() -> None:
        async with pair(tmp_path, keeps=2) as (engine, reader):
            for number in range(1, 6):
                await engine.say(payload(number), lose=number != 5)
            await reader.hears(4, 5)
            assert reader.source.stream.gaps == 1

    play(case)


def test_a_silent_replay_socket_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is given up, and what is wrong is said."""
    monkeypatch.setattr(zmq_source, "REPLAY_SECONDS", 0.05)

    async def case() -> None:
        engine = Engine(tmp_path)
        engine.silent = True
        reader = Reader(engine)
        try:
            await engine.subscribed()
            await engine.say(payload(1))
            await engine.say(payload(2), lose=True)
            await engine.say(payload(3))
            await reader.hears(1, 3)
            assert reader.source.unanswered == 2
        finally:
            reader.source.stop()
            await reader.source.ended()
            engine.close()

    play(case)
    assert sum("no replay: nothing came for 0.05 s" in line for line in caplog.messages) == 1


def test_a_restarted_engine_is_followed_again(tmp_path: Path) -> None:
    """Another process behind the same address: its numbers begin again, and its cache is empty."""

    async def case() -> None:
        async with pair(tmp_path) as (engine, reader):
            await engine.say(payload(1))
            await engine.say(payload(2))
            await reader.hears(1, 2)
            engine.number = 0
            engine.buffer.clear()
            await engine.say(payload(3))
            await reader.hears(1, 2, 3)
            assert [step.cleared for step in reader.steps] == [False, False, True, False]
            assert reader.source.stream.hashes() == {name(3)}

    play(case)


def test_what_is_no_event_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Wrong frames, wrong numbers, wrong bytes; events after them are read."""

    async def case() -> None:
        async with pair(tmp_path, replays=False) as (engine, reader):
            await engine.pub.send_multipart([b"", b"x"])
            await engine.pub.send_multipart([b"", b"123", payload(9)])
            await engine.say(b"\xc1")
            await engine.say(payload(1))
            await reader.hears(1)
            assert reader.source.stream.unreadable == 1

    play(case)
    assert sum("no KV event" in line for line in caplog.messages) == 1


def test_blocks_of_another_size_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def case() -> None:
        async with pair(tmp_path) as (engine, reader):
            await engine.say(msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [1] * 16, 16, None]]]))
            await engine.say(payload(2))
            await reader.hears(2)
            assert reader.source.stream.misfits == 1

    with caplog.at_level(logging.WARNING):
        play(case)
    assert any("another size" in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://*:5557", 0, "tcp://127.0.0.1:5557"), ("tcp://*:5557", 3, "tcp://127.0.0.1:5560"),
        ("tcp://10.0.0.7:5557", 1, "tcp://10.0.0.7:5558"), ("tcp://[::]:5557", 1, "tcp://[::1]:5558"),
        ("tcp://0.0.0.0:5557", 0, "tcp://127.0.0.1:5557"), ("ipc:///tmp/x", 0, "ipc:///tmp/x"),
    ],
)  # fmt: skip
def test_each_rank_has_a_port_of_its_own(endpoint: str, rank: int, expected: str) -> None:
    """vLLM's rule (`offset_endpoint_port`); what was bound to all addresses is found on this machine."""
    assert rank_endpoint(endpoint, rank) == expected


@pytest.mark.parametrize(
    "endpoint", ["", "5557", "tcp://5557", "http://a:1", "tcp://a:x", "tcp://a:65535", "tcp://:1", "ipc://x"]
)
def test_what_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidArgument, match=r"ZMQ address|host and a port"):
        rank_endpoint(endpoint, 1)


def test_without_pyzmq_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq.asyncio", None)
    with pytest.raises(InvalidArgument, match=r"\.\[zmq\]"):
        ZmqSource("tcp://127.0.0.1:5557", lambda step: None, BLOCK).start()
