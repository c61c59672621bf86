"""How tests wait: on a loop `until`, without one `eventually`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


async def until(what: str, check: Callable[[], Any], within: float = 10.0) -> None:
    """Poll `check` until it is true; fail with `what` after `within` seconds."""
    deadline = asyncio.get_running_loop().time() + within
    while not check():
        assert asyncio.get_running_loop().time() < deadline, f"not within {within} s: {what}"
        await asyncio.sleep(0.005)


def eventually(what: str, check: Callable[[], Any], within: float = 60.0) -> Any:
    """What `check` gives once that is true, polled; fails with `what` after `within` seconds."""
    deadline = time.monotonic() + within
    while not (found := check()):
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(0.02)
    return found
