"""What is not readable, not sendable or came before disturbs nobody else; over the memory bus."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.runtime.request_plane.streams import Holding, count, start

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.names import (
    control_subject,
    frame_subject,
    gone_subject,
    reply_subject,
    request_subject,
)
from dynamo.runtime.request_plane import chunks, peer
from dynamo.runtime.request_plane.server import Incoming, Typed, from_generator
from dynamo.runtime.request_plane.wire import FAILED, Chunk, Request, StepFrame, encoder
from dynamo.runtime.transport.bus import Message


async def test_the_same_request_twice_runs_once(memory: Any, reader: Any) -> None:
    """A repeated (client, stream) is dropped."""
    holding = Holding()
    server, instance = await memory.worker(holding)
    bus = await memory.bus()
    for _ in range(2):
        bus.publish(request_subject(instance), request_bytes())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(holding.streams) == 1
    assert server.active == 1
    await memory.close()


def request_bytes(version: int = 1, payload: bytes = b"\x01", client: int = 5, stream: int = 1) -> bytes:
    return encoder.encode(Request(version, client, stream, "r", 0, {}, msgspec.Raw(payload)))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "bad_request"),
        (b"\xc1\xff garbage", "bad_request"),
        (encoder.encode(["q", 1, "client"]), "bad_request"),
        (encoder.encode(["k", 5, 1, 7, 2, b"x"]), "bad_request"),
        (encoder.encode(["k", 5, 1, 0, 1, b"\xc1"]), "bad_request"),
        (encoder.encode(["q", 2, {"new": "shape"}]), "version"),
        (request_bytes(version=2), "version"),
        (request_bytes(payload=b"\xa1\xff"), "bad_request"),
    ],
    ids=["empty", "garbage", "wrong types", "wrong chunk", "chunk of garbage", "new shape", "new version", "not utf-8"],
)
async def test_garbage_requests_are_refused_in_words(
    memory: Any, reader: Any, until: Any, data: bytes, code: str
) -> None:
    """An unreadable request is answered where it says how, and disturbs nobody."""
    _, instance = await memory.worker(from_generator(count))
    caller = await memory.caller()
    bus = await memory.bus()
    answers: list[Message] = []
    await bus.subscribe("back", answers.append, lambda: None)
    good, _ = start(caller, instance, 50, reader)
    for _ in range(3):
        bus.publish(request_subject(instance), data, "back")
        bus.publish(request_subject(instance), data)
    await until("the answer", lambda: answers)
    assert code.encode() in answers[0].data
    assert await good.end() is None
    assert good.items == list(range(50))
    await memory.close()


class Wanted(msgspec.Struct):
    """What an endpoint of one type takes."""

    number: int


async def test_requests_of_one_type(memory: Any, reader: Any) -> None:
    """They come as objects of it; what doesn't fit is refused before a handler sees it."""
    seen: list[Any] = []

    def handle(incoming: Incoming) -> None:
        seen.append(incoming.payload)
        incoming.finish()

    _, instance = await memory.worker(Typed(Wanted, handle))
    caller = await memory.caller()
    good, _ = start(caller, instance, {"number": 7, "more": True}, reader)
    bad, _ = start(caller, instance, {"number": "seven"}, reader)
    assert await good.end() is None
    error = await bad.end()
    assert isinstance(error, InvalidArgument)
    assert "does not fit this endpoint" in error.message
    assert seen == [Wanted(7)]
    await memory.close()


def test_garbage_frames_are_counted_and_disturb_nobody(
    memory: Any, reader: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Unreadable frames, replies and control messages: counted, logged once, everything else goes on."""

    async def main() -> None:
        holding = Holding()
        server, instance = await memory.worker(holding)
        caller = await memory.caller()
        sink, call = start(caller, instance, None, reader)
        await until("acceptance", lambda: call.accepted)
        bus = await memory.bus()
        for data in (
            b"",
            b"\xc1",
            encoder.encode([1, 2, 3]),
            encoder.encode({"a": 1}),
            encoder.encode([1, "w", 1, [], []]),
        ):
            bus.publish(frame_subject(memory.namespace, caller._client), data)
            bus.publish(reply_subject(memory.namespace, caller._client, "c99"), data)
            bus.publish(reply_subject(memory.namespace, caller._client, 10**9), data)
            bus.publish(request_subject(instance).removesuffix("req") + "ctl", data)
            bus.publish(request_subject(instance).removesuffix("req") + "gone.zzz", data)
        bus.publish(frame_subject(memory.namespace, caller._client), encoder.encode(StepFrame(1, 999, 1, [1], [])))
        await until("the garbage", lambda: caller.garbage == 5 and server.garbage == 5)
        holding.streams[0].finish("fine")
        assert (await sink.end(), sink.items) == (None, ["fine"])
        await memory.close()

    asyncio.run(main())
    assert len([r for r in caplog.records if "unreadable" in r.message]) == 2


async def test_a_frame_of_another_version_fails_the_streams_there(memory: Any, reader: Any, until: Any) -> None:
    """A worker of another protocol version can't be followed: `version`, not silence."""
    server, instance = await memory.worker(Holding())
    caller = await memory.caller()
    sink, call = start(caller, instance, None, reader)
    await until("acceptance", lambda: call.accepted)
    frame = encoder.encode(StepFrame(9, instance.id, 2, [], []))
    (await memory.bus()).publish(frame_subject(memory.namespace, caller._client), frame)
    assert (await sink.end()).code == "version"
    await until("the worker is free", lambda: server.active == 0)
    await memory.close()


async def test_a_failure_without_a_shape(memory: Any, reader: Any, until: Any) -> None:
    """A worker that reports a failure in a wrong form still ends the stream in words."""
    holding = Holding()
    _, instance = await memory.worker(holding)
    sink, _ = start(await memory.caller(), instance, None, reader)
    await until("the request", lambda: holding.streams)
    incoming = holding.streams[0]
    incoming._end((incoming.stream, {"no": "shape"}, FAILED))
    assert (await sink.end()).code == "engine_error"
    await memory.close()


async def test_items_that_cannot_be_sent_end_their_stream_alone(memory: Any, reader: Any, until: Any) -> None:
    """An engine yields something that is no data: its own stream fails, the other one of the step does not."""
    holding = Holding()
    server, instance = await memory.worker(holding)
    caller = await memory.caller()
    bad, _ = start(caller, instance, 0, reader)
    good, _ = start(caller, instance, 1, reader)
    await until("the requests", lambda: len(holding.streams) == 2)
    holding.streams[0].send(object())
    holding.streams[1].finish("fine")
    error = await bad.end()
    assert error.code == "engine_error"
    assert "can't be sent" in error.message
    assert (await good.end(), good.items) == (None, ["fine"])
    assert server.active == 0
    await memory.close()


async def test_clients_that_are_made_up(memory: Any, reader: Any, until: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins a request and leaves it: few are remembered, their pieces go by the clock, others are answered."""
    monkeypatch.setattr(chunks, "PATIENCE", 0.2)
    monkeypatch.setattr(peer, "MOST_IDLE", 50)

    server, instance = await memory.worker(from_generator(count))
    bus = await memory.bus()
    for client in range(2000):
        bus.publish(request_subject(instance), encoder.encode(Chunk(client, 1, 0, 2, bytes(1000))))
    await until("they came", lambda: len(server._peers) == 50)
    assert server._peers._shelf.used <= 50 * (1000 + chunks.PIECE_BYTES)
    await until("their pieces are dropped", lambda: server._peers._shelf.used == 0)
    caller = await memory.caller()
    sink, _ = start(caller, instance, 20, reader)
    assert await sink.end() is None
    assert sink.items == list(range(20))
    await memory.close()


DEEP = b"\x91" * 100_000 + b"\xc0"
HOSTILE = [
    DEEP,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff\xc0",
    b"\xc6\xff\xff\xff\xff",
    b"\x97\xa1q\x01" + b"\xdd\xff\xff\xff\xf0" * 5,
    request_bytes(payload=DEEP),
    request_bytes(payload=b"\xdd\xff\xff\xff\xff"),
    encoder.encode(["q", 1, 1 << 63, 1 << 63, "x" * 100_000, 1 << 62, {}, 1]),
    encoder.encode(["q", 1, 5, 5, "r", -(1 << 60), {}, 1]),
    encoder.encode(["k", 5, 9, 0, 1 << 60, b"x"]),
    encoder.encode([1, 5, "cancel", list(range(100_000))]),
    encoder.encode([1, 5, "cancel", "all"]),
    encoder.encode([1, 5, "x" * 100_000, None]),
    encoder.encode([1, 1 << 70 >> 7, "ping"]),
    encoder.encode([1, 7, 1 << 62, list(range(10_000)), []]),
    encoder.encode([1, 7, 1, [1], [[1, {"a": [[[]]]}, 99]]]),
    encoder.encode([1, 7, 1, [], [[n, n] for n in range(10_000)]]),
]


async def test_hostile_bytes(memory: Any, reader: Any, until: Any) -> None:
    """Huge counts, deep nesting and wrong types on every subject: streams go on, and later ones are answered."""
    _, instance = await memory.worker(from_generator(count))
    caller = await memory.caller()
    bus = await memory.bus()
    good, _ = start(caller, instance, 300, reader)
    namespace = instance.path.namespace
    subjects = [
        request_subject(instance), control_subject(instance), gone_subject(instance, 1),
        frame_subject(namespace, caller._client), reply_subject(namespace, caller._client, "1"),
        reply_subject(namespace, caller._client, "c1"), reply_subject(namespace, caller._client, "nonsense"),
    ]  # fmt: skip
    for data in HOSTILE:
        for subject in subjects:
            if subject != reply_subject(namespace, caller._client, "1"):
                bus.publish(subject, data, "back")
        await asyncio.sleep(0)
    assert await good.end() is None
    assert good.items == list(range(300))
    sink, _ = start(caller, instance, 20, reader)
    assert await sink.end() is None
    await memory.close()


async def test_requests_with_an_id_that_is_no_id(memory: Any, until: Any) -> None:
    """It would be in every line of the log: one of bounded length is asked for."""
    server, instance = await memory.worker(from_generator(count))
    bus = await memory.bus()
    answers: list[Message] = []
    await bus.subscribe("back", answers.append, lambda: None)
    request = Request(1, 5, 1, "x" * 100_000, 0, {}, msgspec.Raw(b"\x01"))
    bus.publish(request_subject(instance), encoder.encode(request), "back")
    await until("the answer", lambda: answers)
    assert b"bad_request" in answers[0].data
    assert server.active == 0
    await memory.close()
