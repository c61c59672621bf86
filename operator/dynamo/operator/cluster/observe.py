"""What the cluster has of a pipeline, read out of live objects: `observe(objects, now) -> Observed`. Pure.

Counts come from pods, not from the StatefulSets' own status, which lags and knows no
ordinals. A pod that should be gone by now (its node is dead) counts as gone, and its number
as lost: Kubernetes makes no other pod of that name until somebody is sure that the node is dead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any, NamedTuple

from dynamo.operator.api.conditions import LOADING, NODE_LOST, UNREACHABLE
from dynamo.operator.cluster.pod_faults import StartLimit, claims_of, failing, start_limit
from dynamo.operator.cluster.termination_message import chosen, gist
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.server import CONTAINER as SERVER
from dynamo.operator.manifests.workers import CONTAINER, LOADER
from dynamo.operator.plan.rollout import RevisionSet

Live = Mapping[str, Any]
OVERDUE_SECONDS = 60
"""After this long beyond its grace, a pod that still ends hangs on a dead node."""

_SELECTING = ("StatefulSet", "Deployment")
MERELY_STARTING = ("ContainerCreating", "PodInitializing")
GIST_CHARACTERS = 300
"""Of a log's last line."""
_STARTING = "Starting"


class Waiting(NamedTuple):
    """A pod that doesn't serve, and why."""

    pod: str
    reason: str
    """As Kubernetes calls it: ImagePullBackOff, Unschedulable, CrashLoopBackOff, …; LoadingModel or Starting
    without a worse one."""
    message: str


@dataclass(frozen=True)
class DeploymentFacts:
    """The frontends' Deployment, as far as its controller has seen the current spec."""

    wanted: int
    ready: int
    updated: int
    total: int
    seen: bool

    @property
    def done(self) -> bool:
        """Return whether all pods are of the current template and ready, and no others are left."""
        return self.seen and self.updated == self.ready == self.total == self.wanted


@dataclass(frozen=True)
class Observed:
    """Everything that the status and `converge` are made from."""

    frontend: DeploymentFacts | None = None
    sets: tuple[RevisionSet, ...] = ()
    waiting: Mapping[str, tuple[Waiting, ...]] | None = None
    """By component, in the order of the pods' names."""
    unreachable: Mapping[str, int] = field(default_factory=dict)
    """By component: pods that Kubernetes calls ready, and the frontends can't reach; not among the sets' ready ones."""
    nats: Waiting | None = None
    """Why the NATS of the namespace doesn't serve, where it has its own."""
    remarks: tuple[str, ...] = ()
    """What workers that serve remark of themselves, each with its pod."""

    def waiting_for(self, component: str) -> tuple[Waiting, ...]:
        """Return why pods of a component don't serve."""
        return (self.waiting or {}).get(component, ())


def observe(
    objects: Iterable[Live], now: datetime, lost: Collection[str] = (), remarks: Mapping[str, str] | None = None
) -> Observed:
    """Return what live objects with the pipeline's label show.

    `lost`: pods that the frontends can't reach. `remarks`: what workers say of themselves, by pod.
    """
    remarks = remarks or {}
    live = [
        _unreached(item) if item["kind"] == "Pod" and item["metadata"]["name"] in lost else item for item in objects
    ]
    pods = [o for o in live if o["kind"] == "Pod" and not _overdue(o, now)]
    hanging = [o for o in live if o["kind"] == "Pod" and _overdue(o, now)]
    sets = [o for o in live if o["kind"] == "StatefulSet"]
    deployment = next((o for o in live if o["kind"] == "Deployment"), None)
    waiting: dict[str, list[Waiting]] = {}
    sources = (_refused(deployment), _waiting(pods, remarks), _hanging(hanging), _missing(sets, pods + hanging))
    for component, reason in chain.from_iterable(sources):
        waiting.setdefault(component, []).append(reason)
    return Observed(
        frontend=deployment_facts(deployment) if deployment else None,
        sets=tuple(revision_sets(sets, pods, hanging)),
        waiting={component: tuple(sorted(reasons)) for component, reasons in waiting.items()},
        unreachable=Counter(label(pod, naming.COMPONENT) for pod in pods if _is_unreached(pod)),
        remarks=tuple(sorted(_remarks_of_ready(pods, remarks))),
    )


def why_not(objects: Iterable[Live], name: str) -> Waiting | None:
    """Return why a Deployment of one pod doesn't serve, out of both; None where it does."""
    live = list(objects)
    pods = [item for item in live if item["kind"] == "Pod"]
    if any(map(is_ready, pods)):
        return None
    deployment = next((item for item in live if item["kind"] == "Deployment"), None)
    reasons = (*(reason for _, reason in _refused(deployment)), *filter(None, map(why, pods)))
    return next(iter(reasons), Waiting(f"of {name}", _STARTING, "is not created yet"))


def _unreached(pod: Live) -> Live:
    """Return a ready pod as one that isn't: the frontends can't reach it."""
    if not is_ready(pod):
        return pod
    others = [c for c in pod["status"]["conditions"] if c["type"] != "Ready"]
    unready = {"type": "Ready", "status": "False", "reason": UNREACHABLE}
    return {**pod, "status": {**pod["status"], "conditions": [*others, unready]}}


def _is_unreached(pod: Live) -> bool:
    return any(c.get("reason") == UNREACHABLE for c in pod.get("status", {}).get("conditions", []))


def _remarks_of_ready(pods: Iterable[Live], remarks: Mapping[str, str]) -> Iterator[str]:
    for pod in filter(is_ready, pods):
        name = str(pod["metadata"]["name"])
        if name in remarks:
            yield f"pod {name}: {remarks[name]}"


def _waiting(pods: Iterable[Live], remarks: Mapping[str, str]) -> Iterator[tuple[str, Waiting]]:
    """Yield pods that don't serve, by component."""
    for pod in pods:
        if reason := why(pod, remarks.get(str(pod["metadata"]["name"]), "")):
            yield label(pod, naming.COMPONENT), reason


def _hanging(pods: Iterable[Live]) -> Iterator[tuple[str, Waiting]]:
    """Yield pods that should be gone: they end only when their node answers again, or is deleted."""
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        remedy = f"kubectl delete node {node}" if node else "delete its Node object"
        message = f"is stuck terminating: node {node or 'unknown'} is not responding; if the node is gone: {remedy}"
        yield label(pod, naming.COMPONENT), Waiting(str(pod["metadata"]["name"]), NODE_LOST, message)


def _missing(sets: Iterable[Live], pods: Sequence[Live]) -> Iterator[tuple[str, Waiting]]:
    """Yield each set's first pod that wasn't created: a set's status never says why (a quota, an admission)."""
    there = {str(pod["metadata"]["name"]) for pod in pods}
    for stateful_set in sets:
        name = str(stateful_set["metadata"]["name"])
        wanted = (f"{name}-{number}" for number in range(stateful_set.get("spec", {}).get("replicas", 1)))
        lacking = next((pod for pod in wanted if pod not in there), None)
        if lacking is not None and not stateful_set["metadata"].get("deletionTimestamp"):
            message = f"is not created yet (if this persists, see: kubectl describe statefulset {name})"
            yield label(stateful_set, naming.COMPONENT), Waiting(lacking, _STARTING, message)


def _refused(deployment: Live | None) -> Iterator[tuple[str, Waiting]]:
    """Yield why the Deployment's controller may not create pods."""
    for condition in (deployment or {}).get("status", {}).get("conditions", []):
        if deployment and (condition["type"], condition["status"]) == ("ReplicaFailure", "True"):
            message = str(condition.get("message", ""))
            reason = "QuotaExceeded" if "exceeded quota" in message else "FailedCreate"
            yield label(deployment, naming.COMPONENT), Waiting(f"of {deployment['metadata']['name']}", reason, message)


def deployment_facts(deployment: Live) -> DeploymentFacts:
    """Return the counts, and whether they are of the current spec."""
    spec, status = deployment.get("spec", {}), deployment.get("status", {})
    return DeploymentFacts(
        wanted=spec.get("replicas", 1),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        total=status.get("replicas", 0),
        seen=status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0),
    )


def revision_sets(sets: Iterable[Live], pods: Iterable[Live], hanging: Iterable[Live] = ()) -> list[RevisionSet]:
    """Return a set per component and revision, in a fixed order; a group serves when all of its pods do.

    `hanging` are pods that aren't among `pods`: they count as gone. A group with one of them is lost.
    """
    by_revision: dict[tuple[str, str], list[Live]] = {}
    for stateful_set in sets:
        if not stateful_set["metadata"].get("deletionTimestamp"):
            by_revision.setdefault(
                (label(stateful_set, naming.COMPONENT), label(stateful_set, naming.REVISION)), []
            ).append(stateful_set)
    all_pods, all_hanging = list(pods), list(hanging)
    return [
        _revision_set(*key, by_revision[key], own=_of(*key, all_pods), hanging=_of(*key, all_hanging))
        for key in sorted(by_revision)
    ]


def _of(component: str, revision: str, pods: Iterable[Live]) -> list[Live]:
    return [p for p in pods if (label(p, naming.COMPONENT), label(p, naming.REVISION)) == (component, revision)]


def _revision_set(component: str, revision: str, sets: list[Live], own: list[Live], hanging: list[Live]) -> RevisionSet:
    grouped = {int(label(s, naming.GROUP)): s for s in sets if label(s, naming.GROUP).isdecimal()}
    if not grouped:
        ready, lost = _ordinals(p for p in own if is_ready(p)), _ordinals(hanging)
        return RevisionSet(
            component,
            revision=revision,
            replicas=sets[0].get("spec", {}).get("replicas", 1),
            ready=ready,
            present=len(own),
            lost=lost,
        )
    members = {group: [p for p in own if label(p, naming.GROUP) == str(group)] for group in grouped}
    lost = frozenset(int(g) for g in (label(p, naming.GROUP) for p in hanging) if g.isdecimal())
    whole = frozenset(
        group
        for group, stateful_set in grouped.items()
        if group not in lost
        and sum(is_ready(p) for p in members[group]) >= stateful_set.get("spec", {}).get("replicas", 1)
    )
    present = sum(bool(pods) for pods in members.values())
    return RevisionSet(component, revision=revision, replicas=max(grouped) + 1, ready=whole, present=present, lost=lost)


def _ordinals(pods: Iterable[Live]) -> frozenset[int]:
    return frozenset(number for number in map(ordinal, pods) if number is not None)


def is_ready(pod: Live) -> bool:
    """Return whether a pod serves and isn't ending."""
    conditions = pod.get("status", {}).get("conditions", [])
    return not pod["metadata"].get("deletionTimestamp") and any(
        c["type"] == "Ready" and c["status"] == "True" for c in conditions
    )


def ordinal(pod: Live) -> int | None:
    """Return its number in its StatefulSet."""
    number = str(pod["metadata"]["name"]).rpartition("-")[2]
    return int(number) if number.isdecimal() else None


def label(live: Live, name: str) -> str:
    """Return a label, empty where there is none; a workload's selector has it, too, and can't be edited."""
    selected = live.get("spec", {}).get("selector") if live.get("kind") in _SELECTING else None
    kept = (selected or {}).get("matchLabels", {})
    return str(kept.get(name) or live["metadata"].get("labels", {}).get(name, ""))


def why(pod: Live, remark: str = "") -> Waiting | None:
    """Return why a pod doesn't serve; None where it does, or is ending. `remark`: what its worker says of itself."""
    if is_ready(pod) or pod["metadata"].get("deletionTimestamp"):
        return None
    name, status = str(pod["metadata"]["name"]), pod.get("status", {})
    before, statuses = status.get("initContainerStatuses", []), status.get("containerStatuses", [])
    limit = start_limit(pod)
    reason = next((w for w in (_container(name, s, limit) for s in (*before, *statuses)) if w), None)
    if reason:
        return reason
    if any(container.get("name") == LOADER and "running" in container.get("state", {}) for container in before):
        return Waiting(name, LOADING, "is loading its model")
    if any(_is_waited_for(container) for container in before):
        return Waiting(name, LOADING, "waits for its server, which does not listen yet")
    if _is_unreached(pod):
        return Waiting(name, UNREACHABLE, "is ready, but the frontends can't reach it")
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            message = f"{condition.get('message', '')}{claims_of(pod)}"
            return Waiting(name, condition.get("reason") or "Unschedulable", message)
    if status.get("phase") == "Failed":
        return Waiting(name, status.get("reason") or "Failed", status.get("message", ""))
    if claims := claims_of(pod):
        return Waiting(name, _STARTING, f"is not ready yet{claims}")  # the scheduler says nothing until they are made
    return Waiting(name, _STARTING, f"is not ready yet{f': {remark}' if remark else _since(statuses)}")


def _since(statuses: Iterable[Mapping[str, Any]]) -> str:
    """Return since when a worker's process runs that answers; the time never changes, so nothing is rewritten."""
    worker = next((s for s in statuses if s.get("name") == CONTAINER), {})
    started = worker.get("state", {}).get("running", {}).get("startedAt")
    return f": it loads its model, running since {started}" if started and worker.get("started") else ""


def _is_waited_for(container: Mapping[str, Any]) -> bool:
    """Return whether it is a server that runs, and does not listen yet."""
    return container.get("name") == SERVER and "running" in container.get("state", {}) and not container.get("started")


def _container(pod: str, status: Mapping[str, Any], limit: StartLimit | None) -> Waiting | None:
    """Return why a container waits for what may never come; the former one's last words tell why.

    `limit` is that of its server, if any: one that is ended for it may well end with 0.
    """
    waiting = status.get("state", {}).get("waiting", {})
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated") or {}
    reason = waiting.get("reason", "")
    has_failed = bool(ended.get("exitCode") or (ended and status.get("name") == SERVER))
    if reason == "CrashLoopBackOff" or (has_failed and not status.get("ready")):
        worst = "OOMKilled" if ended.get("reason") == "OOMKilled" else "CrashLoopBackOff"
        doing = failing(str(status.get("name")), ended, limit)
        detail = _last_words(ended) or waiting.get("message", "")
        return Waiting(pod, worst, ": ".join(part for part in (doing, detail) if part))
    if reason and reason not in MERELY_STARTING:
        return Waiting(pod, reason, waiting.get("message", ""))
    return None


def _last_words(ended: Mapping[str, Any]) -> str:
    code = f"exit code {ended['exitCode']}" if "exitCode" in ended else ""
    line = gist(chosen(str(ended.get("message", "")).splitlines()), GIST_CHARACTERS)
    return ": ".join(part for part in (code, line) if part)


def _overdue(pod: Live, now: datetime) -> bool:
    """Return whether it is long past its grace: Kubernetes sets `deletionTimestamp` to when that ends."""
    text = pod["metadata"].get("deletionTimestamp")
    if not text:
        return False
    end = datetime.fromisoformat(str(text).replace("Z", "+00:00")).astimezone(UTC)
    return (now - end).total_seconds() > OVERDUE_SECONDS
