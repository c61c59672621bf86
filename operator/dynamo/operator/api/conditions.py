"""The conditions of a pipeline: their types, the closed set of reasons, and how a new one follows an old one.

`Reconciling` and `Stalled` are kstatus' and stand there only while they hold. A condition's
time changes only when its status does, so that an unchanged status is byte for byte the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

MESSAGE_LIMIT = 2048


class Type(StrEnum):
    """Types of conditions; `TYPES` says when each is true."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    AVAILABLE = "Available"
    FRONTEND_READY = "FrontendReady"
    WORKERS_READY = "WorkersReady"
    MODEL_LOADED = "ModelLoaded"


class Reason(StrEnum):
    """Reasons of conditions: a closed set; `REASONS` of `reasons.py` says what each means."""

    PENDING = "Pending"
    SERVING = "Serving"
    AVAILABLE = "Available"
    ALL_READY = "AllReady"
    SCALED_TO_ZERO = "ScaledToZero"
    LOADED = "Loaded"
    STARTING = "Starting"
    LOADING_MODEL = "LoadingModel"
    ROLLING_OUT = "RollingOut"
    SCALING = "Scaling"
    NO_FRONTEND = "NoFrontend"
    NO_WORKERS = "NoWorkers"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_BACK_OFF = "ImagePullBackOff"
    CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
    OOM_KILLED = "OOMKilled"
    CREATE_CONTAINER_CONFIG_ERROR = "CreateContainerConfigError"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    UNREACHABLE = "Unreachable"
    INVALID_SPEC = "InvalidSpec"
    MISSING_IMAGE = "MissingImage"
    ADMISSION_REJECTED = "AdmissionRejected"
    NAME_CONFLICT = "NameConflict"
    CREDENTIALS_UNAVAILABLE = "CredentialsUnavailable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    FORBIDDEN = "Forbidden"
    API_SERVER_FAILING = "ApiServerFailing"


TYPES: Mapping[Type, str] = {
    Type.READY: "True when this generation serves: all parts have their replicas, and no older revision is left",
    Type.RECONCILING: "True while the operator works, or waits for what may pass by itself; absent otherwise",
    Type.STALLED: "True while the operator can't continue until you change the spec or remove a conflicting object; "
    "absent otherwise",
    Type.AVAILABLE: "True when a request finds a frontend and a worker of every component",
    Type.FRONTEND_READY: "True when all frontends are ready and of this template, and no others are left",
    Type.WORKERS_READY: "True when all workers are ready and of this revision, and no others are left",
    Type.MODEL_LOADED: "True when every component has a worker of this revision that has loaded the model and can be "
    "routed to",
}

WORST_FIRST: tuple[Reason, ...] = (
    Reason.CREATE_CONTAINER_CONFIG_ERROR,
    Reason.IMAGE_PULL_BACK_OFF,
    Reason.OOM_KILLED,
    Reason.CRASH_LOOP_BACK_OFF,
    Reason.UNSCHEDULABLE,
    Reason.EVICTED,
    Reason.QUOTA_EXCEEDED,
    Reason.ADMISSION_REJECTED,
    Reason.LOADING_MODEL,
    Reason.NODE_LOST,
    Reason.UNREACHABLE,
    Reason.STARTING,
)

BEGINNING: frozenset[Reason] = frozenset({Reason.PENDING, Reason.STARTING, Reason.LOADING_MODEL})
"""Reasons that every new worker goes through."""
ON_THE_WAY: frozenset[Reason] = BEGINNING | {Reason.SCALING, Reason.ROLLING_OUT}
"""Reasons of a pipeline that has no problem and isn't done yet."""

LOADING = "LoadingModel"
NODE_LOST = "NodeLost"
UNREACHABLE = "Unreachable"
"""Reasons for which Kubernetes has no word."""

_OF_PODS: Mapping[str, Reason] = {
    "ErrImagePull": Reason.IMAGE_PULL_BACK_OFF,
    "ImagePullBackOff": Reason.IMAGE_PULL_BACK_OFF,
    "InvalidImageName": Reason.IMAGE_PULL_BACK_OFF,
    "ErrImageNeverPull": Reason.IMAGE_PULL_BACK_OFF,
    "CrashLoopBackOff": Reason.CRASH_LOOP_BACK_OFF,
    "RunContainerError": Reason.CRASH_LOOP_BACK_OFF,
    "CreateContainerError": Reason.CREATE_CONTAINER_CONFIG_ERROR,
    "CreateContainerConfigError": Reason.CREATE_CONTAINER_CONFIG_ERROR,
    "OOMKilled": Reason.OOM_KILLED,
    "Unschedulable": Reason.UNSCHEDULABLE,
    "SchedulingGated": Reason.UNSCHEDULABLE,
    "SchedulerError": Reason.UNSCHEDULABLE,
    "Evicted": Reason.EVICTED,
    "Failed": Reason.CRASH_LOOP_BACK_OFF,
    "QuotaExceeded": Reason.QUOTA_EXCEEDED,
    "FailedCreate": Reason.ADMISSION_REJECTED,
    LOADING: Reason.LOADING_MODEL,
    NODE_LOST: Reason.NODE_LOST,
    UNREACHABLE: Reason.UNREACHABLE,
}


@dataclass(frozen=True)
class Fact:
    """A condition without its time."""

    type: Type
    status: str
    reason: Reason
    message: str


def reason_of(waiting: str) -> Reason:
    """Return the reason for what Kubernetes reports of a pod."""
    return _OF_PODS.get(waiting, Reason.STARTING)


def conditions(
    facts: Iterable[Fact], previous: Iterable[Mapping[str, Any]], generation: int, now: str
) -> list[dict[str, Any]]:
    """Return the conditions for the status; `now` is used only where a condition's status changed."""
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


class Trouble(NamedTuple):
    """A problem that keeps the reconciler from its work; `final` if only a change of the spec helps."""

    reason: Reason
    message: str
    final: bool
