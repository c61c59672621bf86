"""A sign of life to clients whose stream is silent: while a prompt is computed, or a tool's arguments are awaited.

One look at all answers now and then, so that a token costs nothing for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final, Protocol, runtime_checkable

log = logging.getLogger(__name__)
SECONDS: Final = 10.0
"""Of silence, at least; twice as many at most."""


@runtime_checkable
class Quiet(Protocol):
    """An answer that is able to say that it lives."""

    def still_here(self) -> None:
        """Hear of a look at all answers: whoever has written nothing since the last one says that it lives."""


class Pings:
    """Looks at answers as long as it isn't stopped."""

    def __init__(self, answers: Iterable[Any], seconds: float = SECONDS) -> None:
        self._answers, self._seconds = answers, seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        for answer in [answer for answer in self._answers if isinstance(answer, Quiet)]:
            try:
                answer.still_here()
            except Exception:  # one client's connection is that client's
                log.warning("a client can't be told that its answer is still awaited", exc_info=True)
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)
