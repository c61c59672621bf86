"""The server behind probes, over real sockets: whoever else connects, a probe is answered."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.runtime.http.test_system_server import health
from tests.waiting import until

from dynamo.runtime.http.server import Held, ProbeLimits, victim
from dynamo.runtime.http.system_server import SystemServer
from dynamo.runtime.process import event_loop

PROBE = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
LONG = 60.0
FAST = ProbeLimits(headers=0.3, body=0.3, keep_alive=0.3, stall=0.3)
SLOW = ProbeLimits(headers=LONG, body=LONG, keep_alive=LONG, stall=LONG)


class Client:
    """One connection, from an address of one's choice."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def closed(self) -> bool:
        return self.reader.at_eof() or self.reader.exception() is not None

    async def ask(self, data: bytes = PROBE) -> tuple[int, bytes]:
        """Send, and read one answer."""
        self.writer.write(data)
        async with asyncio.timeout(20):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            return int(head.split()[1]), await self.reader.readexactly(length)


class Site:
    """A server and who has connected to it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: list[Client] = []

    async def client(self, address: str = "127.0.0.1") -> Client:
        made = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0), limit=1 << 24)
        self._clients.append(Client(*made))
        return self._clients[-1]

    async def probe(self, address: str = "127.0.0.1") -> int:
        status, _ = await (await self.client(address)).ask()
        return status

    async def close(self) -> None:
        for client in self._clients:
            client.writer.close()
        for client in self._clients:
            with contextlib.suppress(OSError):
                await client.writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(limits: ProbeLimits, **given: Any) -> AsyncIterator[Site]:
    server = SystemServer(health(), limits=limits, **given)
    site = Site(await server.start())
    try:
        yield site
    finally:
        await site.close()
        await server.stop()


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    """Programs of your own run on the standard library's loop, ours on uvloop's."""

    def on_loop(case: Any) -> None:
        if request.param == "uvloop":
            event_loop.run(case)
        else:
            asyncio.run(case)

    return on_loop


def test_who_makes_room() -> None:
    """Of the address that has most: first who isn't being answered, then who waits longest."""
    own, other = "10.0.0.1", "10.0.0.2"
    assert victim([Held(own, 1, False), Held(other, 2, False), Held(other, 3, False)]) == 1
    assert victim([Held(own, 1, True), Held(own, 3, False), Held(own, 2, False)]) == 2
    assert victim([Held(own, 2, True), Held(own, 1, True)]) == 1
    assert victim([Held(own, 1, False), Held(other, 2, True), Held(other, 3, True)]) == 1


def test_a_thousand_idle_connections_stop_no_probe(run: Any) -> None:
    """Past the bound the ones that wait longest are closed, and each probe is answered; the bound holds."""

    async def case() -> None:
        async with serving(SLOW._replace(connections=64)) as site:
            idle = []
            for number in range(1000):
                idle.append(await site.client())
                if number % 100 == 99:
                    idle[-1].writer.write(b"GET /health HTTP/1.1\r\nx-slow: ")
                    assert await site.probe() == 200
            await until("the oldest are closed", lambda: sum(not client.closed for client in idle) <= 64)
            assert not idle[-1].closed

    run(case())


def test_another_address_s_connections_are_safe(run: Any) -> None:
    """A flood closes its own connections, not the one that a scraper keeps."""

    async def case() -> None:
        async with serving(SLOW._replace(connections=16)) as site:
            scraper = await site.client("127.0.0.2")
            assert (await scraper.ask())[0] == 200
            for _ in range(100):
                await site.client("127.0.0.3")
            assert (await scraper.ask())[0] == 200

    run(case())


def test_a_call_that_runs_is_not_what_makes_room(run: Any) -> None:
    """A request that is being answered stays, idle connections of its address go."""

    async def case() -> None:
        go = asyncio.Event()

        async def slow(*_: Any) -> tuple[int, str, bytes]:
            await go.wait()
            return 200, "text/plain", b"done"

        async with serving(SLOW._replace(connections=8), trees={"/slow": slow}) as site:
            caller = await site.client()
            asked = asyncio.create_task(caller.ask(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"))
            for _ in range(20):
                assert await site.probe() == 200
            go.set()
            assert await asked == (200, b"done")

    run(case())


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"", b"headers did not arrive in time"),
        (b"GET /health HTTP/1.1\r\nhost: x\r\n", b"headers did not arrive in time"),
        (b"POST /tree HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n123", b"body did not arrive in time"),
    ],
)
def test_who_stops_in_the_middle_is_told_and_closed(run: Any, sent: bytes, says: bytes) -> None:
    """408, whether nothing came, half of the headers or half of a body."""

    async def tree(*_: Any) -> tuple[int, str, bytes]:
        raise AssertionError("it was never whole")

    async def case() -> None:
        async with serving(FAST, trees={"/tree": tree}) as site:
            client = await site.client()
            status, body = await client.ask(sent)
            assert status == 408
            assert says in body
            await until("closed", lambda: client.closed)

    run(case())


@pytest.mark.parametrize(
    ("head", "byte"),
    [
        (b"GET /health HTTP/1.1\r\nx-long: ", b"a"),
        (PROBE, b"\r\n"),
        (PROBE[:-2] + b"content-length: 100000\r\n\r\n", b"a"),
    ],
    ids=["headers", "between requests", "a body nobody wants"],
)
def test_trickled_bytes_move_no_time_limit(run: Any, head: bytes, byte: bytes) -> None:
    """A byte now and then keeps no connection open."""

    async def case() -> None:
        async with serving(FAST) as site:
            client = await site.client()
            client.writer.write(head)

            def trickles() -> bool:
                if not client.writer.is_closing():
                    client.writer.write(byte)
                return client.closed

            reading = asyncio.create_task(client.reader.read())
            await until("closed", lambda: trickles() or reading.done())
            with contextlib.suppress(OSError):
                await reading

    run(case())


def test_who_asks_nothing_more_is_closed(run: Any) -> None:
    """One connection serves several requests; idle for too long, it is closed."""

    async def case() -> None:
        async with serving(SLOW._replace(keep_alive=1.0)) as site:
            client = await site.client()
            for _ in range(3):
                assert (await client.ask())[0] == 200
            await until("closed", lambda: client.closed)

    run(case())


@pytest.mark.parametrize(
    ("head", "piece", "status"),
    [
        (b"GET /health HTTP/1.1\r\nx-long: ", b"a" * 1024, 431),
        (b"GET /", b"a" * 1024, 414),
        (b"GET /health HTTP/1.1\r\n", b"a: b\r\n" * 100, 431),
        (b"POST /tree HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 100, 413),
        (
            b"POST /tree HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
            b"1;%s\r\nx\r\n" % (b"e" * 1024),
            413,
        ),
    ],
    ids=["a header", "a path", "many headers", "trailers", "frames of chunks"],
)
def test_sizes_are_bounded(run: Any, head: bytes, piece: bytes, status: int) -> None:
    """What never ends is refused, whichever part of a request it is."""

    async def tree(*_: Any) -> tuple[int, str, bytes]:
        raise AssertionError("it was never whole")

    async def case() -> None:
        async with serving(SLOW, trees={"/tree": tree}) as site:
            client = await site.client()
            client.writer.write(head)
            answer = asyncio.create_task(client.ask(b""))
            sent = 0
            while not answer.done() and sent < 1 << 24:
                client.writer.write(piece)
                sent += len(piece)
                await asyncio.wait([answer], timeout=0)
                with contextlib.suppress(OSError):
                    await client.writer.drain()
            found, body = await answer
            assert found == status
            assert b"larger than" in body
            assert await site.probe() == 200

    run(case())


def test_who_reads_no_answers_is_cut(run: Any) -> None:
    """Answers that pile up wait for the limit and no longer; probes are answered meanwhile."""

    async def case() -> None:
        large = b"x" * 1_000_000
        async with serving(SLOW._replace(stall=0.3), routes={"/large": lambda: (200, "text/plain", large)}) as site:
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.connect(("127.0.0.1", site._port))
                deaf.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n" * 20)
                deaf.setblocking(False)
                assert await site.probe() == 200
                await until("cut", lambda: refused(deaf))
                assert await site.probe() == 200

    run(case())


def refused(sock: socket.socket) -> bool:
    """What is sent to a closed connection comes back as a reset; what was sent to us stays unread."""
    try:
        sock.send(b"\r\n")  # which is skipped between requests
    except OSError:
        return True
    return False


def test_garbage_is_400(run: Any) -> None:
    """What is no HTTP gets one sentence."""

    async def case() -> None:
        async with serving(SLOW) as site:
            for garbage in (b"\x16\x03\x01\x02\x00", b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n", b"NO\r\n\r\n"):
                assert (await (await site.client()).ask(garbage))[0] == 400

    run(case())


def test_an_offer_to_upgrade_loses_no_body_here_either(run: Any) -> None:
    """Answered in HTTP/1.1; a request without a host, or with two, is refused."""
    bodies: list[bytes] = []

    async def tree(_method: str, _path: str, _headers: Any, body: bytes) -> tuple[int, str, bytes]:
        bodies.append(body)
        return 200, "text/plain", b"ok"

    offer = b"upgrade: h2c\r\nconnection: upgrade\r\n"

    async def case() -> None:
        async with serving(SLOW, trees={"/tree": tree}) as site:
            asked = b"POST /tree HTTP/1.1\r\nhost: x\r\n" + offer + b"content-length: 3\r\n\r\nabc"
            assert (await (await site.client()).ask(asked + PROBE))[0] == 200
            for wrong in (b"GET /live HTTP/1.1\r\n\r\n", b"GET /live HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n"):
                assert (await (await site.client()).ask(wrong))[0] == 400
            assert await site.probe() == 200

    run(case())
    assert bodies == [b"abc"]
