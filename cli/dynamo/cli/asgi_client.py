"""A client of an ASGI app in the same process: what `dynamo-run in=text` and `in=stdin` talk through.

They get the frontend's whole way of a request (validation, template, tokenising, routing,
detokenising, stop strings) without opening a port, and without a second implementation.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Coroutine[Any, Any, None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
_WAITING_MESSAGES: Final = 1024
_LEAVE_SECONDS: Final = 5.0


class RequestError(Exception):
    """The frontend answered with an error; the message is the one for the user."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Exchange:
    """One request and its answer."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._over = asyncio.Event()
        self._left = False
        self.answer: asyncio.Queue[Message | None] = asyncio.Queue(_WAITING_MESSAGES)

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._left:
            return
        await self.answer.put(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._over.set()  # as servers do: a whole answer ends the wait for a disconnect

    def abort(self) -> None:
        """Cut the connection, as the app does."""
        self._over.set()

    async def serve(self, app: App, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self.receive, self.send)
        finally:
            if not self._left:
                await self.answer.put(None)

    async def leave(self, serving: asyncio.Task[None]) -> None:
        """Be gone: the app sees a disconnect and gets a moment to clean up."""
        self._left = True
        self._over.set()
        while not self.answer.empty():
            self.answer.get_nowait()
        _, late = await asyncio.wait([serving], timeout=_LEAVE_SECONDS)
        if late:
            serving.cancel()
            await asyncio.wait([serving])


class Client:
    """Calls `app`; `connection_key` is where the app expects something with `abort()` in the scope."""

    def __init__(self, app: App, connection_key: str = "") -> None:
        self._app, self._connection_key = app, connection_key

    async def get(self, path: str) -> Any:
        """Return the JSON answer to a GET."""
        async with aclosing(self._request("GET", path, b"")) as parts:
            return json.loads(b"".join([part async for part in parts]))

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON answer to a POST."""
        async with aclosing(self._request("POST", path, json.dumps(body).encode())) as parts:
            return json.loads(b"".join([part async for part in parts]))

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of a streamed answer to a POST, without the final `[DONE]`."""
        rest = b""
        async with aclosing(self._request("POST", path, json.dumps(body).encode())) as parts:
            async for part in parts:
                *whole, rest = (rest + part).split(b"\n\n")
                for event in whole:
                    if (data := _data(event)) is not None:
                        yield data

    async def _request(self, method: str, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        exchange = _Exchange(body)
        scope = _scope(method, path, len(body))
        if self._connection_key:
            scope[self._connection_key] = exchange
        serving = asyncio.create_task(exchange.serve(self._app, scope))
        try:
            async with aclosing(_answer(exchange.answer)) as parts:
                async for part in parts:
                    yield part
        finally:
            await exchange.leave(serving)
        await serving


async def _answer(messages: asyncio.Queue[Message | None]) -> AsyncGenerator[bytes, None]:
    """Yield the body of a good answer piece by piece; raise an error answer whole."""
    status, error = 500, b""
    while (message := await messages.get()) is not None:
        if message["type"] == "http.response.start":
            status = message["status"]
        elif status < 400:
            yield message.get("body", b"")
        else:
            error += message.get("body", b"")
    if status >= 400:
        raise _request_error(status, error)


def _scope(method: str, path: str, length: int) -> dict[str, Any]:
    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % length),
    ]
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": method, "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": headers, "client": ("127.0.0.1", 0), "server": ("localhost", 80), "state": {},
    }  # fmt: skip


def _data(event: bytes) -> dict[str, Any] | None:
    """Return what an SSE event carries; raises an error event, comments and `[DONE]` are None."""
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    text = b"\n".join(lines)
    if not text or text == b"[DONE]":
        return None
    data: dict[str, Any] = json.loads(text)
    if "error" in data:
        raise _request_error(500, text)
    return data


def _request_error(status: int, body: bytes) -> RequestError:
    try:
        error = json.loads(body)["error"]
        return RequestError(status, error["message"], str(error.get("code") or ""))
    except (ValueError, KeyError, TypeError):
        return RequestError(status, f"the frontend answered {status}: {body[:200].decode(errors='replace')}")
