"""How tests on a loop wait: `until`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def until(what: str, check: Callable[[], Any], within: float = 10.0) -> None:
    """Poll `check` until it is true; fail with `what` after `within` seconds."""
    deadline = asyncio.get_running_loop().time() + within
    while not check():
        assert asyncio.get_running_loop().time() < deadline, f"not within {within} s: {what}"
        await asyncio.sleep(0.005)
