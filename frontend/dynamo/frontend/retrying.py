"""What to do when an attempt failed: pure policy, asked by `generation.py`.

Before the first token nothing was promised, so another instance is tried at once and,
where none is left, again after a short wait (the bus may be reconnecting). After it,
only a migration may go on, as often as the limit allows.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dynamo.runtime.errors import CapacityExceeded, DynamoException

MAX_ATTEMPTS: Final = 8
RETRY_WINDOW_SECONDS: Final = 10.0
_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 1.0


class Attempts(msgspec.Struct):
    """How far one choice has got."""

    made: int = 0
    waits: int = 0
    migrations_left: int = 0
    produced: bool = False


def may_go_on(error: DynamoException, so_far: Attempts) -> bool:
    """Whether another attempt is allowed at all."""
    if not error.retryable:
        return False
    if so_far.produced:
        return so_far.migrations_left > 0
    return so_far.made < MAX_ATTEMPTS


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
    if isinstance(error, CapacityExceeded):
        return None  # full everywhere: the client decides how long it waits
    wait = min(_FIRST_WAIT * 2**so_far.waits, _LONGEST_WAIT)
    window = window if left is None else min(window, elapsed + left)
    return wait if elapsed + wait < window else None
