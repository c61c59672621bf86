"""The event loop that our programs run on: uvloop's where it is installed, else the standard library's."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
LOOKS: Final = 0.25
"""Seconds between two looks at how late a loop is."""
_COLLECT_EVERY: Final = 3_000
"""Objects more than at the last look at the young ones: a look at each costs a microsecond, and the loop waits."""
_LOOKS_AT_YOUNG: Final = 1
_LOOKS_AT_MIDDLE: Final = 500
"""Between two looks at the middle generation, and at all: some two million objects more. Requests leave no circles."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what `asyncio.Runner` takes."""
    try:
        import uvloop
    except ImportError:  # not there on Windows; slower, otherwise the same
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, as `asyncio.run` does; with the task console where the environment wants it."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(watched(work))


async def watched(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` with the task console where the environment wants it, on whatever loop runs."""
    if "DYN_CONSOLE" not in os.environ:
        return await work
    from dynamo.runtime.process.task_console import console

    try:
        async with console(os.environ):
            return await work
    finally:
        work.close()  # where the console could not start


class LateWatch:
    """Watch how late a loop is: a timer that says by how much it missed its time, until it is stopped."""

    def __init__(self, note: Callable[[float], object], seconds: float = LOOKS) -> None:
        self._note, self._seconds, self._loop = note, seconds, asyncio.get_running_loop()
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        """Watch no more."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        self._note(max(0.0, now - self._due))
        self._due = now + self._seconds
        self._timer = self._loop.call_at(self._due, self._look)


def task_count() -> float:
    """Count the tasks of the running loop; 0 where none runs. They are counted when somebody asks."""
    try:
        return float(len(asyncio.all_tasks()))
    except RuntimeError:
        return 0.0


def raise_if_cancelled() -> None:
    """Raise a cancellation that was lost: `wait_for` of Python 3.11 prefers a result that comes at the same time."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def calm_collector() -> None:
    """Keep the garbage collector off what lives as long as the process, for one that is ready to serve.

    A full pass over that stalls every stream.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, _LOOKS_AT_YOUNG, _LOOKS_AT_MIDDLE)
