"""The events of a response that runs in the background, kept so that a client may go on behind any of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

LARGEST: Final = 4 << 20
"""Bytes of events that are kept of one response; the oldest go first."""
STEP: Final = 64 << 10
"""Bytes that a log takes of its owner's room at once."""
_BETWEEN: Final = b"\n\n"
_OVERHEAD: Final = 64
"""Bytes that an event takes beside its own."""


class EventLog:
    """Log of one stream, by the numbers of its events. `grow` asks for more room; False: there is none."""

    def __init__(self, grow: Callable[[int], bool]) -> None:
        self._grow = grow
        self._events: deque[bytes] = deque()
        self._news: set[asyncio.Future[None]] = set()
        self.first = self.room = self.bytes = 0
        self.over = False

    @property
    def next(self) -> int:
        """Return the number of the next event."""
        return self.first + len(self._events)

    def add(self, data: bytes) -> None:
        """Take whole events; those that wait hear of it."""
        for event in data.split(_BETWEEN):
            if event:
                self._events.append(event + _BETWEEN)
                self.bytes += len(event) + _OVERHEAD
        while self.bytes > self.room and self._events:
            if self.room < LARGEST and self._grow(STEP):
                self.room += STEP
            else:
                self.bytes -= len(self._events.popleft()) - len(_BETWEEN) + _OVERHEAD
                self.first += 1
        self._wake()

    def end(self) -> None:
        """Note that no event follows."""
        self.over, self._grow = True, lambda size: False
        self._wake()

    def since(self, number: int, most: int = STEP) -> list[bytes]:
        """Return events from this number on, of about so many bytes."""
        taken: list[bytes] = []
        for index in range(max(0, number - self.first), len(self._events)):
            if most <= 0:
                break
            taken.append(self._events[index])
            most -= len(taken[-1])
        return taken

    async def wait(self, number: int, seconds: float) -> None:
        """Wait until there is an event of this number, or the end; at most so long."""
        if self.over or number < self.next:
            return
        news = asyncio.get_running_loop().create_future()
        self._news.add(news)
        try:
            async with asyncio.timeout(seconds):
                await news
        except TimeoutError:
            return
        finally:
            self._news.discard(news)

    def _wake(self) -> None:
        waiting, self._news = self._news, set()
        for news in waiting:
            if not news.done():
                news.set_result(None)
