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
    """What a condition is about; `TYPES` says when each holds."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    AVAILABLE = "Available"
    FRONTEND_READY = "FrontendReady"
    WORKERS_READY = "WorkersReady"
    MODEL_LOADED = "ModelLoaded"


class Reason(StrEnum):
    """Why a condition is as it is: a closed set; `REASONS` says what each means."""

    OBSERVING = "Observing"
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
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CRASH_LOOPING = "CrashLooping"
    OUT_OF_MEMORY = "OutOfMemory"
    CONFIG_MISSING = "ConfigMissing"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    UNREACHABLE = "Unreachable"
    INVALID_SPEC = "InvalidSpec"
    REFUSED = "Refused"
    NAME_TAKEN = "NameTaken"
    QUOTA_EXCEEDED = "QuotaExceeded"
    FORBIDDEN = "Forbidden"
    API_SERVER_FAILING = "ApiServerFailing"


TYPES: Mapping[Type, str] = {
    Type.READY: "this generation serves: every part has all it should, and nothing old is left",
    Type.RECONCILING: "on the way, or waiting for what may come by itself; there only while it holds",
    Type.STALLED: "only an edit, or of what is in the way, helps; there only while it holds",
    Type.AVAILABLE: "a request that comes now finds a frontend, and a worker of every component",
    Type.FRONTEND_READY: "as many frontends as wanted are ready, of this template, and no others are left",
    Type.WORKERS_READY: "as many workers as wanted are ready, of this revision, and no others are left",
    Type.MODEL_LOADED: "of every component, a worker of this revision has loaded the model, and can be routed to",
}

REASONS: Mapping[Reason, str] = {
    Reason.SERVING: "every part is ready and the endpoint serves",
    Reason.AVAILABLE: "requests are answered",
    Reason.ALL_READY: "as many as wanted are ready",
    Reason.LOADED: "every component has a worker with the model loaded",
    Reason.SCALED_TO_ZERO: "none are wanted",
    Reason.OBSERVING: "the operator has seen this generation and begins",
    Reason.STARTING: "pods are made and start; the message names one that doesn't serve yet",
    Reason.LOADING_MODEL: "a pod loads its model before its worker starts (the init container `model`)",
    Reason.ROLLING_OUT: "pods of this revision replace those of others",
    Reason.SCALING: "more are there than wanted, and they end",
    Reason.NO_FRONTEND: "no frontend is ready, so nobody answers",
    Reason.NO_WORKERS: "a component has no worker that can be reached",
    Reason.UNSCHEDULABLE: "a pod finds no node; the message has the scheduler's words",
    Reason.IMAGE_PULL_FAILED: "a pod's image can't be pulled",
    Reason.CRASH_LOOPING: "a container ends again and again; the message has exit code and last line of its log",
    Reason.OUT_OF_MEMORY: "a container was killed for taking more memory than its limit",
    Reason.CONFIG_MISSING: "a pod names a Secret or ConfigMap that isn't there, or a container that can't be made",
    Reason.EVICTED: "a node has thrown a pod out",
    Reason.NODE_LOST: "a pod hangs on a node that doesn't answer; another one takes its place, unless an autoscaler "
    "sets their number",
    Reason.UNREACHABLE: "a worker's pod is ready, but the frontends can't reach it: its node, or the way to NATS, "
    "may be gone",
    Reason.INVALID_SPEC: "the spec can't become a deployment; the message names the field",
    Reason.REFUSED: "the API server refuses a part for what the spec says; the message has its sentence",
    Reason.NAME_TAKEN: "an object of somebody else has a name that a part needs; it is left alone",
    Reason.QUOTA_EXCEEDED: "a quota of the namespace is used up; tried again, at least every five minutes",
    Reason.FORBIDDEN: "the operator lacks a right; tried again, at least every five minutes",
    Reason.API_SERVER_FAILING: "the API server fails again and again at something that the pipeline needs; the message "
    "has its words; tried again, at least every five minutes",
}

WORST_FIRST: tuple[Reason, ...] = (
    Reason.CONFIG_MISSING,
    Reason.IMAGE_PULL_FAILED,
    Reason.OUT_OF_MEMORY,
    Reason.CRASH_LOOPING,
    Reason.UNSCHEDULABLE,
    Reason.EVICTED,
    Reason.QUOTA_EXCEEDED,
    Reason.REFUSED,
    Reason.LOADING_MODEL,
    Reason.NODE_LOST,
    Reason.UNREACHABLE,
    Reason.STARTING,
)

BEGINNING: frozenset[Reason] = frozenset({Reason.OBSERVING, Reason.STARTING, Reason.LOADING_MODEL})
"""What every new worker goes through."""
ON_THE_WAY: frozenset[Reason] = BEGINNING | {Reason.SCALING, Reason.ROLLING_OUT}
"""Nothing is wrong; it only isn't done."""

LOADING = "LoadingModel"
NODE_LOST = "NodeLost"
UNREACHABLE = "Unreachable"
"""Kubernetes has no words for these."""

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
    "SchedulerError": Reason.UNSCHEDULABLE,
    "Evicted": Reason.EVICTED,
    "Failed": Reason.CRASH_LOOPING,
    "QuotaExceeded": Reason.QUOTA_EXCEEDED,
    "FailedCreate": Reason.REFUSED,
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
