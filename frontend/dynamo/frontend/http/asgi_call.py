"""One request to the route of /v1/completions, made in this process.

So a request over gRPC has all that one over HTTP has: bounds, time limits, routing, migration, figures, traces. Its
answer comes as it would go to a socket, and a writer that has to wait holds back the answer as a slow socket does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from dynamo.frontend.http.connection import CONNECTION
from dynamo.frontend.http.requests import MAX_TIMEOUT_MS, TIMEOUT_HEADER

PATH: Final = "/v1/completions"
_PEER: Final = re.compile(r"ipv[46]:\[?(?P<host>[^\]]*?)\]?:(?P<port>\d+)")
_OF_TRANSPORT: Final = ("grpc-", "content-", "host", "te", "accept")
"""Beginnings of names that say something of the gRPC call itself."""
Take = Callable[[bytes], Awaitable[None]]


class Exchange:
    """One call of the application without a socket; `take` gets the pieces of a good answer, else they are kept."""

    def __init__(self, body: bytes, take: Take | None = None) -> None:
        self._body: bytes | None = body
        self._take = take
        self._over = asyncio.Event()
        self._gone = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.content = bytearray()
        """Of a whole answer, or of an error."""
        self.cut = False
        """The route gave up on this client, which reads too slowly."""

    async def receive(self) -> dict[str, Any]:
        """Return ASGI's messages: the body, and then the end of the connection."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Take ASGI's messages: the head, then pieces."""
        if self._gone:
            return
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
            return
        if self._take is None or self.status != 200:
            self.content += message.get("body", b"")
        elif body := message.get("body", b""):
            await self._take(body)
        if not message.get("more_body"):
            self._over.set()

    def abort(self) -> None:
        """Cut the connection, as the route asks."""
        self.cut = True
        self._over.set()

    def leave(self) -> None:
        """Leave: the client is gone, the route sees a disconnect, and frees the engine."""
        self._gone = True
        self._over.set()

    def scope(self, metadata: Iterable[tuple[str, Any]], peer: str, request_id: str, seconds: float | None) -> Any:
        """Return ASGI's scope, with the metadata of the call as headers, and its time limit."""
        headers = {
            name: value.encode() if isinstance(value, str) else bytes(value)
            for name, value in metadata
            if not name.startswith(_OF_TRANSPORT) and not name.endswith("-bin")
        }
        if request_id:
            headers.setdefault("x-request-id", request_id.encode())
        if seconds is not None:
            headers[TIMEOUT_HEADER] = b"%d" % _milliseconds(seconds, headers.get(TIMEOUT_HEADER))
        client = (match["host"], int(match["port"])) if (match := _PEER.fullmatch(peer)) else None
        return {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "2", "method": "POST",
            "scheme": "http", "path": PATH, "raw_path": PATH.encode(), "query_string": b"", "root_path": "",
            "headers": [(name.encode(), value) for name, value in headers.items()], "client": client, "server": None,
            "state": {}, CONNECTION: self,
        }  # fmt: skip


def _milliseconds(seconds: float, given: bytes | None) -> int:
    """Return a time limit, at least a millisecond and at most what the client also set by header."""
    own = max(1, round(min(seconds * 1000, MAX_TIMEOUT_MS)))
    return min(own, int(given)) if given is not None and given.isdigit() else own
