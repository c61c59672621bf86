"""Events that are kept somewhere, sent to a client: of a response that runs in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from dynamo.frontend.http.requests import Receive
from dynamo.frontend.responses.response import STREAM_HEADERS
from dynamo.frontend.responses.stream import Headers, Send


async def send_events(
    events: AsyncIterator[bytes], receive: Receive, send: Send, headers: Headers, seconds: float
) -> None:
    """Send events until their end, until the client leaves, or until it reads nothing for so many seconds."""
    sending = asyncio.ensure_future(_send(events, send, headers, seconds))
    leaving = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, leaving):
            task.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)


async def _send(events: AsyncIterator[bytes], send: Send, headers: Headers, seconds: float) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *headers]})
    async for data in events:
        async with asyncio.timeout(seconds):
            await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
