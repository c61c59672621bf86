"""A sign of life to clients whose stream is silent: while a prompt is computed, or a tool's arguments are awaited.

One look at all answers now and then, so that a token costs nothing for it. Of many, some in each turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

log = logging.getLogger(__name__)
SECONDS: Final = 10.0
"""Of silence, at least; twice as many at most."""
TURN: Final = 0.003
"""Seconds of one turn of the loop in which answers are looked at."""
_LOOKS: Final = 32
"""Between two looks at the clock."""


class Quiet(Protocol):
    """An answer that is able to say that it lives."""

    def still_here(self) -> None:
        """Hear of a look at all answers: whoever has written nothing since the last one says that it lives."""


class Pings:
    """Looks at answers as long as it isn't stopped: at those that are `Quiet`."""

    def __init__(
        self, answers: Iterable[Any], seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._answers, self._seconds, self._clock = answers, seconds, clock
        self._left: list[Quiet] = []
        self._timer: asyncio.Handle = asyncio.get_running_loop().call_later(seconds, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()
        self._left.clear()

    def _look(self) -> None:
        # An `isinstance` of a protocol takes 20 us, of ten thousand answers a fifth of a second.
        self._left = [answer for answer in self._answers if hasattr(answer, "still_here")]
        self._go_on()

    def _go_on(self) -> None:
        loop, until = asyncio.get_running_loop(), self._clock() + TURN
        while self._left and self._clock() < until:
            for _ in range(min(_LOOKS, len(self._left))):
                _tell(self._left.pop())
        self._timer = loop.call_soon(self._go_on) if self._left else loop.call_later(self._seconds, self._look)


def _tell(answer: Quiet) -> None:
    try:
        answer.still_here()
    except Exception:  # one client's connection is that client's
        log.warning("a client can't be told that its answer is still awaited", exc_info=True)
