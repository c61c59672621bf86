"""What the states of a pipeline's parts add up to: it serves, it will never serve, or wait.

Pure; `executor.py` asks after every change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dynamo.cli.local.process_lifecycle import State
from dynamo.cli.local.state import FRONTEND, WORKER

GREET_WITHIN = 3.0
"""How long after it could serve a pipeline waits for the rest of its workers before it says so."""

_SETTLED = (State.READY, State.FAILED, State.STOPPED)


class Seen(NamedTuple):
    """One part, as far as this matters."""

    kind: str
    component: str
    state: State


def can_serve(parts: Sequence[Seen]) -> bool:
    """Tell whether a frontend answers, and each component has a worker, or nothing more is to come of it."""
    if not any(part.kind == FRONTEND and part.state is State.READY for part in parts):
        return False
    workers = [part for part in parts if part.kind == WORKER]
    ready = {part.component for part in workers if part.state is State.READY}
    coming = {part.component for part in workers if part.state not in (State.FAILED, State.STOPPED)}
    return (bool(ready) or not workers) and coming <= ready


def complete(parts: Sequence[Seen]) -> bool:
    """Tell whether nothing more is about to become ready."""
    return all(part.state in _SETTLED for part in parts)


def should_greet(parts: Sequence[Seen], servable_for: float) -> bool:
    """Tell whether to greet: as soon as it serves, but a moment later if more workers are about to come."""
    return can_serve(parts) and (complete(parts) or servable_for > GREET_WITHIN)


def hopeless(parts: Sequence[Seen]) -> bool:
    """Tell whether all its frontends, or all its workers, were given up."""
    return any(_all_failed([part for part in parts if part.kind == kind]) for kind in (FRONTEND, WORKER))


def _all_failed(parts: Sequence[Seen]) -> bool:
    return bool(parts) and all(part.state is State.FAILED for part in parts)
