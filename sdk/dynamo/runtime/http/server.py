"""The HTTP server behind probes and figures: it answers them whoever else connects.

uvicorn parses; what it lacks is here. Connections are bounded, and one too many closes another that waits: a probe is
never the one turned away, since a process whose probes fail is restarted. Whatever a client may be late with (headers,
body, reading its answer, its next request) has a time limit that trickled bytes don't move, and a bound on its size.

`system.py` and the frontend's supervisor serve with it; `system.py` loads it when it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

START_LIMIT: Final = 10.0
STOP_LIMIT: Final = 3
_LINGER_SECONDS: Final = 1.0
_BACKLOG: Final = 1024
_TRAILERS: Final = 256
"""Headers that may follow a body; nobody reads them."""

log = logging.getLogger(__name__)

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class ProbeLimits(NamedTuple):
    """What one server takes. Times are in seconds and run from the beginning of what they bound, sizes in bytes."""

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
    """Which connection makes room for a new one. Pure; `held` is not empty.

    One of the address that has most of them, so that no client can close another's; of those one that isn't being
    answered; of those the one that waits longest.
    """
    counts = Counter(one.address for one in held)
    return min(range(len(held)), key=lambda n: (-counts[held[n].address], held[n].busy, held[n].since))


class _Phase(Enum):
    """Which part of a request is being received; WHOLE: none."""

    HEADERS = auto()
    BODY = auto()
    WHOLE = auto()


class _Connection(HttpToolsProtocol):
    """One client connection."""

    def __init__(self, limits: ProbeLimits, **given: Any) -> None:
        super().__init__(**given)
        self._limits, self._phase, self._received = limits, _Phase.HEADERS, 0
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._refused = False
        self._since = 0.0

    @property
    def held(self) -> Held:
        return Held(self.client[0] if self.client else "", self._since, self._answering)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        others = [cast("_Connection", one) for one in self.connections]
        if len(others) >= self._limits.connections:
            others[victim([one.held for one in others])].cut()
        super().connection_made(transport)
        self._since = self.loop.time()
        self._expect(self._limits.headers)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        self._unstall()
        super().connection_lost(exc)

    def cut(self) -> None:
        """Close at once, unsent bytes or not; from now on it doesn't count."""
        self.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._phase is not _Phase.WHOLE:
            self._received += len(data)
        try:
            super().data_received(data)
        except Exception:  # httptools lets what its callbacks raise (a URL that can't be split) through
            log.debug("unreadable request", exc_info=True)
            self.send_400_response("This is not an HTTP/1.1 request.")
        if self._phase is _Phase.HEADERS and self._received > self._limits.head:
            self._refuse(431, f"the headers are larger than {self._limits.head} bytes")
        elif self._phase is _Phase.BODY and (self._received > self._limits.whole or len(self.headers) > _TRAILERS):
            self._refuse(413, f"the request is larger than {self._limits.whole} bytes, or has too many trailers")

    def on_message_begin(self) -> None:
        if self._phase is not _Phase.HEADERS:  # the first one's time runs since the connection began
            self._phase, self._received = _Phase.HEADERS, 0
            self._expect(self._limits.headers)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.headers = []  # trailers would become headers of the request
        self._phase = _Phase.BODY
        self._expect(self._limits.body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._phase = _Phase.WHOLE
        self._rest()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()
        if self._phase is _Phase.WHOLE:
            self._rest()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unstall()
        self._stalled = self.loop.call_later(self._limits.stall, self.cut)

    def resume_writing(self) -> None:
        self._unstall()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _rest(self) -> None:
        """Nothing is half received: an answer takes its time, the next request may come a while later."""
        if self._answering:
            self._expect(None)
        else:
            self._expect(self._limits.stall if self.transport.is_closing() else self._limits.keep_alive, self.cut)

    def _expect(self, seconds: float | None, late: Callable[[], None] | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, late or self._late)

    def _late(self) -> None:
        what = "headers" if self._phase is _Phase.HEADERS else "body"
        self._refuse(408, f"the request's {what} did not arrive in time")

    def _refuse(self, status: int, text: str) -> None:
        """Say why and close, once the client has had a chance to read it; cut where an answer has begun already."""
        if self.transport.is_closing() or self._refused:
            return
        begun = self._answering if self._phase is not _Phase.BODY else self.cycle.response_started
        if begun:
            self.cut()
            return
        self._refused = True
        body = json.dumps({"error": STATUS_LINE[status].decode().split(" ", 2)[2].strip(), "message": text}).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.flow.resume_reading()  # closing with unread input would reset the connection and take the answer with it
        self.transport.write_eof()
        self._expect(_LINGER_SECONDS, self.cut)

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
