"""The HTTP listener: uvicorn's protocol with time limits, and an ordered way out.

uvicorn parses and frames; what it lacks is here: clients that send half a header or
stop in the middle of a body are answered 408 and closed, one that vanished without a word
is given up (TCP keepalive), connections are bounded, a refused body is not reset
under the client's feet, and `HttpServer.stop` goes on accepting for a while (with
`Connection: close`) before it waits for running requests. `server.py` calls it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from enum import Enum, auto
from typing import Any, Final, cast

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from dynamo.frontend.errors import ApiError, overloaded
from dynamo.frontend.metrics import Metrics
from dynamo.frontend.sockets import notice_silence
from dynamo.frontend.tls_listener import TlsListener, too_many

log = logging.getLogger(__name__)

AsgiApp = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
CONNECTION: Final = "dynamo.connection"
"""Key of the ASGI scope under which a route finds its `Connection`."""
_LINGER_SECONDS: Final = 2.0
_LAST_WORDS_SECONDS: Final = 1.0
_BACKLOG: Final = 2048
LARGEST_HEAD: Final = 64 << 10
_TRAILERS: Final = 256
"""Headers that may follow a body; nobody reads them."""
_CHUNK_HEADS: Final = tuple(b"%x\r\n" % size for size in range(1024))
"""What precedes a chunk of each size; events are mostly this short, and formatting costs more than the rest."""


class Limits(msgspec.Struct, frozen=True):
    """Time limits of one connection, in seconds."""

    headers: float = 10.0
    body: float = 30.0
    keep_alive: float = 75.0
    silence: float = 60.0
    """A client that acknowledges nothing, not even a probe, is given up after this."""
    connections: int | None = None
    """Not seconds: how many at once; None: as many as come."""
    head: int = LARGEST_HEAD
    """Bytes of the headers, and what one read brings beyond them."""
    whole: int | None = None
    """Bytes of a request as it is sent: body, trailers and the frames of its chunks; None: any number."""


CONNECTIONS_FULL: Final = "connections"
CLIENT_VANISHED: Final = "client_vanished"


class _Phase(Enum):
    """Which part of a request is being received."""

    IDLE = auto()
    HEADERS = auto()
    BODY = auto()


class _State(ServerState):
    """What all connections share, with the two facts that uvicorn's lacks."""

    def __init__(self, limits: Limits, metrics: Metrics | None) -> None:
        super().__init__()
        self.limits = limits
        self.metrics = metrics or Metrics()
        self.draining = False
        self.asked = -math.inf
        """When the last request for a model came since then, by the loop's clock; probes go on in any case."""


class _LingeringTransport:
    """What an answer is written to: `close` lets a client that still sends read it first, and writes can be held."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport, self._connection = transport, connection
        self.write: Callable[[bytes], object] = transport.write
        self.is_closing = transport.is_closing
        self._held = False
        self._close_due = False

    def hold(self) -> list[bytes]:
        """Collect what is written from now on."""
        held: list[bytes] = []
        self.write = held.append
        self._held = True
        return held

    def release(self, held: list[bytes]) -> None:
        """Write what was collected, at once; close where that was asked for meanwhile."""
        self.write = self._transport.write
        self._held = False
        if held:
            self._transport.write(b"".join(held))
        if self._close_due:
            self.close()

    def close(self) -> None:
        if self._held:
            self._close_due = True
        else:
            self._connection.close_gently()


class Connection(HttpToolsProtocol):
    """One client connection."""

    server_state: _State

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._gentle = _LingeringTransport(transport, self)
        # Head and first bytes of an answer leave in one segment: one system call, and no wait for an acknowledgement.
        self.hold, self.release = self._gentle.hold, self._gentle.release
        self._phase = _Phase.HEADERS
        self._received = 0  # of a request that did not come in one read
        self._lingering = False
        self._timer: asyncio.TimerHandle | None = None
        most = self.server_state.limits.connections
        if most is not None and len(self.connections) > most:
            self._turn_away(most)
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        if isinstance(exc, TimeoutError):  # what the kernel calls the end of its patience
            self.server_state.metrics.hit(CLIENT_VANISHED)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        if self._phase is not _Phase.IDLE:
            self._received += len(data)
        try:
            super().data_received(data)
        except Exception:  # httptools lets what its callbacks raise (a URL that can't be split) through
            log.debug("unreadable request", exc_info=True)
            self.send_400_response("")
        if not self._lingering and not self.transport.is_closing():
            self._watch()
            if self._phase is not _Phase.IDLE:
                self._measure()

    def on_message_begin(self) -> None:
        if self._phase is not _Phase.HEADERS:
            self._phase, self._received = _Phase.HEADERS, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._unwatch()
        self._phase = _Phase.BODY
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        self.headers = []  # trailers would become headers of the request, after whoever is in front of us set them
        self.cycle.transport = cast("asyncio.Transport", self._gentle)
        if self.server_state.draining:
            self.cycle.keep_alive = False
            if self.scope["method"] == "POST":
                self.server_state.asked = self.loop.time()

    def on_message_complete(self) -> None:
        self._phase = _Phase.IDLE
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._answering():
            self.transport.abort()
        else:
            self._refuse(ApiError(400, "This is not an HTTP/1.1 request.", code="bad_http"))

    def writer(self, send: Any) -> Callable[[bytes], bool]:
        """What writes one chunk of the answer that `send` belongs to, as `send` would, without a coroutine per token.

        An empty chunk would end the answer. It says False, and writes nothing, where the client has no room or
        the answer is not a chunked one.
        """
        cycle, flow, write = send.__self__, self.flow, self.transport.write

        def chunk(data: bytes) -> bool:
            if flow.write_paused or not cycle.chunked_encoding or cycle.response_complete or cycle.disconnected:
                return False
            size = len(data)
            head = _CHUNK_HEADS[size] if size < len(_CHUNK_HEADS) else b"%x\r\n" % size
            write(b"".join((head, data, b"\r\n")))
            return True

        return chunk

    def abort(self) -> None:
        """Cut the connection now, whatever is still unsent."""
        self.transport.abort()

    def close_gently(self) -> None:
        """Close once the client has had a chance to read the answer."""
        if not self.cycle.more_body or self.transport.is_closing():
            self.transport.close()
            return
        self._linger()

    def _linger(self) -> None:
        """Read on for a while: closing with unread input would reset the connection and take the answer with it."""
        self._lingering = True
        self._unwatch()
        self.flow.resume_reading()
        if self.transport.can_write_eof():  # not on TLS, which has no half of a connection
            self.transport.write_eof()
        self._timer = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _watch(self) -> None:
        """Keep a timer while a request is only half there; whole requests never make one."""
        limits = self.server_state.limits
        if self._phase is _Phase.IDLE and self.cycle.response_complete:
            self._phase, self._received = _Phase.HEADERS, 0  # empty lines: they come before a request, which is begun
        if self._phase is _Phase.HEADERS:
            if self._timer is None:
                self._timer = self.loop.call_later(limits.headers, self._late, "headers")
            return
        self._unwatch()
        if self._phase is _Phase.BODY:
            self._timer = self.loop.call_later(limits.body, self._late, "body")

    def _measure(self) -> None:
        """Refuse a request that doesn't end. What the route reads of a body has a bound of its own."""
        limits = self.server_state.limits
        if self._phase is _Phase.HEADERS:
            if self._received > limits.head:
                text = f"The request's headers are larger than {limits.head} bytes."
                self._reject(ApiError(431, text, code="headers_too_large"))
        elif len(self.headers) > _TRAILERS or (limits.whole is not None and self._received > limits.whole):
            text = "The request has more around its body than is taken: trailers, or chunks of a few bytes."
            self._reject(ApiError(413, text, code="request_too_large"))

    def _reject(self, error: ApiError) -> None:
        """Refuse a client that is still sending."""
        cycle = self.cycle
        if cycle is not None and (
            cycle.response_started if self._phase is _Phase.BODY else not cycle.response_complete
        ):
            self.transport.abort()  # an answer is on its way, which ours would be taken for
            return
        self._write(error)
        self._linger()

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _answering(self) -> bool:
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete

    def _late(self, what: str) -> None:
        self._timer = None
        self.server_state.metrics.hit(what)
        if self._answering():
            self.transport.abort()
        elif self._phase is _Phase.BODY and self.cycle.response_complete:
            self.transport.close()
        elif not self.transport.is_closing():
            self._refuse(ApiError(408, f"The request's {what} did not arrive in time.", code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        self._write(error)
        self.transport.close()

    def _turn_away(self, most: int) -> None:
        """One connection too many: tell it so, whatever it would ask."""
        self.server_state.metrics.refused(CONNECTIONS_FULL)
        text = f"this frontend has {most} connections already; try again in a moment."
        self._write(overloaded(text, CONNECTIONS_FULL))
        self._linger()

    def _write(self, error: ApiError) -> None:
        body = error.body()
        own = b"".join(b"%s: %s\r\n" % (name.encode(), value.encode()) for name, value in error.headers)
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + own + head + b"\r\n" + body)


class HttpServer:
    """Serves one ASGI app on already bound sockets; with `tls`, HTTPS on those of the network."""

    def __init__(
        self, app: AsgiApp, limits: Limits, metrics: Metrics | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._tls, self._state = tls, _State(limits, metrics)
        self._config = Config(
            cast("Any", app), lifespan="off", log_config=None, access_log=False, server_header=False,
            timeout_keep_alive=cast("int", limits.keep_alive), ws="none", proxy_headers=False,
        )  # fmt: skip
        self._servers: list[asyncio.Server | TlsListener] = []
        self._date: asyncio.TimerHandle | None = None

    async def start(self, sockets: list[socket.socket]) -> None:
        """Listen; requests are served when this returns."""
        self._config.load()
        loop = asyncio.get_running_loop()
        self._tick(loop)
        for sock in sockets:
            sock.setblocking(False)
            if sock.family == socket.AF_UNIX:
                server = await loop.create_unix_server(self._connection, sock=sock)
            else:
                notice_silence(sock, self._state.limits.silence)
                if self._tls is not None:
                    self._greet(sock, self._tls)
                    continue
                server = await loop.create_server(self._connection, sock=sock, backlog=_BACKLOG)
            self._servers.append(server)

    def _greet(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        state = self._state
        listener = TlsListener(  # before and after TLS there is no `Connection`, and so no timer
            sock, tls, self._connection, full=lambda n: too_many(n, len(state.connections), state.limits.connections),
            seconds=state.limits.headers, shutdown_seconds=_LINGER_SECONDS,
            hit=state.metrics.hit, refused=state.metrics.refused,
        )  # fmt: skip
        listener.start(_BACKLOG)
        self._servers.append(listener)

    def drain(self) -> None:
        """Go on accepting, but end each connection with its next answer."""
        self._state.draining = True

    async def stop(self, grace: float, give_up: Callable[[], None] = lambda: None) -> bool:
        """Stop accepting, let running requests end within `grace`; True where all did.

        The others are cut, after `give_up` has told them.
        """
        self.drain()
        for server in self._servers:
            server.close()
        for connection in [*self._state.connections]:
            connection.shutdown()
        ended = await self._idle(grace)
        if not ended:
            give_up()
            await self._idle(_LAST_WORDS_SECONDS)
        self.close()
        return ended

    def close(self) -> None:
        """Cut what is left."""
        for server in self._servers:
            server.close()
        for connection in [*self._state.connections]:
            cast("Connection", connection).abort()
        if self._date is not None:
            self._date.cancel()

    async def settled(self, timeout: float = 2.0) -> None:
        """Wait until the tasks of cut connections have ended."""
        greeting = [task for one in self._servers if isinstance(one, TlsListener) for task in one.tasks]
        if tasks := [*self._state.tasks, *greeting]:
            await asyncio.wait(tasks, timeout=timeout)

    @property
    def asked(self) -> float:
        """When the last request for a model came after `drain`, by the loop's clock; minus infinity: none did."""
        return self._state.asked

    @property
    def running(self) -> int:
        """Requests that are being answered."""
        return len(self._state.tasks)

    async def _idle(self, grace: float) -> bool:
        end = time.monotonic() + grace
        while tasks := [*self._state.tasks]:
            left = end - time.monotonic()
            if left <= 0:
                return False
            await asyncio.wait(tasks, timeout=left)
        return True

    def _connection(self) -> Connection:
        return Connection(self._config, self._state, {})

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        # HTTP wants a Date on every answer; making it once a second is what uvicorn does, too.
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]
        self._date = loop.call_later(1.0, self._tick, loop)
