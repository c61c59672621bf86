"""Writes a pipeline's status, not more often than somebody needs, and Events on transitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from dynamo.operator.kube.client import Api, Object
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.lease import Installation
from dynamo.operator.kube.resources import EVENTS, Key
from dynamo.operator.reconcile.events import EventRateLimit, event_of, transition_event
from dynamo.operator.reconcile.ownership import FIELD
from dynamo.operator.reconcile.status import is_progress

log = logging.getLogger(__name__)

WORDS_SECONDS: Final = 5.0
"""Between two statuses that differ only in counts and words: a pipeline's pods come one after the other."""


class StatusWriter:
    """Writes statuses and Events; shared by all reconciles. What it remembers only saves writes."""

    def __init__(self, api: Api, instance: str, wrote: Callable[[Object], None] = lambda body: None) -> None:
        self._api, self._instance, self._wrote = api, instance, wrote
        self._rate_limit = EventRateLimit()
        self._last: dict[Key, datetime] = {}

    def due(self, key: Key, before: Mapping[str, Any], after: Mapping[str, Any], now: datetime) -> float:
        """Return the seconds until a status should be written; 0 for now."""
        last = self._last.get(key)
        if last is None or not is_progress(before, after):
            return 0.0
        return max(0.0, WORDS_SECONDS - (now - last).total_seconds())

    async def write(self, body: Object, before: Object, after: Object, now: datetime) -> Object:
        """Write the status and, on a transition, an Event; returns the pipeline as it is then.

        Raises `ApiError` of the former.
        """
        metadata = body["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        written = await self._api.write_status(body, before, after)
        self._wrote(written)
        self._last[Key(namespace, name)] = now
        content = transition_event(before, after)
        if content is None or not self._rate_limit.allows(metadata["uid"], content.reason, now):
            return written
        try:
            await self._api.create(EVENTS, namespace, event_of(content, body, now, self._instance))
        except ApiError as error:
            # Nothing depends on an Event; the status says the same.
            log.info("%s/%s: could not write an Event: %s", namespace, name, error)
        return written

    async def claim(self, body: Object, us: Installation, now: datetime) -> Object:
        """Write our name before anything else to a pipeline that was another installation's; raises `ApiError`."""
        before = body.get("status") or {}
        return await self.write(body, before, {**before, FIELD: str(us)}, now)

    def gone(self, key: Key) -> None:
        """Forget a pipeline."""
        self._last.pop(key, None)
