"""Resolves whether a pipeline is ours to serve: reads another installation's lease, and reports a conflict once.

Decisions are `ownership.py`'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from dynamo.operator.kube.client import Api, Object
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.lease import Installation
from dynamo.operator.kube.resources import EVENTS, LEASES, Key
from dynamo.operator.reconcile.events import EventContent, event_of
from dynamo.operator.reconcile.ownership import FIELD, OtherInstallations, Ownership, claimed_by

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
        return {**after, FIELD: str(self.us)}

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
