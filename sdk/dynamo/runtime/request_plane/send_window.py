"""How fast one client sends requests to one worker: no more bytes than a window are under way. Pure; no clock, no I/O.

The server of the bus keeps what a worker hasn't read yet, and cuts off one for whom it would have to keep too much:
all its streams end, whoever's they are. So what is published counts as under way until the worker has answered a ping
that was sent behind it, which works with workers of every version. Who waits, waits by turns: one flow (a request with
all its choices) after the other, and small requests don't wait behind large ones. `caller.py` asks and sends.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")

WINDOW: Final = 8 * 1024 * 1024
"""Bytes under way to one worker. Eight such clients fill what NATS keeps for one that doesn't read (64 MiB)."""
SMALL: Final = 64 * 1024
"""Requests up to that size may go beyond the window, as far as `EXTRA`."""
EXTRA: Final = 1024 * 1024
ASK_AGAIN: Final = 1.0
"""Seconds after which a ping without an answer is sent again."""


class Pace(Generic[T]):
    """Pace of one worker: what is under way to it, and who waits."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._out = 0
        self._behind: int | None = None
        """Bytes that were under way when a ping was sent; None: none is."""
        self._asked = 0.0
        self._flows: OrderedDict[str, deque[T]] = OrderedDict()
        self._begun: T | None = None

    @property
    def waiting(self) -> bool:
        """Somebody does."""
        return bool(self._flows) or self._begun is not None

    def waits(self, flow: str) -> bool:
        """Somebody of that flow does."""
        return flow in self._flows

    def fits(self, size: int) -> bool:
        """Whether a request of `size` bytes may be sent at once, before those who wait."""
        if size <= SMALL:
            return self._out + size <= self._window + EXTRA
        return not self.waiting and self._out + size <= self._window

    def sent(self, size: int) -> None:
        """So much was published."""
        self._out += size

    def wait(self, flow: str, item: T) -> None:
        self._flows.setdefault(flow, deque()).append(item)

    def next(self) -> T | None:
        """Who may send a message now; call `more` where it has another one. None: nobody, or there is no room."""
        if self._out >= self._window:
            return None
        begun, self._begun = self._begun, None
        if begun is not None:
            return begun
        if not self._flows:
            return None
        flow, items = self._flows.popitem(last=False)
        item = items.popleft()
        if items:
            self._flows[flow] = items  # at the end: the others come first
        return item

    def more(self, item: T) -> None:
        """It goes on with its next message: workers keep few requests that are half there."""
        self._begun = item

    def asks(self, now: float) -> bool:
        """Whether to send a ping now, and call `asked`."""
        if self._behind is not None:
            return now - self._asked >= ASK_AGAIN
        return self._out >= self._window // 2

    def asked(self, now: float) -> None:
        if self._behind is None:
            self._behind = self._out
        self._asked = now

    def answered(self) -> None:
        """The worker has read what was published before the ping."""
        if self._behind is not None:
            self._out -= self._behind
            self._behind = None

    def reset(self) -> None:
        """Nothing is under way: the bus was away, or the worker is gone."""
        self._out, self._behind = 0, None
