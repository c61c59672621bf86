"""Background work of one owner: tasks that are kept, whose failures are said, and that end together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from dynamo.runtime.errors import EngineError

T = TypeVar("T")


async def unless_dead(failed: Callable[[], Awaitable[object]], work: Awaitable[T]) -> T:
    """Return the result of `work`.

    `EngineError` where the engine dies before it is done: `failed()` returns how, then.
    """
    doing, dead = asyncio.ensure_future(work), asyncio.ensure_future(failed())
    try:
        await asyncio.wait((doing, dead), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise EngineError(f"the engine died: {dead.result()}")
        return doing.result()
    finally:
        for task in (doing, dead):
            task.cancel()
        await asyncio.gather(doing, dead, return_exceptions=True)


class TaskOwner:
    """Own tasks until they end, so that none is lost to the garbage collector; `log` is their owner's."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._tasks: set[asyncio.Future[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run `work`; what it raises is logged."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(self, task: asyncio.Future[Any]) -> None:
        """Own `task`, whose failure somebody else reports."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Tell all tasks to end."""
        for task in self._tasks:
            task.cancel()

    async def ended(self, timeout: float | None = None) -> None:
        """Wait until all tasks have ended, at most `timeout` seconds."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout)

    def __len__(self) -> int:
        """Count the tasks that run."""
        return len(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("%s failed", task.get_name(), exc_info=error)
