"""Time limits on tokens: attempts of which a worker says nothing for too long are ended, and may go on elsewhere.

A worker whose engine hangs still answers pings, so nobody else notices it. Nothing is done per token: one sweep per
process compares, a few times per limit, how many tokens each attempt has. `attempt.py` enters and leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from dynamo.frontend.errors import FirstTokenTimeout, StreamTimeout
from dynamo.frontend.limits.settings import TokenLimits
from dynamo.runtime.errors import DynamoException

FIRST_TOKEN: Final = "first_token"
INTER_TOKEN: Final = "inter_token"
LOOKS: Final = 8
"""Sweeps within the shortest limit: an attempt is ended an eighth of a limit too late at most."""
LONGEST_PERIOD: Final = 1.0


Stalled = FirstTokenTimeout | StreamTimeout


def period(limits: TokenLimits) -> float | None:
    """Return the seconds between two sweeps; None: there is nothing to look for."""
    shortest = min(limits.of(False), limits.of(True))
    return None if shortest == float("inf") else min(shortest / LOOKS, LONGEST_PERIOD)


def _stalled(limits: TokenLimits, begun: bool) -> Stalled:
    """Return what an attempt over its limit ends with."""
    if begun:
        return StreamTimeout(f"no token for {limits.between:g} s: the time limit between two tokens passed")
    return FirstTokenTimeout(f"no token within {limits.of(False):g} s: the time limit for a first token passed")


class Watched(Protocol):
    """An attempt of a request at one worker."""

    @property
    def tokens(self) -> int:
        """Return the tokens so far, also of attempts before this one."""

    def stalled(self, error: DynamoException) -> None:
        """End the attempt with this error. It must leave the watch."""


class _Mark(msgspec.Struct):
    """Mark of how far an attempt was when it was last seen to get on."""

    start: int
    tokens: int
    since: float


class Progress:
    """Progress of attempts, without clock and timer. Bounded by the attempts that are open."""

    def __init__(self, limits: TokenLimits) -> None:
        self._limits = limits
        self._marks: dict[Watched, _Mark] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def __contains__(self, attempt: Watched) -> bool:
        return attempt in self._marks

    def enter(self, attempt: Watched, now: float) -> None:
        tokens = attempt.tokens
        self._marks[attempt] = _Mark(tokens, tokens, now)

    def leave(self, attempt: Watched) -> None:
        """Forget an attempt; fine where it isn't there."""
        self._marks.pop(attempt, None)

    def postpone(self, seconds: float) -> None:
        """Time in which nobody here could listen counts against no worker."""
        for mark in self._marks.values():
            mark.since += seconds

    def late(self, now: float) -> list[tuple[Watched, Stalled]]:
        """Return those over a limit, and what to end them with; notes who has got on."""
        late = []
        for attempt, mark in self._marks.items():
            tokens = attempt.tokens
            if tokens != mark.tokens:
                mark.tokens, mark.since = tokens, now
            elif now - mark.since >= self._limits.of(tokens != mark.start):
                late.append((attempt, _stalled(self._limits, tokens != mark.start)))
        return late


class TokenWatch:
    """Ends attempts whose worker says nothing for too long; `hit` hears the name of each limit that ended one."""

    def __init__(self, limits: TokenLimits, hit: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._period, self._hit, self._clock = period(limits) or LONGEST_PERIOD, hit, clock
        self._progress = Progress(limits)
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def __len__(self) -> int:
        """Count attempts that are looked at."""
        return len(self._progress)

    def enter(self, attempt: Watched) -> None:
        """Look at it from now on."""
        self._progress.enter(attempt, self._clock())
        if self._timer is None:
            self._set_timer()

    def leave(self, attempt: Watched) -> None:
        """Look no more at an attempt that is over, or between two workers."""
        self._progress.leave(attempt)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self._due = self._clock() + self._period
        self._timer = asyncio.get_running_loop().call_later(self._period, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = self._clock()
        if (late := now - self._due) > self._period:
            self._progress.postpone(late)
        for attempt, error in self._progress.late(now):
            if attempt not in self._progress:
                continue  # it left with another one of its request
            self._hit(FIRST_TOKEN if isinstance(error, FirstTokenTimeout) else INTER_TOKEN)
            attempt.stalled(error)
        if len(self._progress):
            self._set_timer()
