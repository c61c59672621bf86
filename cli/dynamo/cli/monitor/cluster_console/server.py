"""Serves the page of a cluster to this machine, to whoever has the key of this run. It changes nothing there.

By uvicorn alone: the extra `cluster` brings no web framework, and there are one stream and some files.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import threading
import time
from collections.abc import Callable
from importlib.resources import files
from types import FrameType
from typing import Any, Final

import msgspec
import uvicorn

from dynamo.cli.cluster.errors import ClusterError
from dynamo.frontend.console.paths import EVENTS, POLICY, STYLE

LOOPBACK: Final = "127.0.0.1"
EVERY: Final = 2.0
QUIET: Final = 10.0
"""Seconds without news after which a viewer is told that the stream lives."""
LONGEST: Final = 3600.0
"""Seconds of one stream; the page begins another."""
MOST_VIEWERS: Final = 16
_SHARED: Final = "dynamo.frontend.console"
_FILES: Final = {
    "/": (__package__, "cluster.html", "text/html; charset=utf-8"),
    "/console/cluster.js": (__package__, "cluster.js", "text/javascript"),
    "/console/cluster.css": (__package__, "cluster.css", "text/css"),
    STYLE: (_SHARED, "console.css", "text/css"),
    "/console/page.js": (_SHARED, "page.js", "text/javascript"),
    "/console/stream.js": (_SHARED, "stream.js", "text/javascript"),
}
_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
_ALIVE: Final = b":\n\n"
Send = Callable[[Any], Any]


class ClusterConsole:
    """An ASGI application: the page without data, and the stream of what it shows."""

    def __init__(self, sample: Callable[[], bytes], key: str, port: int) -> None:
        self._sample, self._key = sample, key.encode()
        names = (LOOPBACK, "localhost")
        self._hosts = {f"{name}:{port}".encode() for name in names} | (
            {n.encode() for n in names} if port == 80 else set()
        )
        self._leaving = asyncio.Event()
        self.on_viewer: Callable[[], None] = lambda: None
        """Called for each viewer who has the key."""
        self._look: asyncio.Future[bytes] | None = None
        self._began = 0.0
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

    def leave(self) -> None:
        """End all streams."""
        self._leaving.set()

    async def _stream(self, receive: Any, send: Send) -> None:
        self._viewers += 1
        self.on_viewer()
        ends: set[asyncio.Future[Any]] = {asyncio.ensure_future(_until_gone(receive))}
        ends.add(asyncio.ensure_future(self._leaving.wait()))
        try:
            await _start(send, 200, "text/event-stream")
            await self._tell(send, ends)
            await send({"type": "http.response.body", "body": b""})
        finally:
            for end in ends:
                end.cancel()
            self._viewers -= 1

    async def _tell(self, send: Send, ends: set[asyncio.Future[Any]]) -> None:
        """Send what is new, until the viewer is gone, we leave, or its time is over."""
        began = told = time.monotonic()
        sent = b""
        while time.monotonic() - began < LONGEST:
            look = self._shared_look()
            while not look.done():
                done, _ = await asyncio.wait({look, *ends}, timeout=QUIET, return_when=asyncio.FIRST_COMPLETED)
                if done - {look}:
                    return
                if not done:
                    await _piece(send, _ALIVE)
            piece = look.result()
            if piece != sent or time.monotonic() - told >= QUIET:
                await _piece(send, _ALIVE if piece == sent else b"data: " + piece + b"\n\n")
                sent, told = piece, time.monotonic()
            if (await asyncio.wait(ends, timeout=EVERY, return_when=asyncio.FIRST_COMPLETED))[0]:
                return

    def _shared_look(self) -> asyncio.Future[bytes]:
        """Return a look that is at most as old as two are apart: all viewers share it, and none ends it."""
        if self._look is None or (self._look.done() and time.monotonic() - self._began >= EVERY / 2):
            self._look, self._began = _in_thread(self._sample), time.monotonic()
        return self._look


def _in_thread(function: Callable[[], bytes]) -> asyncio.Future[bytes]:
    """Run a function in a thread that nobody waits for at the end of the process."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[bytes] = loop.create_future()

    def settle(value: bytes, error: Exception | None) -> None:
        if not result.done():
            result.set_result(value) if error is None else result.set_exception(error)

    def run() -> None:
        value, problem = b"", None
        try:
            value = function()
        except Exception as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=run, name="look", daemon=True).start()
    return result


async def _piece(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


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
    _Server(config, app).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends the streams before it waits for them."""

    def __init__(self, config: uvicorn.Config, app: ClusterConsole) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the streams on a signal, and then the server."""
        self._app.leave()
        super().handle_exit(sig, frame)
