"""The HTTP listener: accepts connections (`http/connection.py`), and has an ordered way out.

One that vanished without a word is given up (TCP keepalive), and `HttpServer.stop` goes on accepting for a while (with
`Connection: close`) before it waits for running requests. What has come to the kernel by then is answered, too.
`server.py` calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from functools import partial
from typing import Any, Final, cast

from uvicorn.config import Config

from dynamo.frontend.http.connection import LINGER_SECONDS, Connection
from dynamo.frontend.http.connection_shares import InWords, Limits, State
from dynamo.frontend.http.requests import identified
from dynamo.frontend.http.sockets import notice_silence
from dynamo.frontend.http.tls_listener import TlsListener, too_many
from dynamo.frontend.metrics import Metrics

AsgiApp = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
_LAST_WORDS_SECONDS: Final = 1.0
_BACKLOG: Final = 2048
_LOOK_SECONDS: Final = 0.05


class HttpServer:
    """Serves one ASGI app on already bound sockets; with `tls`, HTTPS on those of the network."""

    def __init__(
        self, app: AsgiApp, limits: Limits, metrics: Metrics | None = None, tls: ssl.SSLContext | None = None,
        in_words: InWords = identified,
    ) -> None:  # fmt: skip
        self._tls, self._state = tls, State(limits, metrics, in_words)
        self._config = Config(
            cast("Any", app), lifespan="off", log_config=None, access_log=False, server_header=False,
            timeout_keep_alive=cast("int", limits.keep_alive), ws="none", proxy_headers=False,
        )  # fmt: skip
        self._connection = partial(Connection, self._config, self._state)
        self._servers: list[asyncio.Server | TlsListener] = []
        self._plain: list[socket.socket] = []
        """Of them those that asyncio accepts on."""
        self._date: asyncio.TimerHandle | None = None

    async def start(self, sockets: list[socket.socket]) -> None:
        """Listen; requests are served when this returns."""
        self._config.load()
        loop = asyncio.get_running_loop()
        self._tick(loop)
        for sock in sockets:
            sock.setblocking(False)
            if sock.family == socket.AF_UNIX:
                server = await loop.create_unix_server(partial(self._connection, private=True), sock=sock)
            else:
                notice_silence(sock, self._state.limits.silence)
                if self._tls is not None:
                    self._greet(sock, self._tls)
                    continue
                server = await loop.create_server(self._connection, sock=sock, backlog=_BACKLOG)
                self._plain.append(sock)
            self._servers.append(server)

    def _greet(self, sock: socket.socket, tls: ssl.SSLContext) -> None:
        state = self._state
        listener = TlsListener(  # before and after TLS there is no `Connection`, and so no timer
            sock, tls, self._connection, full=lambda n: too_many(n, len(state.crowd), state.limits.connections),
            seconds=state.limits.headers, shutdown_seconds=LINGER_SECONDS,
            hit=state.metrics.hit, refused=state.metrics.rejected,
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
        await self._accept_rest()
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
        self._state.starts.clear()
        for server in self._servers:
            server.close()
        for connection in [*self._state.connections]:
            cast("Connection", connection).abort()
        if self._date is not None:
            self._date.cancel()

    async def settled(self, timeout: float = 2.0) -> None:
        """Wait until the tasks of cut connections have ended."""
        greeting = [task for listener in self._servers if isinstance(listener, TlsListener) for task in listener.tasks]
        if tasks := [*self._state.tasks, *greeting]:
            await asyncio.wait(tasks, timeout=timeout)

    @property
    def asked(self) -> float:
        """Return when the last request for a model came after `drain`, by the loop's clock.

        Minus infinity: none did.
        """
        return self._state.asked

    @property
    def running(self) -> int:
        """Count requests that are being answered, or wait for that."""
        return len(self._state.tasks) + len(self._state.starts)

    async def _idle(self, grace: float) -> bool:
        end = time.monotonic() + grace
        while (tasks := [*self._state.tasks]) or self._coming:
            left = end - time.monotonic()
            if left <= 0:
                return False
            if tasks:
                await asyncio.wait(tasks, timeout=left)
            else:
                await asyncio.sleep(min(left, _LOOK_SECONDS))
        return True

    @property
    def _coming(self) -> bool:
        """Tell whether a request is on its way in."""
        return bool(self._state.starts) or any(
            cast("Connection", connection).halfway for connection in [*self._state.connections]
        )

    async def _accept_rest(self) -> None:
        """Accept who has connected already: the kernel resets who waits there when a socket closes."""
        loop = asyncio.get_running_loop()
        for sock in self._plain:
            for _ in range(_BACKLOG):
                try:
                    client, _ = sock.accept()
                except OSError:  # nobody waits there any more
                    break
                client.setblocking(False)
                with contextlib.suppress(OSError):
                    await loop.connect_accepted_socket(self._connection, client)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        # HTTP wants a Date on every answer; making it once a second is what uvicorn does, too.
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]
        self._date = loop.call_later(1.0, self._tick, loop)
