"""Long work of a user's file at the start: done in a thread where it blocks, and told of while it lasts."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, Final, TypeVar

log = logging.getLogger(__name__)
EVERY: Final = 10.0
T = TypeVar("T")


class InThread:
    """Runs something long in a thread, and shows where that is."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._thread: int | None = None

    async def run(self) -> Any:
        return await asyncio.to_thread(self._begin)

    def _begin(self) -> Any:
        self._thread = threading.get_ident()
        try:
            return self._work()
        finally:
            self._thread = None

    def frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread) if self._thread is not None else None


async def patiently(work: Awaitable[T], still: Callable[[], str]) -> T:
    """The result of `work`; says every `EVERY` seconds that it is not there yet."""
    task, waited = asyncio.ensure_future(work), 0.0
    try:
        while not (await asyncio.wait([task], timeout=EVERY))[0]:
            waited += EVERY
            log.info("%s (%.0f s)", still(), waited)
        return task.result()
    finally:
        task.cancel()
