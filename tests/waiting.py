"""How tests wait: on a loop `until`, without one `eventually`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def until(what: str, check: Callable[[], Any], within: float = 10.0) -> float:
    """Poll `check`, which may be a coroutine's, until it is true, and return the seconds that it took.

    Fails with `what` after `within` seconds.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not await _value(check()):
        assert loop.time() - began < within, f"not within {within} s: {what}"
        await asyncio.sleep(0.005)
    return loop.time() - began


async def _value(answer: Any) -> Any:
    return await answer if isinstance(answer, Awaitable) else answer


def eventually(
    what: str, check: Callable[[], Any], within: float = 60.0, *, despite: tuple[type[Exception], ...] = ()
) -> Any:
    """Return what `check` gives once that is true, polled; `despite` these exceptions, which mean "not yet".

    Fails with `what` after `within` seconds.
    """
    deadline = time.monotonic() + within
    while True:
        with contextlib.suppress(*despite):
            if value := check():
                return value
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(0.02)
