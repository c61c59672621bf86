"""What to do when an attempt failed: pure policy, asked by `retries.py`.

Before the first token nothing was promised, so another instance is tried at once and, where none is left, again after
a short wait (the bus may be reconnecting); but of workers that die with the request, two are enough. Once tokens have
come, a worker that is lost costs one migration of the limit. An attempt that reached no worker costs nothing: it is
made again, a bounded number of times.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dynamo.frontend.errors import FirstTokenTimeout, StreamTimeout
from dynamo.runtime.errors import CapacityExceeded, Disconnected, DynamoException, EngineShutdown, StreamIncomplete
from dynamo.runtime.process.backoff import Backoff

MAX_ATTEMPTS: Final = 8
MAX_DEATHS: Final = 2
"""Workers that may die with a request before its first token: it may be what kills them, and must not kill all."""
MAX_LOSSES: Final = 3
"""Other losses before the first token after which it goes on: workers that stop, fall silent, or lose a frame."""
RETRY_WINDOW_SECONDS: Final = 10.0
_WAITS: Final = Backoff(0.05, 1.0)
_LOST: Final = (Disconnected, StreamIncomplete, EngineShutdown, FirstTokenTimeout, StreamTimeout)
"""What ends a stream that a worker had taken."""


class Attempts(msgspec.Struct):
    """How far one choice has got."""

    made: int = 0
    """Since the last wait for all instances, or the last migration."""
    waits: int = 0
    losses: int = 0
    """Workers that were lost with it."""
    deaths: int = 0
    """Those of them that died before its first token."""
    migrations_left: int = 0
    produced: bool = False
    """Tokens have come."""
    under_way: bool = False
    """The attempt that failed had brought some of them."""


def is_loss(error: DynamoException, so_far: Attempts) -> bool:
    """Tell whether a worker that had taken the request was lost; else none has taken it."""
    return so_far.under_way or isinstance(error, _LOST)


def died(error: DynamoException) -> bool:
    """Tell whether the worker is gone that the request had been sent to; whether it had taken it, nobody can tell."""
    return isinstance(error, Disconnected)


def may_go_on(error: DynamoException, so_far: Attempts) -> bool:
    """Tell whether another attempt is allowed at all."""
    if not error.retryable:
        return False
    if not is_loss(error, so_far):
        return so_far.made < MAX_ATTEMPTS
    if so_far.produced:
        return so_far.migrations_left > 0
    if died(error) and so_far.deaths + 1 >= MAX_DEATHS:
        return False
    return so_far.losses < MAX_LOSSES


def patience(has_instances: bool, hold_seconds: float) -> float:
    """Return the seconds for which all instances are tried again and again.

    A request whose only worker has just left waits as one that comes after it, for as long as
    `workerWaitTimeoutSeconds` promises.
    """
    return max(RETRY_WINDOW_SECONDS if has_instances else 0.0, hold_seconds)


def wait_before(
    error: DynamoException,
    so_far: Attempts,
    elapsed: float,
    left: float | None,
    window: float = RETRY_WINDOW_SECONDS,
) -> float | None:
    """Return the seconds to wait before all instances are tried again; None: give up. `window` is the `patience`."""
    if isinstance(error, CapacityExceeded) and not so_far.produced:
        return None  # full everywhere: the client decides how long it waits, unless it has half of its answer
    if isinstance(error, FirstTokenTimeout | StreamTimeout):
        return None  # silent everywhere: each has had its time
    wait = _WAITS.delay(so_far.waits + 1)
    window = window if left is None else min(window, elapsed + left)
    return wait if elapsed + wait < window else None
