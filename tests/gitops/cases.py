"""Pipelines in every state that the operator tells of, made by its own code, and what Argo CD should call each.

`python -m tests.gitops.cases` writes them as the test data of Argo CD's health check; `make generate` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from tests.operator.pipelines import body
from tests.operator.played_cluster import Cluster, planned

from dynamo.operator.api.conditions import Reason, Trouble, Type
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.cluster.observe import Observed
from dynamo.operator.reconcile.status import failed_status, first_status, status

FOLDER = Path(__file__).parents[2] / "gitops/argocd/resource_customizations/dynamo.dev/DynamoPipeline"
NOW = "2026-11-21T10:00:00Z"
LONG_AGO = "2026-11-20T10:00:00Z"
URL = "http://llama-frontend.serving.svc:8000"
GENERATION = 3
Object = dict[str, Any]


class Health(StrEnum):
    """Argo CD's words."""

    HEALTHY = "Healthy"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"


HEALTH: Mapping[Reason, Health | None] = {
    Reason.SERVING: Health.HEALTHY,
    Reason.SCALED_TO_ZERO: Health.HEALTHY,
    Reason.PENDING: Health.PROGRESSING,
    Reason.STARTING: Health.PROGRESSING,
    Reason.LOADING_MODEL: Health.PROGRESSING,
    Reason.ROLLING_OUT: Health.PROGRESSING,
    Reason.SCALING: Health.PROGRESSING,
    Reason.UNSCHEDULABLE: Health.PROGRESSING,
    Reason.IMAGE_PULL_BACK_OFF: Health.PROGRESSING,
    Reason.CRASH_LOOP_BACK_OFF: Health.PROGRESSING,
    Reason.OOM_KILLED: Health.PROGRESSING,
    Reason.CREATE_CONTAINER_CONFIG_ERROR: Health.PROGRESSING,
    Reason.EVICTED: Health.PROGRESSING,
    Reason.NODE_LOST: Health.PROGRESSING,
    Reason.UNREACHABLE: Health.PROGRESSING,
    Reason.CREDENTIALS_UNAVAILABLE: Health.PROGRESSING,
    Reason.QUOTA_EXCEEDED: Health.PROGRESSING,
    Reason.FORBIDDEN: Health.PROGRESSING,
    Reason.API_SERVER_FAILING: Health.PROGRESSING,
    Reason.INVALID_SPEC: Health.DEGRADED,
    Reason.MISSING_IMAGE: Health.DEGRADED,
    Reason.ADMISSION_REJECTED: Health.DEGRADED,
    Reason.NAME_CONFLICT: Health.DEGRADED,
    # Of other conditions than Ready: they say nothing of the whole.
    Reason.AVAILABLE: None,
    Reason.ALL_READY: None,
    Reason.LOADED: None,
    Reason.NO_FRONTEND: None,
    Reason.NO_WORKERS: None,
}
"""What a pipeline is whose Ready has this reason. Trouble that may pass is on the way, as for kstatus: a sync that
failed for it would have to be started again by hand once a node or a quota is there."""

PODS: Mapping[Reason, Object] = {
    Reason.UNSCHEDULABLE: {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes are available"}]},
    Reason.IMAGE_PULL_BACK_OFF: {"containerStatuses": [
        {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]},
    Reason.CRASH_LOOP_BACK_OFF: {"containerStatuses": [
        {"state": {"waiting": {"reason": "CrashLoopBackOff"}},
         "lastState": {"terminated": {"exitCode": 2, "message": "no such model"}}}]},
    Reason.OOM_KILLED: {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
    Reason.CREATE_CONTAINER_CONFIG_ERROR: {"containerStatuses": [
        {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}}}]},
    Reason.LOADING_MODEL: {"initContainerStatuses": [{"name": "model", "state": {"running": {}}}]},
    Reason.EVICTED: {"phase": "Failed", "reason": "Evicted", "message": "disk pressure"},
}  # fmt: skip
"""How the second worker's pod then is."""

TROUBLES: Mapping[Reason, Trouble] = {
    Reason.INVALID_SPEC: Trouble(Reason.INVALID_SPEC, "spec.components[0].engineArgs: no such flag", final=True),
    Reason.MISSING_IMAGE: Trouble(
        Reason.MISSING_IMAGE, "spec.components[0]: no image is configured for engine vllm", final=True
    ),
    Reason.ADMISSION_REJECTED: Trouble(
        Reason.ADMISSION_REJECTED, "StatefulSet llama-worker: spec.template is invalid", final=True
    ),
    Reason.NAME_CONFLICT: Trouble(Reason.NAME_CONFLICT, "Service llama-frontend belongs to somebody else", final=True),
    Reason.CREDENTIALS_UNAVAILABLE: Trouble(
        Reason.CREDENTIALS_UNAVAILABLE, "could not create its user in etcd: no answer; trying again", final=False
    ),
    Reason.QUOTA_EXCEEDED: Trouble(Reason.QUOTA_EXCEEDED, "exceeded quota: small", final=False),
    Reason.FORBIDDEN: Trouble(Reason.FORBIDDEN, "services is forbidden", final=False),
    Reason.API_SERVER_FAILING: Trouble(
        Reason.API_SERVER_FAILING, "Service llama-frontend: 500, failed to allocate a serviceIP: range is full", False
    ),
}


class Case(NamedTuple):
    """A pipeline as the API server has it, and its health."""

    name: str
    pipeline: Object
    health: Health
    message: str


def cases() -> Iterator[Case]:
    """One for each reason that Ready may have, and those that have no reason yet or an old one."""
    for reason, stated in statuses().items():
        health = HEALTH[reason]
        assert health is not None
        yield Case(_kebab(reason), _pipeline(stated), health, _said(stated))
    serving = statuses()[Reason.SERVING]
    waits = "no operator has looked at it yet"
    yield Case("without-status", _pipeline(None), Health.PROGRESSING, waits)
    yield Case("without-conditions", _pipeline({"observedGeneration": GENERATION}), Health.PROGRESSING, waits)
    edited = _pipeline(serving)
    edited["metadata"]["generation"] += 1
    waits = "no operator has looked at its last change yet"
    yield Case("edited-while-serving", edited, Health.PROGRESSING, waits)
    edited = _pipeline(statuses()[Reason.ADMISSION_REJECTED])
    edited["metadata"]["generation"] += 1
    yield Case("edited-while-rejected", edited, Health.PROGRESSING, waits)
    leaving = _pipeline(serving)
    leaving["metadata"]["deletionTimestamp"] = NOW
    yield Case("being-deleted", leaving, Health.PROGRESSING, "being deleted")


def statuses() -> dict[Reason, Object]:
    """By the reason of Ready; each made by the operator from what a cluster shows."""
    two, three, none = _typed(replicas=2), _typed(replicas=3), _typed(replicas=0)
    started, settled, more, rolling = Cluster(), _settled(two), _settled(three), _settled(two)
    started.reconcile(two)
    edited = _typed(replicas=2, kvCacheBlockSize=32)
    rolling.reconcile(edited)
    table = {
        Reason.PENDING: first_status(two, {}, NOW),
        Reason.STARTING: _told(two, started.observed()),
        Reason.SERVING: _told(two, settled.observed()),
        Reason.SCALED_TO_ZERO: _told(none, _settled(none).observed()),
        Reason.SCALING: _told(two, more.observed()),
        Reason.ROLLING_OUT: _told(edited, rolling.observed()),
    }
    for reason, pod in PODS.items():
        cluster = _settled(two)
        cluster.objects["Pod", max(cluster.names("Pod"))]["status"] = pod
        table[reason] = _told(two, cluster.observed())
    lost = _settled(two)
    lost.objects["Pod", max(lost.names("Pod"))]["metadata"]["deletionTimestamp"] = LONG_AGO
    table[Reason.NODE_LOST] = _told(two, lost.observed())
    alone = _settled(two)
    table[Reason.UNREACHABLE] = _told(two, alone.observed(lost={max(alone.names("Pod"))}))
    before = table[Reason.SERVING]
    return table | {reason: failed_status(two, trouble, before, NOW) for reason, trouble in TROUBLES.items()}


def write() -> None:
    """The test data, and the file that names it."""
    for old in (FOLDER / "testdata").glob("*.yaml"):
        old.unlink()
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


def files() -> dict[Path, str]:
    """What `write` writes."""
    files, tests = {}, []
    for case in cases():
        path = f"testdata/{case.name}.yaml"
        files[FOLDER / path] = yaml.safe_dump(case.pipeline, sort_keys=False)
        status_of = {"status": str(case.health), "message": case.message}
        tests.append({"healthStatus": status_of, "inputPath": path})
    files[FOLDER / "health_test.yaml"] = yaml.safe_dump({"tests": tests}, sort_keys=False, width=1000)
    return files


def _typed(**component: Any) -> DynamoPipeline:
    raw = body({"components": [{"name": "worker", "engine": "mocker", **component}]})
    raw["metadata"]["generation"] = GENERATION
    return DynamoPipeline.model_validate(raw, strict=False)


def _settled(pipeline: DynamoPipeline) -> Cluster:
    cluster = Cluster()
    cluster.settle(pipeline)
    return cluster


def _told(pipeline: DynamoPipeline, observed: Observed) -> Object:
    return status(pipeline, planned(pipeline), observed, {}, NOW, url=URL)


def _pipeline(status_of_it: Object | None) -> Object:
    """As the server gives it; the spec is the same in all, since nothing here reads it."""
    raw = body({"components": [{"name": "worker", "engine": "mocker", "replicas": 2}]})
    raw["metadata"]["generation"] = GENERATION
    # Plain data: a status has the enumerations' members.
    return json.loads(json.dumps(raw if status_of_it is None else {**raw, "status": status_of_it}))  # type: ignore[no-any-return]


def _said(status_of_it: Object) -> str:
    """Reason and message of what decides: Stalled, else Reconciling, else Ready."""
    by_type = {condition["type"]: condition for condition in status_of_it["conditions"]}
    worst = next(by_type[kind] for kind in (Type.STALLED, Type.RECONCILING, Type.READY) if kind in by_type)
    return f"{worst['reason']}: {worst['message']}"


def _kebab(reason: Reason) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", reason).lower()


if __name__ == "__main__":
    write()
