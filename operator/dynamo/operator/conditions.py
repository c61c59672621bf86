"""The conditions of a pipeline: their types, the closed set of reasons, and how a new one follows an old one.

`Reconciling` and `Stalled` are kstatus' and stand there only while they hold. A condition's
time changes only when its status does, so that an unchanged status is byte for byte the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MESSAGE_LIMIT = 2048


class Type(StrEnum):
    """What a condition is about."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    AVAILABLE = "Available"
    FRONTEND_READY = "FrontendReady"
    WORKERS_READY = "WorkersReady"


class Reason(StrEnum):
    """Why a condition is as it is; documented in `docs/design/operator.md`."""

    OBSERVING = "Observing"
    SERVING = "Serving"
    AVAILABLE = "Available"
    ALL_READY = "AllReady"
    SCALED_TO_ZERO = "ScaledToZero"
    STARTING = "Starting"
    ROLLING_OUT = "RollingOut"
    SCALING = "Scaling"
    NO_FRONTEND = "NoFrontend"
    NO_WORKERS = "NoWorkers"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CRASH_LOOPING = "CrashLooping"
    OUT_OF_MEMORY = "OutOfMemory"
    CONFIG_MISSING = "ConfigMissing"
    EVICTED = "Evicted"
    INVALID_SPEC = "InvalidSpec"
    REFUSED = "Refused"
    NAME_TAKEN = "NameTaken"
    QUOTA_EXCEEDED = "QuotaExceeded"
    FORBIDDEN = "Forbidden"


WORST_FIRST: tuple[Reason, ...] = (
    Reason.CONFIG_MISSING,
    Reason.IMAGE_PULL_FAILED,
    Reason.OUT_OF_MEMORY,
    Reason.CRASH_LOOPING,
    Reason.UNSCHEDULABLE,
    Reason.EVICTED,
    Reason.STARTING,
)

ON_THE_WAY: frozenset[Reason] = frozenset({Reason.OBSERVING, Reason.STARTING, Reason.SCALING, Reason.ROLLING_OUT})
"""Nothing is wrong; it only isn't done."""

_OF_PODS: Mapping[str, Reason] = {
    "ErrImagePull": Reason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": Reason.IMAGE_PULL_FAILED,
    "InvalidImageName": Reason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": Reason.IMAGE_PULL_FAILED,
    "CrashLoopBackOff": Reason.CRASH_LOOPING,
    "RunContainerError": Reason.CRASH_LOOPING,
    "CreateContainerError": Reason.CONFIG_MISSING,
    "CreateContainerConfigError": Reason.CONFIG_MISSING,
    "OOMKilled": Reason.OUT_OF_MEMORY,
    "Unschedulable": Reason.UNSCHEDULABLE,
    "SchedulingGated": Reason.UNSCHEDULABLE,
    "Evicted": Reason.EVICTED,
    "Failed": Reason.CRASH_LOOPING,
}


@dataclass(frozen=True)
class Fact:
    """A condition without its time."""

    type: Type
    status: str
    reason: Reason
    message: str


def reason_of(waiting: str) -> Reason:
    """Our word for what Kubernetes says of a pod."""
    return _OF_PODS.get(waiting, Reason.STARTING)


def conditions(
    facts: Iterable[Fact], previous: Iterable[Mapping[str, Any]], generation: int, now: str
) -> list[dict[str, Any]]:
    """As the status wants them; `now` is used only where a status changed."""
    since = {c["type"]: (c["status"], c["lastTransitionTime"]) for c in previous}
    return [_entry(fact, since.get(fact.type), generation, now) for fact in facts]


def _entry(fact: Fact, before: tuple[str, str] | None, generation: int, now: str) -> dict[str, Any]:
    kept = before[1] if before is not None and before[0] == fact.status else now
    message = fact.message if len(fact.message) <= MESSAGE_LIMIT else fact.message[: MESSAGE_LIMIT - 1] + "…"
    return {
        "type": str(fact.type),
        "status": fact.status,
        "reason": str(fact.reason),
        "message": message,
        "lastTransitionTime": kept,
        "observedGeneration": generation,
    }
