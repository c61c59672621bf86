"""Code that holds the event loop: noticed from a thread of its own, told by the line of the user's file that does it.

While one request blocks, no other goes on, no heartbeat leaves and no probe is answered. The thread asks the loop for
a sign of life; where none comes for a second it looks at what the loop's thread is doing. Nothing is done per token.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from types import FrameType
from typing import Final

from dynamo.worker.engines.python.tracebacks import CodeLine, Home

log = logging.getLogger(__name__)
LIMIT: Final = 1.0
"""Seconds without a sign of life that are told."""
_EVERY: Final = 0.25


class Signs:
    """Signs of a standstill, told at the limit, and then each time that it has lasted ten times as long. Pure."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._asked: float | None = None
        self._next = limit
        self.reported = False
        """Somebody was told of this standstill."""

    @property
    def waiting(self) -> bool:
        """Tell whether the loop was asked and has not answered."""
        return self._asked is not None

    def ask(self, now: float) -> None:
        self._asked, self._next, self.reported = now, self._limit, False

    def answer(self, now: float) -> float | None:
        """Note that it lives; returns how long it stood still, where that was said."""
        asked, self._asked = self._asked, None
        return now - asked if asked is not None and self.reported else None

    def due(self, now: float) -> float | None:
        """Return how long it has stood still, where that is to be told now."""
        if self._asked is None or (stood := now - self._asked) < self._next:
            return None
        self._next *= 10
        return stood


class StandstillWatch:
    """Watches the loop that `start` is called on."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._signs = Signs(LIMIT)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        loop, watched = asyncio.get_running_loop(), threading.get_ident()
        self._thread = threading.Thread(target=self._watch, args=(loop, watched), name="standstill", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, watched: int) -> None:
        lives = threading.Event()
        while not self._stopped.wait(_EVERY):
            if not self._signs.waiting:
                lives.clear()
                self._signs.ask(time.monotonic())
                try:
                    loop.call_soon_threadsafe(lives.set)
                except RuntimeError:  # it is closed: nothing to watch any more
                    return
            if lives.wait(_EVERY):
                if (stood := self._signs.answer(time.monotonic())) is not None:
                    log.warning("%s: the event loop goes on after %.1f s", self._home.file.name, stood)
            elif (stood := self._signs.due(time.monotonic())) is not None:
                self._tell(stood, sys._current_frames().get(watched))

    def _tell(self, stood: float, frame: FrameType | None) -> None:
        place = self._home.innermost(frame)
        if place is None:
            log.debug("the event loop has stood still for %.1f s, not in %s", stood, self._home.file.name)
        else:
            self._signs.reported = True
            log.warning("%s", held(place, stood))


def held(place: CodeLine, seconds: float) -> str:
    """Say which line blocks."""
    code = f" ({place.code})" if place.code else ""
    return (
        f"{place} has held the event loop for {seconds:.1f} s{code}: no other request goes on meanwhile; "
        "await something asynchronous there, or give blocking work to asyncio.to_thread"
    )
