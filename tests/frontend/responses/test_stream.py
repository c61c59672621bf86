"""`ResponseStream` and `BatchWriter` alone, against a scripted `send`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dynamo.frontend.responses.stream import (
    BUFFER_LIMIT,
    LOOKED_AFTER,
    TURN_SECONDS,
    BatchWriter,
    Headers,
    PlainWire,
    ResponseStream,
)


class Client:
    """An ASGI send that can be told to suspend."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.gate: asyncio.Event | None = None
        self.cut = self.held = 0
        self.was_cut = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        self.got.append(message)

    def hold(self) -> list[bytes]:
        self.held += 1
        return []

    def release(self, held: list[bytes]) -> None:
        self.held -= 1

    def opener(self, send: Any) -> Callable[[int, Headers, bytes, bool], bool]:
        return lambda status, headers, data, last: False

    def writer(self, send: Any) -> Callable[..., bool]:
        return lambda data, last=False: False

    def abort(self) -> None:
        self.cut += 1
        self.was_cut.set()

    def output(self, stall: float = 5.0) -> ResponseStream:
        return ResponseStream(self.send, self, stall_seconds=stall)

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.got)


def run(case: Callable[[Client], Any]) -> None:
    async def main() -> None:
        await case(Client())

    asyncio.run(main())


def test_writes_without_a_task_switch() -> None:
    """Where the client has room, head and body are written inside `flush`, all parts as one body."""

    async def case(client: Client) -> None:
        output = client.output()
        output.head(200, [(b"a", b"b")])
        output.append(b"x")
        output.append(b"y")
        assert client.got == []
        output.flush()
        assert [m["type"] for m in client.got] == ["http.response.start", "http.response.body"]
        assert client.got[1] == {"type": "http.response.body", "body": b"xy", "more_body": True}
        output.end()
        output.flush()
        assert client.got[2] == {"type": "http.response.body", "body": b"", "more_body": False}
        output.flush()
        assert len(client.got) == 3

    run(case)


async def test_parts_of_a_flowing_answer_skip_send() -> None:
    """Once started, parts and the end go through the connection's writer; `send` is for a slow client."""

    class Direct(Client):
        def __init__(self) -> None:
            super().__init__()
            self.direct: list[bytes] = []
            self.room = True

            self.ends = 0

        def writer(self, send: Any) -> Callable[..., bool]:
            def write(data: bytes, last: bool = False) -> bool:
                if self.room:
                    self.direct.append(data)
                    self.ends += last
                return self.room

            return write

    client = Direct()
    output = client.output()
    output.append(b"1")
    output.flush()
    for part in (b"2", b"3"):
        output.append(part)
        output.flush()
    output.flush()
    assert (client.direct, client.body) == ([b"2", b"3"], b"1")
    client.room = False
    output.append(b"4")
    output.flush()
    assert (client.direct, client.body, client.ends) == ([b"2", b"3"], b"14", 0)
    client.room = True
    output.append(b"5")
    output.end()
    output.flush()
    output.flush()
    assert (client.direct, client.body, client.ends) == ([b"2", b"3", b"5"], b"14", 1)


async def test_the_end_goes_through_send_where_the_writer_has_no_room() -> None:
    client = Client()
    output = client.output()
    output.append(b"1")
    output.flush()
    output.append(b"2")
    output.end()
    output.flush()
    assert client.body == b"12"
    assert client.got[-1]["more_body"] is False


def test_a_large_end_is_no_client_that_lags() -> None:
    """What an answer ends with may be more than a slow client may leave unread: nothing comes behind it."""

    async def case(client: Client) -> None:
        output = client.output()
        output.flush()
        client.gate = asyncio.Event()
        output.append(b"1")
        output.flush()
        output.append(b"x" * (BUFFER_LIMIT + 1))
        output.end()
        output.flush()
        assert client.cut == 0
        client.gate.set()
        await asyncio.sleep(0.05)
        assert len(client.body) == BUFFER_LIMIT + 2

    run(case)


def test_slow_client_gets_the_rest_merged() -> None:
    """While a write waits for the client, what comes is merged into the next one."""

    async def case(client: Client) -> None:
        output = client.output()
        output.flush()
        client.gate = asyncio.Event()
        for part in (b"1", b"2", b"3"):
            output.append(part)
            output.flush()
        await asyncio.sleep(0)
        assert client.body == b""
        output.end()
        client.gate.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert [m.get("body") for m in client.got[1:]] == [b"1", b"23"]
        assert client.got[-1]["more_body"] is False
        assert client.cut == 0

    run(case)


def test_slow_from_the_head_on() -> None:
    """A client that is slow before the first byte gets head and body in order."""

    async def case(client: Client) -> None:
        client.gate = asyncio.Event()
        output = client.output()
        output.append(b"a")
        output.end()
        output.flush()
        client.gate.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert [m["type"] for m in client.got] == ["http.response.start", "http.response.body"]
        assert client.body == b"a"

    run(case)


def test_buffer_is_bounded() -> None:
    """Past the limit the client is cut off and nothing is kept."""

    async def case(client: Client) -> None:
        client.gate = asyncio.Event()
        output = client.output()
        output.flush()
        for _ in range(5):
            output.append(b"x" * (BUFFER_LIMIT // 4 + 1))
            output.flush()
        assert client.cut >= 1
        await output.close()

    run(case)


def test_stall_is_bounded() -> None:
    """A client that takes nothing for too long is cut off."""

    async def case(client: Client) -> None:
        client.gate = asyncio.Event()
        output = client.output(stall=0.01)
        output.flush()
        await asyncio.wait_for(client.was_cut.wait(), 5)
        await output.close()

    run(case)


def test_close_gives_the_pending_write_up() -> None:
    """`close` leaves no task behind, whatever the client does."""

    async def case(client: Client) -> None:
        client.gate = asyncio.Event()
        output = client.output()
        output.flush()
        await output.close()
        assert len(asyncio.all_tasks()) == 1

    run(case)


def test_one_flush_per_client_and_batch() -> None:
    """However often a client is touched in a batch, it is flushed once; gaps are counted per batch."""

    class Meter:
        def __init__(self) -> None:
            self.gaps: list[tuple[float, int]] = []

        def gap(self, value: float, count: int) -> None:
            self.gaps.append((value, count))

    async def case(client: Client) -> None:
        pending: list[Callable[[], None]] = []
        now = [10.0]
        meter = Meter()
        writer = BatchWriter(pending.append, lambda: now[0])
        other = Client()
        outputs = [ResponseStream(c.send, c, stall_seconds=1, meter=meter) for c in (client, other)]
        for _ in range(2):
            for output in outputs:
                for _ in range(3):
                    output.append(b"t")
                    writer.touch(output)
            assert len(pending) == 1
            pending.pop()()
            now[0] += 0.5
        assert [m.get("body") for m in client.got] == [None, b"ttt", b"ttt"]
        assert meter.gaps == [(0.5, 2)]

    run(case)


def test_a_long_batch_is_written_in_turns() -> None:
    """Others have the loop after milliseconds; what comes meanwhile leaves with what waits, each once and whole."""

    async def case(client: Client) -> None:
        pending: list[Callable[[], None]] = []
        now = [0.0]

        def clock() -> float:
            now[0] += TURN_SECONDS * 0.7
            return now[0]

        writer = BatchWriter(pending.append, clock)
        clients = [Client() for _ in range(5 * LOOKED_AFTER)]
        outputs = [ResponseStream(c.send, c, stall_seconds=1) for c in clients]
        for output in outputs:
            output.append(b"a")
            writer.touch(output)
        turns = 0
        while pending:
            assert len(pending) == 1
            pending.pop()()
            turns += 1
            if turns == 1:
                written = sum(c.body == b"a" for c in clients)
                for output in (outputs[0], outputs[-1]):
                    output.append(b"b")
                    writer.touch(output)
        assert LOOKED_AFTER <= written < len(clients)
        assert turns >= 3
        assert {c.body for c in clients[1:-1]} == {b"a"}
        assert [clients[0].body, clients[-1].body] == [b"ab", b"ab"]

    run(case)


def test_one_broken_client_harms_no_other() -> None:
    """A send that raises cuts its own client off; the others get their bytes."""

    async def case(client: Client) -> None:
        async def broken(message: dict[str, Any]) -> None:
            raise RuntimeError("no")

        pending: list[Callable[[], None]] = []
        writer = BatchWriter(pending.append, lambda: 1.0)
        bad = ResponseStream(broken, Client(), stall_seconds=1)
        good = client.output()
        for output in (bad, good):
            output.append(b"t")
            writer.touch(output)
        pending.pop()()
        assert client.body == b"t"
        assert client.held == 0

    run(case)


def test_app_without_a_socket() -> None:
    """A caller of the app that has no connection to hold or cut is served the same."""

    async def case(client: Client) -> None:
        cut: list[int] = []
        for wire in (PlainWire(None), PlainWire(lambda: cut.append(1))):
            output = ResponseStream(client.send, wire, stall_seconds=1)
            output.append(b"x")
            output.flush()
            wire.abort()
        assert client.body == b"xx"
        assert cut == [1]

    run(case)
