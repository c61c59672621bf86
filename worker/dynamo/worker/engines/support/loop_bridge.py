"""From the threads of an engine to the worker's loop: what they say in one turn of it is handed over together."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def aside(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Return what `work` gives or raises, done in a thread of that name which the end of the process doesn't wait for.

    For what an engine may never finish. Who gives up waiting doesn't end it.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # whoever waits is told, whatever it is
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(done)


class ToLoop:
    """Made on the loop. `tell` is for any thread: what it names is called on the loop, in the order of the calls."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._scheduled = False
        self.after: Callable[[], None] = _nothing
        """Called when all that was said is handed over."""

    def tell(self, what: Callable[..., object], *given: Any) -> None:
        """Say it in the loop; one wake-up brings all that was said until the loop turns."""
        self._heard.append((what, given))
        self._wake()

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._listen)

    def _listen(self) -> None:
        self._scheduled = False
        try:
            while self._heard:
                what, given = self._heard.popleft()
                what(*given)
            self.after()
        finally:
            if self._heard:  # what one of them raises is the loop's to tell; the others go on
                self._wake()


def _nothing() -> None:
    """Do nothing: nobody waits for the end of a turn."""
