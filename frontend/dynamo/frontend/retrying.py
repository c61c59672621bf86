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


def wait_before(error: DynamoException, so_far: Attempts, elapsed: float, left: float | None) -> float | None:
    """Seconds to wait before all instances are tried again; None: give up."""
    if isinstance(error, CapacityExceeded):
        return None  # full everywhere: the client decides how long it waits
    wait = min(_FIRST_WAIT * 2**so_far.waits, _LONGEST_WAIT)
    window = RETRY_WINDOW_SECONDS if left is None else min(RETRY_WINDOW_SECONDS, elapsed + left)
    return wait if elapsed + wait < window else None
