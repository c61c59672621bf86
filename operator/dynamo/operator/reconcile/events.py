"""Kubernetes Events of a pipeline: `told(before, after)` says which, `Quiet` how often, `event_of` what is sent. Pure.

An Event tells a transition: Ready's status or reason became another one. The status in the
cluster is what was said before, so neither a restart nor a resync repeats one; and a pipeline
that goes to and fro says each reason once in five minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple

from dynamo.operator.api.v1alpha1 import API_VERSION, KIND
from dynamo.operator.conditions import BEGINNING, ON_THE_WAY, Reason, Type
from dynamo.operator.resources import naming

QUIET_SECONDS: Final = 300.0
REMEMBERED: Final = 4096
"""Reasons that were said lately, of all pipelines together; beyond it the oldest are forgotten."""
MESSAGE_LIMIT: Final = 1024
"""The API server takes no longer ones."""

_NORMAL: Final = frozenset({Reason.SERVING, Reason.SCALED_TO_ZERO}) | ON_THE_WAY


class Told(NamedTuple):
    """Something that people should hear of."""

    reason: str
    message: str
    normal: bool


def told(before: Mapping[str, Any], after: Mapping[str, Any]) -> Told | None:
    """The transition between two statuses, if there is one."""
    old, new = _ready(before.get("conditions", ())), _ready(after.get("conditions", ()))
    if new is None or (old is not None and (old["status"], old["reason"]) == (new["status"], new["reason"])):
        return None
    if new["reason"] in BEGINNING and (old is None or old["reason"] in BEGINNING):
        return None  # what every new pipeline goes through is no news
    return Told(new["reason"], new["message"], new["reason"] in _NORMAL)


class Quiet:
    """Keeps anybody from saying the same reason too often."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], datetime] = {}

    def may(self, uid: str, reason: str, now: datetime) -> bool:
        """Whether it may be said now; then it has been."""
        last = self._said.pop((uid, reason), None)
        spoken = last is None or (now - last).total_seconds() >= QUIET_SECONDS
        self._said[uid, reason] = now if last is None or spoken else last
        while len(self._said) > REMEMBERED:
            del self._said[next(iter(self._said))]
        return spoken


def event_of(found: Told, pipeline: Mapping[str, Any], now: datetime, instance: str) -> dict[str, Any]:
    """What `POST …/events` gets; its name follows from what it says, so that sent twice it is there once."""
    metadata = pipeline["metadata"]
    when = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = sha256("\0".join((metadata["uid"], *map(str, found), when)).encode()).hexdigest()[:16]
    subject = {k: metadata[k] for k in ("namespace", "name", "uid", "resourceVersion") if k in metadata}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": metadata["namespace"], "name": f"{metadata['name']}.{digest}"},
        "involvedObject": {"apiVersion": API_VERSION, "kind": KIND, **subject},
        "type": "Normal" if found.normal else "Warning",
        "reason": found.reason,
        "message": found.message if len(found.message) <= MESSAGE_LIMIT else found.message[: MESSAGE_LIMIT - 1] + "…",
        "source": {"component": naming.MANAGER},
        "reportingComponent": naming.MANAGER,
        "reportingInstance": instance,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


def _ready(conditions: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((c for c in conditions if c["type"] == Type.READY), None)
