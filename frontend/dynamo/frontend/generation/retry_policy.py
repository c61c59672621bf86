"""What to do when an attempt failed: pure policy, asked by `generation.py`.

Before the first token nothing was promised, so another instance is tried at once and, where none is left, again after
a short wait (the bus may be reconnecting). Once tokens have come, a worker that is lost costs one migration of the
limit. An attempt that no worker took costs nothing: it is made again, a bounded number of times.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dynamo.frontend.time_limits import FirstTokenTimeout, StreamTimeout
from dynamo.runtime.errors import CapacityExceeded, Disconnected, DynamoException, EngineShutdown, StreamIncomplete

MAX_ATTEMPTS: Final = 8
MAX_LOSSES: Final = 3
"""Workers that may be lost before the first token: a request that takes its worker down must not take all of them."""
RETRY_WINDOW_SECONDS: Final = 10.0
_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 1.0
_LOST: Final = (Disconnected, StreamIncomplete, EngineShutdown, FirstTokenTimeout, StreamTimeout)
"""What ends a stream that a worker had taken."""


class Attempts(msgspec.Struct):
    """How far one choice has got."""

    made: int = 0
    """Since the last wait for all instances, or the last migration."""
    waits: int = 0
    losses: int = 0
    """Workers that were lost with it."""
    migrations_left: int = 0
    produced: bool = False
    """Tokens have come."""
    under_way: bool = False
    """The attempt that failed had brought some of them."""


def is_loss(error: DynamoException, so_far: Attempts) -> bool:
    """Whether a worker that had taken the request was lost; else none has taken it."""
    return so_far.under_way or isinstance(error, _LOST)


def may_go_on(error: DynamoException, so_far: Attempts) -> bool:
    """Whether another attempt is allowed at all."""
    if not error.retryable:
        return False
    if not is_loss(error, so_far):
        return so_far.made < MAX_ATTEMPTS
    return so_far.migrations_left > 0 if so_far.produced else so_far.losses < MAX_LOSSES


def patience(has_instances: bool, hold_seconds: float) -> float:
    """Seconds for which all instances are tried again and again.

    A request whose only worker has just left waits as one that comes after it, which `holdSeconds` promises.
    """
    return max(RETRY_WINDOW_SECONDS if has_instances else 0.0, hold_seconds)


def wait_before(
    error: DynamoException,
    so_far: Attempts,
    elapsed: float,
    left: float | None,
    window: float = RETRY_WINDOW_SECONDS,
) -> float | None:
    """Seconds to wait before all instances are tried again; None: give up. `window` is the `patience`."""
    if isinstance(error, CapacityExceeded) and not so_far.produced:
        return None  # full everywhere: the client decides how long it waits, unless it has half of its answer
    if isinstance(error, FirstTokenTimeout | StreamTimeout):
        return None  # silent everywhere: each has had its time
    wait = min(_FIRST_WAIT * 2**so_far.waits, _LONGEST_WAIT)
    window = window if left is None else min(window, elapsed + left)
    return wait if elapsed + wait < window else None
