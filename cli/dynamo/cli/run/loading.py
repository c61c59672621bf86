"""A line that moves while a model is loaded, on a terminal; elsewhere nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from typing import Final, TextIO

_EVERY: Final = 0.2
_MARKS: Final = "|/-\\"
_CLEAR: Final = "\r\x1b[K"


def moves(out: TextIO) -> bool:
    """Tell whether lines can be written over there."""
    return out.isatty() and os.environ.get("TERM", "dumb") != "dumb"


@contextlib.asynccontextmanager
async def loading(what: str, out: TextIO | None = None) -> AsyncGenerator[None, None]:
    """Show what is being loaded, and for how long already, until the block is left; nothing for an empty name."""
    out = out or sys.stderr
    if not what or not moves(out):
        yield
        return
    moving = asyncio.ensure_future(_move(what, out))
    try:
        yield
    finally:
        moving.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await moving
        _write(out, _CLEAR)


async def _move(what: str, out: TextIO) -> None:
    loop, number = asyncio.get_running_loop(), 0
    began = loop.time()
    while True:
        # Back at the line's start: a warning that comes in between replaces it instead of running into it.
        _write(out, f"{_CLEAR}{_MARKS[number % len(_MARKS)]} loading {what} ({loop.time() - began:.0f} s)\r")
        number += 1
        await asyncio.sleep(_EVERY)


def _write(out: TextIO, text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone; what is loaded goes on
        out.write(text)
        out.flush()
