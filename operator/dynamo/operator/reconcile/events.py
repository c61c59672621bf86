"""Events of a pipeline: which (`transition_event`), how often (`EventRateLimit`), their body (`event_of`). Pure.

An Event reports a transition: Ready's status or reason became another one. The status in the
cluster is what was reported before, so neither a restart nor a resync repeats one; and a pipeline
that goes to and fro reports each reason once in five minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple

from dynamo.operator.api.conditions import BEGINNING, ON_THE_WAY, Reason, Type
from dynamo.operator.api.v1alpha1 import API_VERSION, KIND
from dynamo.operator.manifests import naming

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
        self._sent: dict[tuple[str, str], datetime] = {}

    def allows(self, uid: str, reason: str, now: datetime) -> bool:
        """Return whether a reason may be sent now, and count it as sent then."""
        last = self._sent.pop((uid, reason), None)
        spoken = last is None or (now - last).total_seconds() >= QUIET_SECONDS
        self._sent[uid, reason] = now if last is None or spoken else last
        while len(self._sent) > REMEMBERED:
            del self._sent[next(iter(self._sent))]
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
