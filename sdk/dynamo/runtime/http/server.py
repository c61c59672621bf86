"""The HTTP server behind probes and figures: it answers them whoever else connects.

uvicorn parses; what it lacks is here. Connections are bounded, and one too many closes another that waits: a probe is
never the one turned away, since a process whose probes fail is restarted. Whatever a client may be late with (headers,
body, reading its answer, its next request) has a time limit that trickled bytes don't move, and a bound on its size.

`system_server.py` and the frontend's supervisor serve with it; `system_server.py` loads it when it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from dynamo.runtime.http.protocol import BoundedProtocol, Fault, Phase

START_LIMIT: Final = 10.0
STOP_LIMIT: Final = 3
_LINGER_SECONDS: Final = 1.0
_BACKLOG: Final = 1024

log = logging.getLogger(__name__)

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class ProbeLimits(NamedTuple):
    """Limits of one server. Times are in seconds and run from the beginning of what they bound, sizes in bytes."""

    connections: int = 128
    headers: float = 5.0
    body: float = 10.0
    keep_alive: float = 75.0
    """Longer than the usual minute between two readings of the figures."""
    stall: float = 10.0
    """That an answer may wait for a client that reads nothing."""
    head: int = 32 << 10
    whole: int = 2 << 20
    """Of a request as it is sent, with its headers, trailers and the frames of its chunks."""


class Held(NamedTuple):
    """A connection, as `victim` sees it."""

    address: str
    since: float
    """When it began, or had its last answer."""
    busy: bool
    """A request is being answered."""


def victim(held: Sequence[Held]) -> int:
    """Choose which connection makes room for a new one. Pure; `held` is not empty.

    One of the address that has most of them, so that no client can close another's; of those one that isn't being
    answered; of those the one that waits longest.
    """
    counts = Counter(connection.address for connection in held)
    return min(range(len(held)), key=lambda n: (-counts[held[n].address], held[n].busy, held[n].since))


class _Connection(BoundedProtocol):
    """One client connection."""

    def __init__(self, limits: ProbeLimits, **given: Any) -> None:
        super().__init__(limits, **given)
        self._limits = limits
        self._stalled: asyncio.TimerHandle | None = None
        self._since = 0.0

    @property
    def held(self) -> Held:
        return Held(self.client[0] if self.client else "", self._since, self._answering)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        others = [cast("_Connection", connection) for connection in self.connections]
        if len(others) >= self._limits.connections:
            others[victim([connection.held for connection in others])].cut()
        super().connection_made(transport)
        self._since = self.loop.time()
        self.expect(self._limits.headers, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self.expect_nothing()
        self._unstall()
        super().connection_lost(exc)

    def cut(self) -> None:
        """Close at once, unsent bytes or not; from now on it doesn't count."""
        self.connections.discard(self)
        self.transport.abort()

    def on_message_begin(self) -> None:
        if self.phase is not Phase.HEADERS:  # the first one's time runs since the connection began
            self.expect(self._limits.headers, self._late)
        super().on_message_begin()

    def begin_request(self) -> None:
        super().begin_request()
        self.expect(self._limits.body, self._late)

    def end_request(self) -> None:
        super().end_request()
        self._rest()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()
        if self.phase is Phase.IDLE:
            self._rest()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unstall()
        self._stalled = self.loop.call_later(self._limits.stall, self.cut)

    def resume_writing(self) -> None:
        self._unstall()
        super().resume_writing()

    def refuse(self, fault: Fault) -> None:
        match fault:
            case Fault.UNREADABLE:
                text = self.fault or "this can't be read as a request of HTTP/1.1"
            case Fault.UNKNOWN_METHOD:
                text = "the request's method is unknown here"
            case Fault.URL_TOO_LONG:
                text = f"the request's URL is too long: it and the headers are larger than {self._limits.head} bytes"
            case Fault.HEADERS_TOO_LARGE:
                text = f"the headers are larger than {self._limits.head} bytes"
            case Fault.TOO_LARGE:
                text = f"the request is larger than {self._limits.whole} bytes, or has too many trailers"
        self._refuse(fault.value, text)

    def _rest(self) -> None:
        """Rest: nothing is half received. An answer takes its time, the next request may come a while later."""
        if self._answering:
            self.expect_nothing()
        else:
            self.expect(self._limits.stall if self.transport.is_closing() else self._limits.keep_alive, self.cut)

    def _late(self) -> None:
        what = "headers" if self.phase is Phase.HEADERS else "body"
        self._refuse(408, f"the request's {what} did not arrive in time")

    def _refuse(self, status: int, text: str) -> None:
        """Say why and close, once the client has had a chance to read it; cut where an answer has begun already."""
        if self.transport.is_closing() or self.deaf:
            return
        begun = self._answering if self.phase is not Phase.BODY else self.cycle.response_started
        if begun:
            self.cut()
            return
        error = STATUS_LINE[status].decode().split(" ", 2)[2].strip()
        self.write_refusal(status, json.dumps({"error": error, "message": text}).encode())
        self.linger(_LINGER_SECONDS, self.cut)

    def _unstall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class ProbeServer:
    """Serves an ASGI app on a bound socket, in the loop that starts it."""

    def __init__(self, app: AsgiApp, limits: ProbeLimits | None = None) -> None:
        self._app, self._limits = app, limits or ProbeLimits()
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket) -> None:
        """Return once it listens."""
        listener.setblocking(False)
        listening = asyncio.Event()
        self._server = _Server(_config(self._app, self._limits), listening.set)
        self._task = asyncio.get_running_loop().create_task(self._server.serve([listener]), name="system server")
        async with asyncio.timeout(START_LIMIT):
            await listening.wait()

    async def stop(self) -> None:
        """Stop listening, let running answers end for a moment."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        try:
            async with asyncio.timeout(2 * STOP_LIMIT):
                await self._task
        except TimeoutError:
            log.warning("the system server did not close in time")


class _Server(uvicorn.Server):
    """Leaves the process's signals alone, and says when it listens."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: AsgiApp, limits: ProbeLimits) -> uvicorn.Config:
    def connection(**given: Any) -> _Connection:
        return _Connection(limits, **given)

    return uvicorn.Config(
        cast("Any", app),
        http=cast("Any", connection),
        interface="asgi3",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=STOP_LIMIT,
    )
