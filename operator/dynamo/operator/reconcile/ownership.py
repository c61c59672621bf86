"""Which installation serves a pipeline: the one that the pipeline's status names. `OwnershipResolver` finds out.

Two operators for the same pipelines, installed by mistake, would undo each other's writes
without end. So the first status names its installation, and since a status is only written over the
one that was read, of two only one can have done so. The other stands back, and follows when
the first is gone for good: its lease hasn't been renewed for long, or nobody observes edits. What was seen of it
`OtherInstallations` remembers, which is pure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from dynamo.operator.intervals import Intervals
from dynamo.operator.kube.client import Api, Object
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.leader_election import Installation, Lease
from dynamo.operator.kube.resources import EVENTS, LEASES, Key
from dynamo.operator.reconcile.status import OPERATOR
from dynamo.operator.reconcile.status_writer import EventContent, event_of


class Ownership(Enum):
    """Relation of this installation to a pipeline."""

    OURS = "nobody else's"
    THEIRS = "another installation serves it"
    ABANDONED = "another one served it, and is gone"


def claimed_by(status: Mapping[str, Any]) -> Installation | None:
    """Return the installation that a status names; None for what can't be a name."""
    text = status.get(OPERATOR)
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


log = logging.getLogger(__name__)

REASON: Final = "ServedByAnother"
"""Reason of the Event."""


class OwnershipResolver:
    """Decides whose each pipeline is, and reports conflicts; shared by all reconciles."""

    def __init__(
        self,
        api: Api,
        us: Installation,
        instance: str,
        others: OtherInstallations,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.us = us
        self._api, self._instance, self._others, self._clock = api, instance, others, clock
        self._reported: dict[Key, Installation] = {}
        self._named: set[Key] = set()

    @property
    def pause(self) -> float:
        """Return the seconds until another installation's pipeline is checked again."""
        return self._others.pause

    async def resolve(self, body: Object, now: datetime) -> Ownership:
        """Return whose this pipeline is, after reading the other installation's lease if that is due."""
        key = Key(body["metadata"]["namespace"], body["metadata"]["name"])
        status: Mapping[str, Any] = body.get("status") or {}
        other = claimed_by(status)
        if other is None or other.is_same(self.us):
            self._reported.pop(key, None)
            self._others.forget(key)
            return Ownership.OURS
        await self._read_lease(other)
        edit = int(body["metadata"].get("generation", 0)), int(status.get("observedGeneration") or 0)
        if self._others.is_gone(other, key, edit, self._clock()):
            log.warning("%s: taking over from the operator %s, which has stopped", key, other)
            return Ownership.ABANDONED
        await self._report(key, other, body, now)
        return Ownership.THEIRS

    def with_operator(self, key: Key, before: Object, after: Object) -> Object:
        """Return a status that is about to be written, with our name.

        A CRD from before there was such a field drops it: for that alone nothing is written twice.
        """
        if after == before and key in self._named:
            return after
        self._named.add(key)
        return {**after, OPERATOR: str(self.us)}

    def gone(self, key: Key) -> None:
        """Forget a pipeline."""
        self._named.discard(key)
        self._reported.pop(key, None)
        self._others.forget(key)

    async def _read_lease(self, other: Installation) -> None:
        if not self._others.is_due(other, self._clock()):
            return
        try:
            lease = await self._api.get(LEASES, other.namespace, other.name)
        except ApiError as error:
            log.info("could not read the lease of the operator %s: %s", other, error)
            self._others.lease_unreadable(other, self._clock())
        else:
            self._others.observe_lease(other, lease, self._clock())

    async def _report(self, key: Key, other: Installation, body: Object, now: datetime) -> None:
        """Log a conflict and send an Event, once in our life: the status is the other installation's to write."""
        if self._reported.get(key) == other:
            return
        self._reported[key] = other
        message = f"the operator {other} serves this pipeline, so {self.us} leaves it alone: uninstall one of them, "
        message += "or give each its namespaces (operator.watchNamespaces)"
        log.warning("%s: %s", key, message)
        try:
            event = event_of(EventContent(REASON, message, normal=False), body, now, self._instance)
            await self._api.create(EVENTS, key.namespace, event)
        except ApiError as error:
            log.info("%s: could not write an Event: %s", key, error)
