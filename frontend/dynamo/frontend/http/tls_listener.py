"""Accepts TLS connections, and bounds those that have not shaken hands.

asyncio's own servers know a connection only once its handshake is done: a client that opens TCP and says nothing would
count nowhere, for as long as a handshake may take. `HttpServer` makes one for each socket that speaks TLS.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger(__name__)

SPARE: Final = 16
"""Handshakes that go on though there is no room, so that a client can be told so."""
HANDSHAKE: Final = "handshake"
_SHORT_OF: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS: Final = 1.0


def too_many(greeting: int, connections: int, most: int | None) -> bool:
    """Tell whether another handshake would be one too many beside `greeting` that are under way. Pure.

    They share what `most` leaves beside the connections.
    """
    return most is not None and greeting >= max(SPARE, most - connections)


class TlsListener:
    """One listening socket. A handshake has `seconds`; where there is no room for another, the oldest is cut."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, connection: Callable[[], asyncio.Protocol], *,
        full: Callable[[int], bool], seconds: float, shutdown_seconds: float,
        hit: Callable[[str], None], refused: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Listen; `full` hears how many handshakes are under way, `hit` and `refused` count what became of some."""
        self._sock, self._context, self._connection = sock, context, connection
        self._full, self._hit, self._refused = full, hit, refused
        self._seconds, self._shutdown_seconds = seconds, shutdown_seconds
        self._loop = asyncio.get_running_loop()
        self._greeting: OrderedDict[asyncio.Task[None], None] = OrderedDict()
        self.tasks: set[asyncio.Task[None]] = set()
        """Of handshakes, with those that were cut and have not ended."""
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self, backlog: int) -> None:
        self._sock.listen(backlog)
        self._go_on()

    def close(self) -> None:
        """Stop listening; who has not shaken hands has asked nothing, and is cut."""
        if self._closed:
            return
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()
        for task in self._greeting:
            task.cancel()

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        """Accept one at a time: the loop comes back while there are more."""
        try:
            client, _ = self._sock.accept()
        except OSError as error:  # nobody there any more, or too many files are open
            if error.errno in _SHORT_OF:
                log.error("no connection can be accepted for %g s: %s", _PAUSE_SECONDS, error.strerror)
                self._loop.remove_reader(self._sock)
                self._pause = self._loop.call_later(_PAUSE_SECONDS, self._go_on)
            return
        client.setblocking(False)
        while self._greeting and self._full(len(self._greeting)):
            oldest, _ = self._greeting.popitem(last=False)
            oldest.cancel()
            self._refused(HANDSHAKE)
        task = self._loop.create_task(self._greet(client))
        self._greeting[task] = None
        self.tasks.add(task)
        task.add_done_callback(self._greeted)

    async def _greet(self, client: socket.socket) -> None:
        options: dict[str, Any] = {
            "ssl_handshake_timeout": self._seconds, "ssl_shutdown_timeout": self._shutdown_seconds,
        }  # fmt: skip
        try:
            await self._loop.connect_accepted_socket(self._connection, client, ssl=self._context, **options)
        except ConnectionAbortedError:  # its time was over
            self._hit(HANDSHAKE)
        except OSError as error:
            log.debug("a handshake failed: %s", error)

    def _greeted(self, task: asyncio.Task[None]) -> None:
        self._greeting.pop(task, None)
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a TLS connection could not be taken", exc_info=error)
