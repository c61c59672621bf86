"""How a pipeline's state is told: its status, not more often than somebody needs, and Events on transitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from dynamo.operator.answers import ApiError
from dynamo.operator.claims import FIELD, Installation
from dynamo.operator.dirty import Key
from dynamo.operator.events import Quiet, event_of, told
from dynamo.operator.kinds import EVENTS
from dynamo.operator.kube import Api, Object
from dynamo.operator.status import is_progress

log = logging.getLogger(__name__)

WORDS_SECONDS: Final = 5.0
"""Between two statuses that differ only in counts and words: a pipeline's pods come one after the other."""


class Voice:
    """All looks share it. What it remembers only saves writes: without it each is due at once."""

    def __init__(self, api: Api, instance: str, wrote: Callable[[Object], None] = lambda body: None) -> None:
        self._api, self._instance, self._wrote = api, instance, wrote
        self._quiet = Quiet()
        self._last: dict[Key, datetime] = {}

    def due(self, key: Key, before: Mapping[str, Any], after: Mapping[str, Any], now: datetime) -> float:
        """Seconds until a status should be written; 0 for now."""
        last = self._last.get(key)
        if last is None or not is_progress(before, after):
            return 0.0
        return max(0.0, WORDS_SECONDS - (now - last).total_seconds())

    async def say(self, body: Object, before: Object, after: Object, now: datetime) -> Object:
        """Writes the status and, on a transition, an Event; the pipeline as it is then.

        Raises `ApiError` of the former.
        """
        metadata = body["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        written = await self._api.write_status(body, before, after)
        self._wrote(written)
        self._last[Key(namespace, name)] = now
        found = told(before, after)
        if found is None or not self._quiet.may(metadata["uid"], found.reason, now):
            return written
        try:
            await self._api.create(EVENTS, namespace, event_of(found, body, now, self._instance))
        except ApiError as error:
            # Nothing depends on an Event; the status says the same.
            log.info("%s/%s: no Event was written: %s", namespace, name, error)
        return written

    async def claim(self, body: Object, us: Installation, now: datetime) -> Object:
        """Before anything else is written for a pipeline that was somebody else's; raises `ApiError`."""
        before = body.get("status") or {}
        return await self.say(body, before, {**before, FIELD: str(us)}, now)

    def gone(self, key: Key) -> None:
        """Forgets a pipeline."""
        self._last.pop(key, None)
