"""A proxy between an operator and its API server that does what `faults.py` says: `Proxy`, in a thread of its own.

Plain HTTP towards the operator, whose token it hands on. Requests are not changed; watches
are read event by event.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import aiohttp
from aiohttp import web
from e2e.apiserver.client import holding
from e2e.apiserver.faults import Fate, Faults, Refusal, Request
from yarl import URL

T = TypeVar("T")
START_SECONDS = 10.0
EVENT_BYTES = 16 << 20
KEPT_HEADERS = ("Accept", "Authorization", "Content-Type", "User-Agent")


class Proxy:
    """Serves from `start` to `stop`; `faults` may be changed at any time."""

    def __init__(self, server: str) -> None:
        self._server, self.faults, self.url = server, Faults(), ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._streams: dict[asyncio.Future[Refusal], str] = {}

    def start(self) -> None:
        """Until it listens at `url`."""
        self._thread.start()
        self._do(self._begin())

    def stop(self) -> None:
        """Ends every connection."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)
        self._loop.close()

    def watched(self) -> set[str]:
        """The kinds, by plural, that somebody watches now."""
        return set(self._streams.copy().values())

    def break_watches(self, plural: str, refusal: Refusal) -> int:
        """Its streams deliver an ERROR and end; how many there were."""
        return self._do(self._broken(plural, refusal))

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(START_SECONDS)

    async def _begin(self) -> None:
        # The server signs its own certificate.
        connector = aiohttp.TCPConnector(ssl=False, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, read_bufsize=EVENT_BYTES)
        app = web.Application(client_max_size=EVENT_BYTES)
        app.router.add_route("*", "/{rest:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def _end(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _broken(self, plural: str, refusal: Refusal) -> int:
        found = [future for future, watched in self._streams.items() if watched == plural and not future.done()]
        for future in found:
            future.set_result(refusal)
        return len(found)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = Request.of(request.method, request.path, request.query)
        verdict = self.faults.asked(asked)
        if isinstance(verdict, Refusal):
            return _refused(verdict)
        if verdict is Fate.CUT:
            return _ended(request)
        if self.faults.stale is not None and (found := self.faults.stale.answer(asked)) is not None:
            return web.json_response(found)
        if asked.is_watch:
            return await self._watched(request, asked)
        answer = await self._passed_on(request)
        self.faults.answered(asked, answer.status)
        return _ended(request) if verdict is Fate.LOST else answer

    def _upstream(self, request: web.Request) -> tuple[URL, dict[str, str]]:
        kept = {name: request.headers[name] for name in KEPT_HEADERS if name in request.headers}
        return URL(self._server + str(request.rel_url), encoded=True), kept

    async def _passed_on(self, request: web.Request) -> web.StreamResponse:
        url, headers = self._upstream(request)
        data = await request.read()
        try:
            async with self._session.request(request.method, url, data=data or None, headers=headers) as answer:
                return await _copied(answer)
        except (aiohttp.ClientError, TimeoutError):
            return _ended(request)

    async def _watched(self, request: web.Request, asked: Request) -> web.StreamResponse:
        url, headers = self._upstream(request)
        endless = aiohttp.ClientTimeout(total=None)
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            async with self._session.get(url, headers=headers, timeout=endless) as answer:
                if answer.status != 200:
                    return await _copied(answer)
                await stream.prepare(request)
                await self._followed(asked.plural, answer.content, stream)
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return _ended(request)
        return stream

    async def _followed(self, plural: str, source: aiohttp.StreamReader, stream: web.StreamResponse) -> None:
        """Until the stream ends, or a test breaks it."""
        broken: asyncio.Future[Refusal] = asyncio.get_running_loop().create_future()
        self._streams[broken] = plural
        try:
            while (line := await _next(source, broken)) is not None:
                await self._tell(plural, line, stream)
            if broken.done():
                error = {"type": "ERROR", "object": broken.result().status()}
                await stream.write(json.dumps(error).encode() + b"\n")
        finally:
            del self._streams[broken]

    async def _tell(self, plural: str, line: bytes, stream: web.StreamResponse) -> None:
        await holding(lambda: self.faults.stale is None)
        seconds = self.faults.told(plural, json.loads(line))
        if seconds is not None:
            await asyncio.sleep(seconds)
            await stream.write(line)


@contextmanager
def serving(server: str) -> Iterator[Proxy]:
    """A proxy before this server."""
    found = Proxy(server)
    found.start()
    try:
        yield found
    finally:
        found.stop()


async def _next(source: aiohttp.StreamReader, broken: asyncio.Future[Refusal]) -> bytes | None:
    """The next event's line; None where there is none, or where the stream is broken first."""
    reading = asyncio.ensure_future(source.readline())
    both: set[asyncio.Future[Any]] = {reading, broken}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return None if broken.done() else await reading or None
    finally:
        reading.cancel()


async def _copied(answer: aiohttp.ClientResponse) -> web.Response:
    headers = {name: answer.headers[name] for name in ("Content-Type", "Retry-After") if name in answer.headers}
    return web.Response(status=answer.status, body=await answer.read(), headers=headers)


def _refused(refusal: Refusal) -> web.Response:
    headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
    return web.json_response(refusal.status(), status=refusal.code, headers=headers)


def _ended(request: web.Request) -> web.Response:
    """Nobody gets this answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
