"""Writes a pipeline's status, not more often than somebody needs, and Events on transitions: `StatusWriter`.

An Event reports a transition: Ready's status or reason became another one (`transition_event`). The status in the
cluster is what was reported before, so neither a restart nor a resync repeats one; and a pipeline
that goes to and fro reports each reason once in five minutes (`EventRateLimit`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple

from dynamo.operator.api.conditions import BEGINNING, ON_THE_WAY, Reason, Type
from dynamo.operator.api.v1alpha1 import API_VERSION, KIND
from dynamo.operator.kube.client import Api, Object
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.leader_election import Installation
from dynamo.operator.kube.resources import EVENTS, Key
from dynamo.operator.manifests import naming
from dynamo.operator.reconcile.status import OPERATOR, is_progress

QUIET_SECONDS: Final = 300.0
REMEMBERED: Final = 4096
"""Reasons that were sent lately, of all pipelines together; beyond it the oldest are forgotten."""
MESSAGE_LIMIT: Final = 1024
"""The API server takes no longer ones."""

_NORMAL: Final = frozenset({Reason.SERVING, Reason.SCALED_TO_ZERO}) | ON_THE_WAY


class EventContent(NamedTuple):
    """Contents of an Event."""

    reason: str
    message: str
    normal: bool


def transition_event(before: Mapping[str, Any], after: Mapping[str, Any]) -> EventContent | None:
    """Return the Event of a transition between two statuses, if there is one."""
    old, new = _ready(before.get("conditions", ())), _ready(after.get("conditions", ()))
    if new is None or (old is not None and (old["status"], old["reason"]) == (new["status"], new["reason"])):
        return None
    if new["reason"] in BEGINNING and (old is None or old["reason"] in BEGINNING):
        return None  # what every new pipeline goes through is no news
    return EventContent(new["reason"], new["message"], new["reason"] in _NORMAL)


class EventRateLimit:
    """Keeps a reason from being sent too often."""

    def __init__(self) -> None:
        self._sent: OrderedDict[tuple[str, str], datetime] = OrderedDict()

    def allows(self, uid: str, reason: str, now: datetime) -> bool:
        """Return whether a reason may be sent now, and count it as sent then."""
        last = self._sent.pop((uid, reason), None)
        spoken = last is None or (now - last).total_seconds() >= QUIET_SECONDS
        self._sent[uid, reason] = now if last is None or spoken else last
        while len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)
        return spoken


def event_of(content: EventContent, pipeline: Mapping[str, Any], now: datetime, instance: str) -> dict[str, Any]:
    """Return the body of `POST …/events`; its name follows from its contents, so that sent twice it is there once."""
    metadata = pipeline["metadata"]
    when = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = sha256("\0".join((metadata["uid"], *map(str, content), when)).encode()).hexdigest()[:16]
    subject = {k: metadata[k] for k in ("namespace", "name", "uid", "resourceVersion") if k in metadata}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": metadata["namespace"], "name": f"{metadata['name']}.{digest}"},
        "involvedObject": {"apiVersion": API_VERSION, "kind": KIND, **subject},
        "type": "Normal" if content.normal else "Warning",
        "reason": content.reason,
        "message": content.message
        if len(content.message) <= MESSAGE_LIMIT
        else content.message[: MESSAGE_LIMIT - 1] + "…",
        "source": {"component": naming.MANAGER},
        "reportingComponent": naming.MANAGER,
        "reportingInstance": instance,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


def _ready(conditions: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((c for c in conditions if c["type"] == Type.READY), None)


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
        return await self.write(body, before, {**before, OPERATOR: str(us)}, now)

    def gone(self, key: Key) -> None:
        """Forget a pipeline."""
        self._last.pop(key, None)
