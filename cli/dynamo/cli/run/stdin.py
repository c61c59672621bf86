"""Standard input as bytes that arrive, without blocking the event loop or an interrupt.

`asyncio.to_thread` would keep a process alive until its input ends, since the loop waits for
its threads; buffered readers can't be left alone at exit either. So the descriptor is read
directly, in daemon threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator
from typing import Final

_PIECE: Final = 65536


async def pieces(descriptor: int) -> AsyncGenerator[bytes, None]:
    """Yield what arrives at standard input, until its end."""
    while piece := await _read(descriptor):
        yield piece


async def everything(descriptor: int) -> str:
    """Return all of standard input, as text."""
    return b"".join([piece async for piece in pieces(descriptor)]).decode(errors="replace")


async def lines(descriptor: int) -> AsyncGenerator[str, None]:
    """Yield line by line, without the line ends."""
    rest = b""
    async for piece in pieces(descriptor):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


async def _read(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[bytes | OSError] = loop.create_future()

    def hand_over(result: bytes | OSError) -> None:
        if not arrived.done():
            arrived.set_result(result)

    def work() -> None:
        result: bytes | OSError
        try:
            result = os.read(descriptor, _PIECE)
        except OSError as error:
            result = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(hand_over, result)

    threading.Thread(target=work, name="standard input", daemon=True).start()
    result = await arrived
    if isinstance(result, OSError):
        raise result
    return result
