"""How many requests are begun in one turn of the loop, when many come at once.

A request is read, checked, tokenised and handed to its worker in one go, a third of a millisecond. What a burst of
hundreds brings would be begun in one turn, and only at its end would the first of them leave, or anything else be
heard or written. So some are begun in each turn, in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

AT_ONCE: Final = 32
"""Requests of one turn: ten milliseconds. Fewer would cost more where so many come at once: every turn has writes of
its own.
"""


class RequestStarts:
    """Begins requests by turns; each of those that wait belongs to a connection, so there are no more of them."""

    def __init__(self) -> None:
        self._left = AT_ONCE
        self._turning = False
        self._waiting: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        """Count the requests that wait for their turn."""
        return len(self._waiting)

    def now(self) -> bool:
        """Tell whether one more request may be begun in this turn, and count it; else call `later`."""
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)
        if self._left == 0 or self._waiting:
            return False
        self._left -= 1
        return True

    def later(self, begin: Callable[[], None]) -> None:
        """Call `begin` in one of the next turns, after those that came before."""
        self._waiting.append(begin)

    def clear(self) -> None:
        """Forget those that wait: their connections are being cut."""
        self._waiting.clear()

    def _turn(self) -> None:
        self._turning, self._left = False, AT_ONCE
        while self._waiting and self._left:
            self._left -= 1
            self._waiting.popleft()()
        if self._left < AT_ONCE:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)
