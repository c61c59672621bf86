"""Which installation serves a pipeline: the one that the pipeline's status names. Pure; `other_installations.py` asks.

Two operators for the same pipelines, installed by mistake, would undo each other's writes
without end. So the first status names its installation, and since a status is only written over the
one that was read, of two only one can have done so. The other stands back, and follows when
the first is gone for good: its lease hasn't been renewed for long, or nobody observes edits.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from dynamo.operator.intervals import Intervals
from dynamo.operator.kube.lease import Installation, Lease
from dynamo.operator.kube.resources import Key

FIELD = "operator"
"""Of the status."""


class Ownership(Enum):
    """Relation of this installation to a pipeline."""

    OURS = "nobody else's"
    THEIRS = "another installation serves it"
    ABANDONED = "another one served it, and is gone"


def claimed_by(status: Mapping[str, Any]) -> Installation | None:
    """Return the installation that a status names; None for what can't be a name."""
    text = status.get(FIELD)
    return Installation.of(str(text)) if text else None


class _Observation(NamedTuple):
    mark: object
    since: float


class OtherInstallations:
    """Remembers what was seen of other installations, and since when. Times are any clock's that only goes forward."""

    def __init__(self, patience: float = Intervals.takeover) -> None:
        self.patience = patience
        self._leases: dict[Installation, _Observation] = {}
        self._read_at: dict[Installation, float] = {}
        self._edits: dict[Key, _Observation] = {}

    @property
    def pause(self) -> float:
        """Return the seconds between two checks of another installation's pipeline."""
        return self.patience / 4

    def is_due(self, other: Installation, now: float) -> bool:
        """Return whether its lease should be read again: at most once a pause, however many pipelines it has."""
        return other.elects and now - self._read_at.get(other, float("-inf")) >= self.pause / 2

    def observe_lease(self, other: Installation, lease: Lease | None, now: float) -> None:
        """Note its lease as it is; None where there is none."""
        spec = (lease or {}).get("spec", {})
        self._read_at[other] = now
        self._leases[other] = _later(self._leases.get(other), (spec.get("holderIdentity"), spec.get("renewTime")), now)

    def lease_unreadable(self, other: Installation, now: float) -> None:
        """Note that the lease could not be read, which says nothing about it."""
        self._read_at[other] = now
        self._leases.pop(other, None)

    def is_gone(self, other: Installation, key: Key, edit: tuple[int, int], now: float) -> bool:
        """Return whether it is gone for good; `edit` is the pipeline's generation and the observed one."""
        generation, observed = edit
        if generation == observed:
            self._edits.pop(key, None)
        else:
            self._edits[key] = _later(self._edits.get(key), generation, now)
        observations = (self._leases.get(other), self._edits.get(key))
        return any(observation is not None and now - observation.since >= self.patience for observation in observations)

    def forget(self, key: Key) -> None:
        """Forget a pipeline that is gone, or ours."""
        self._edits.pop(key, None)


def _later(before: _Observation | None, mark: object, now: float) -> _Observation:
    return before if before is not None and before.mark == mark else _Observation(mark, now)
