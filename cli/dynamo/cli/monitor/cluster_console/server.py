"""Serves the page of a cluster to this machine, to whoever has the key of this run. It changes nothing there."""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

import msgspec
import uvicorn

from dynamo.cli.cluster.errors import ClusterError

LOOPBACK: Final = "127.0.0.1"
EVERY: Final = 2.0
QUIET: Final = 10.0
"""Seconds without news after which a viewer is told that the stream lives."""
LONGEST: Final = 3600.0
"""Seconds of one stream; the page begins another."""
MOST_VIEWERS: Final = 16
EVENTS: Final = "/console/events"
_SHARED: Final = "dynamo.frontend.console"
_FILES: Final = {
    "/": (__package__, "cluster.html", "text/html; charset=utf-8"),
    "/console/cluster.js": (__package__, "cluster.js", "text/javascript"),
    "/console/console.css": (_SHARED, "console.css", "text/css"),
    "/console/page.js": (_SHARED, "page.js", "text/javascript"),
    "/console/stream.js": (_SHARED, "stream.js", "text/javascript"),
}
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
Send = Callable[[Any], Any]


class ClusterConsole:
    """An ASGI application: the page without data, and the stream of what it shows."""

    def __init__(self, sample: Callable[[], bytes], key: str, port: int) -> None:
        self._sample, self._key = sample, key.encode()
        self._hosts = {f"{name}:{port}".encode() for name in (LOOPBACK, "localhost")}
        self._lock = asyncio.Lock()
        self._latest, self._taken = b"", -EVERY
        self._viewers = 0

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        if headers.get(b"host") not in self._hosts:  # a foreign page whose name leads here
            await _say(send, 421, "ask for this page by the address that dynamo console printed")
        elif scope["method"] not in (("GET",) if scope["path"] == EVENTS else ("GET", "HEAD")):
            await _say(send, 405, "this page only shows; use kubectl or dynamo apply to change something")
        elif scope["path"] in _FILES:
            package, name, kind = _FILES[scope["path"]]
            await _answer(send, 200, files(package).joinpath(name).read_bytes(), kind)
        elif scope["path"] != EVENTS:
            await _say(send, 404, "there is only the page itself, at /")
        elif not hmac.compare_digest(headers.get(b"authorization", b""), b"Bearer " + self._key):
            await _say(send, 401, "give the key that dynamo console printed after #key=")
        elif self._viewers >= MOST_VIEWERS:
            await _say(send, 503, f"{MOST_VIEWERS} pages are open already; close one")
        else:
            await self._stream(receive, send)

    async def _stream(self, receive: Any, send: Send) -> None:
        self._viewers += 1
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await _start(send, 200, "text/event-stream")
            await self._tell(send, gone)
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            self._viewers -= 1

    async def _tell(self, send: Send, gone: asyncio.Future[None]) -> None:
        """Send what is new, until the viewer is gone or its time is over."""
        began = told = time.monotonic()
        sent = b""
        while not gone.done() and time.monotonic() - began < LONGEST:
            piece = await self._snapshot()
            if piece != sent or time.monotonic() - told >= QUIET:
                body = b":\n\n" if piece == sent else b"data: " + piece + b"\n\n"
                await send({"type": "http.response.body", "body": body, "more_body": True})
                sent, told = piece, time.monotonic()
            await asyncio.wait({gone}, timeout=EVERY)

    async def _snapshot(self) -> bytes:
        """Return one that is at most as old as two looks are apart: all viewers share them."""
        async with self._lock:
            if time.monotonic() - self._taken >= EVERY / 2:
                self._latest = await asyncio.to_thread(self._sample)
                self._taken = time.monotonic()
            return self._latest


async def _until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, status: int, kind: str) -> None:
    headers = [*_HEADERS, (b"content-type", kind.encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _answer(send: Send, status: int, body: bytes, kind: str) -> None:
    await _start(send, status, kind)
    await send({"type": "http.response.body", "body": body})


async def _say(send: Send, status: int, text: str) -> None:
    await _answer(send, status, msgspec.json.encode({"error": {"message": text}}), "application/json")


def listen(port: int) -> socket.socket:
    """Open a port of this machine; raises `ClusterError` where it can't be."""
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise ClusterError(f"port {port} can't be opened: {error.strerror}: choose another with --port") from None


def serve(app: ClusterConsole, listener: socket.socket) -> None:
    """Serve until Ctrl-C."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", ws="none", server_header=False,
        limit_concurrency=4 * MOST_VIEWERS, timeout_keep_alive=5, timeout_graceful_shutdown=1,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])
