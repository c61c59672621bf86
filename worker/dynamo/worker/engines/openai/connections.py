"""Connections to a server: kept while it keeps them, and never waited for by an answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Final

import aiohttp
import msgspec

from dynamo.runtime.process.tasks import TaskOwner
from dynamo.worker.engines.openai.arguments import Upstream
from dynamo.worker.engines.openai.dialects import Call

log = logging.getLogger(__name__)
_CONNECT_SECONDS: Final = 5.0
_SPARE: Final = 4
"""Connections beside those of requests: for looks at the server."""
_END_SECONDS: Final = 0.05
_END_BYTES: Final = 4096


class Connections:
    """Connections to one server; proxies of the environment and cookies have no say in where they go."""

    def __init__(self, server: Upstream, headers: Mapping[str, str]) -> None:
        self._root = server.root
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=server.silence_secs)
        most = server.max_requests + _SPARE

        def session(closes: bool) -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(limit=2 * most, force_close=closes)
            jar = aiohttp.DummyCookieJar()
            return aiohttp.ClientSession(headers=headers, timeout=timeout, cookie_jar=jar, connector=connector)

        self.kept, self._fresh = session(False), session(True)
        self._ends = TaskOwner(log)

    @property
    def ending(self) -> int:
        """Count the answers whose last bytes are waited for."""
        return len(self._ends)

    async def close(self) -> None:
        """Close all of them."""
        self._ends.cancel()
        await self._ends.ended()
        for session in (self.kept, self._fresh):
            await session.close()

    @contextlib.asynccontextmanager
    async def asked(self, call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask, and let the connection go: a whole answer's is kept for the next, any other is closed."""
        response = await self._post(call)
        try:
            yield response
        except BaseException:
            response.close()  # the server notices, and computes no further
            raise
        if response.content.at_eof():
            response.release()
        else:
            self._ends.start(_ended(response), "end of an answer")

    async def _post(self, call: Call) -> aiohttp.ClientResponse:
        """Return the answer's head. A kept connection may be one that the server closes just now: then a new one."""
        body, url = msgspec.json.encode(call.body), self._root + call.path
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        try:
            return await self.kept.post(url, data=body, headers=headers, allow_redirects=False)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._fresh.post(url, data=body, headers=headers, allow_redirects=False)


async def _ended(response: aiohttp.ClientResponse) -> None:
    """Wait a moment for the end of a body that has said all, so that its connection can be used again.

    One that goes on is closed: the answer ended by our own count, and the server should compute no further.
    """
    size = 0
    try:
        async with asyncio.timeout(_END_SECONDS):
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > _END_BYTES or (b"data:" in chunk and b"[DONE]" not in chunk):
                    break
    except (aiohttp.ClientError, TimeoutError, OSError):
        pass
    finally:
        if response.content.at_eof():
            response.release()
        else:
            response.close()
