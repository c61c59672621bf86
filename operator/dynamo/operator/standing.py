"""Whether a pipeline is ours to serve: reads another installation's lease, and tells users once that it has two.

Decisions are `claims.py`'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from dynamo.operator.answers import ApiError
from dynamo.operator.claims import FIELD, Installation, Rivals, Standing, claimed_by
from dynamo.operator.dirty import Key
from dynamo.operator.events import Told, event_of
from dynamo.operator.kinds import EVENTS, LEASES
from dynamo.operator.kube import Api, Object

log = logging.getLogger(__name__)

REASON: Final = "ServedByAnother"
"""Of the Event."""


class Claims:
    """All looks share it."""

    def __init__(
        self, api: Api, us: Installation, instance: str, rivals: Rivals, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.us = us
        self._api, self._instance, self._rivals, self._clock = api, instance, rivals, clock
        self._told: dict[Key, Installation] = {}
        self._named: set[Key] = set()

    @property
    def pause(self) -> float:
        """Seconds until somebody else's pipeline is looked at again."""
        return self._rivals.pause

    async def standing(self, body: Object, now: datetime) -> Standing:
        """Towards this pipeline."""
        key = Key(body["metadata"]["namespace"], body["metadata"]["name"])
        status: Mapping[str, Any] = body.get("status") or {}
        rival = claimed_by(status)
        if rival is None or rival.is_same(self.us):
            self._told.pop(key, None)
            self._rivals.forget(key)
            return Standing.OURS
        await self._asked_for(rival)
        edit = int(body["metadata"].get("generation", 0)), int(status.get("observedGeneration") or 0)
        if self._rivals.is_gone(rival, key, edit, self._clock()):
            log.warning("%s: taken over from the operator %s, which is gone", key, rival)
            return Standing.ABANDONED
        await self._tell(key, rival, body, now)
        return Standing.THEIRS

    def named(self, key: Key, before: Object, after: Object) -> Object:
        """A status that is about to be written, with our name.

        A CRD from before there was such a field drops it: for that alone nothing is written twice.
        """
        if after == before and key in self._named:
            return after
        self._named.add(key)
        return {**after, FIELD: str(self.us)}

    def gone(self, key: Key) -> None:
        """Forgets a pipeline."""
        self._named.discard(key)
        self._told.pop(key, None)
        self._rivals.forget(key)

    async def _asked_for(self, rival: Installation) -> None:
        if not self._rivals.is_due(rival, self._clock()):
            return
        try:
            found = await self._api.get(LEASES, rival.namespace, rival.name)
        except ApiError as error:
            log.info("the lease of the operator %s could not be read: %s", rival, error)
            self._rivals.saw_nothing(rival, self._clock())
        else:
            self._rivals.saw(rival, found, self._clock())

    async def _tell(self, key: Key, rival: Installation, body: Object, now: datetime) -> None:
        """Once in our life: the status is the other one's to write."""
        if self._told.get(key) == rival:
            return
        self._told[key] = rival
        message = f"the operator {rival} serves this pipeline, so {self.us} leaves it alone: uninstall one of them, "
        message += "or give each its namespaces (operator.watchNamespaces)"
        log.warning("%s: %s", key, message)
        try:
            event = event_of(Told(REASON, message, normal=False), body, now, self._instance)
            await self._api.create(EVENTS, key.namespace, event)
        except ApiError as error:
            log.info("%s: no Event was written: %s", key, error)
