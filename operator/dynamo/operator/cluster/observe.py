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
from operator import itemgetter
from typing import Any, NamedTuple

from dynamo.operator.conditions import LOADING, NODE_LOST, UNREACHABLE
from dynamo.operator.converge import RevisionSet
from dynamo.operator.last_words import chosen, gist
from dynamo.operator.resources import naming
from dynamo.operator.resources.loading import CONTAINER as LOADER

Live = Mapping[str, Any]
OVERDUE_SECONDS = 60
"""After this long beyond its grace, a pod that still ends hangs on a dead node."""

_SELECTING = ("StatefulSet", "Deployment")
MERELY_STARTING = ("ContainerCreating", "PodInitializing")
GIST_CHARACTERS = 300
"""Of a log's last line."""
_STARTING = "Starting"


class Waiting(NamedTuple):
    """Why a pod doesn't serve."""

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
        """All pods are of the current template and ready, and no others are left."""
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

    def waiting_for(self, component: str) -> tuple[Waiting, ...]:
        """Why pods of a component don't serve."""
        return (self.waiting or {}).get(component, ())


def observe(objects: Iterable[Live], now: datetime, lost: Collection[str] = ()) -> Observed:
    """From all live objects that bear the pipeline's label; `lost`: pods that the frontends can't reach."""
    live = [_unreached(one) if one["kind"] == "Pod" and one["metadata"]["name"] in lost else one for one in objects]
    pods = [o for o in live if o["kind"] == "Pod" and not _overdue(o, now)]
    hanging = [o for o in live if o["kind"] == "Pod" and _overdue(o, now)]
    sets = [o for o in live if o["kind"] == "StatefulSet"]
    deployment = next((o for o in live if o["kind"] == "Deployment"), None)
    waiting: dict[str, list[Waiting]] = {}
    told = (_refused(deployment), _waiting(pods), _hanging(hanging), _missing(sets, pods + hanging))
    for component, found in chain.from_iterable(told):
        waiting.setdefault(component, []).append(found)
    return Observed(
        frontend=deployment_facts(deployment) if deployment else None,
        sets=tuple(revision_sets(sets, pods, hanging)),
        waiting={component: tuple(sorted(each)) for component, each in waiting.items()},
        unreachable=Counter(label(pod, naming.COMPONENT) for pod in pods if _is_unreached(pod)),
    )


def _unreached(pod: Live) -> Live:
    """A ready pod that isn't ready to those who matter."""
    if not is_ready(pod):
        return pod
    others = [c for c in pod["status"]["conditions"] if c["type"] != "Ready"]
    unready = {"type": "Ready", "status": "False", "reason": UNREACHABLE}
    return {**pod, "status": {**pod["status"], "conditions": [*others, unready]}}


def _is_unreached(pod: Live) -> bool:
    return any(c.get("reason") == UNREACHABLE for c in pod.get("status", {}).get("conditions", []))


def _waiting(pods: Iterable[Live]) -> Iterator[tuple[str, Waiting]]:
    """By component: pods that don't serve."""
    for pod in pods:
        if found := why(pod):
            yield label(pod, naming.COMPONENT), found


def _hanging(pods: Iterable[Live]) -> Iterator[tuple[str, Waiting]]:
    """Pods that should be gone: only a node that answers again, or whoever deletes it, ends them."""
    for pod in pods:
        message = "should have ended long ago: its node doesn't answer"
        yield label(pod, naming.COMPONENT), Waiting(str(pod["metadata"]["name"]), NODE_LOST, message)


def _missing(sets: Iterable[Live], pods: Sequence[Live]) -> Iterator[tuple[str, Waiting]]:
    """The first pod of each set that nobody has made: a set's own status never says why (a quota, an admission)."""
    there = {str(pod["metadata"]["name"]) for pod in pods}
    for one in sets:
        name = str(one["metadata"]["name"])
        wanted = (f"{name}-{number}" for number in range(one.get("spec", {}).get("replicas", 1)))
        lacking = next((pod for pod in wanted if pod not in there), None)
        if lacking is not None and not one["metadata"].get("deletionTimestamp"):
            message = f"is not made yet (if it stays so, the Events of StatefulSet {name} tell why)"
            yield label(one, naming.COMPONENT), Waiting(lacking, _STARTING, message)


def _refused(deployment: Live | None) -> Iterator[tuple[str, Waiting]]:
    """Where the Deployment's controller may not make pods, it says why."""
    for condition in (deployment or {}).get("status", {}).get("conditions", []):
        if deployment and (condition["type"], condition["status"]) == ("ReplicaFailure", "True"):
            message = str(condition.get("message", ""))
            reason = "QuotaExceeded" if "exceeded quota" in message else "FailedCreate"
            yield label(deployment, naming.COMPONENT), Waiting(f"of {deployment['metadata']['name']}", reason, message)


def deployment_facts(deployment: Live) -> DeploymentFacts:
    """The counts, and whether they speak of the current spec."""
    spec, status = deployment.get("spec", {}), deployment.get("status", {})
    return DeploymentFacts(
        wanted=spec.get("replicas", 1),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        total=status.get("replicas", 0),
        seen=status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0),
    )


def revision_sets(sets: Iterable[Live], pods: Iterable[Live], hanging: Iterable[Live] = ()) -> list[RevisionSet]:
    """One per component and revision, in a fixed order; a group serves when all of its pods do.

    `hanging` are pods that aren't among `pods`: they count as gone. A group with one of them is lost.
    """
    by_revision: dict[tuple[str, str], list[Live]] = {}
    for one in sets:
        if not one["metadata"].get("deletionTimestamp"):
            by_revision.setdefault((label(one, naming.COMPONENT), label(one, naming.REVISION)), []).append(one)
    all_pods, all_hanging = list(pods), list(hanging)
    return [
        _revision_set(component, revision, each, _of(component, revision, all_pods),
                      _of(component, revision, all_hanging))
        for (component, revision), each in sorted(by_revision.items(), key=itemgetter(0))
    ]  # fmt: skip


def _of(component: str, revision: str, pods: Iterable[Live]) -> list[Live]:
    return [p for p in pods if (label(p, naming.COMPONENT), label(p, naming.REVISION)) == (component, revision)]


def _revision_set(component: str, revision: str, sets: list[Live], own: list[Live], hanging: list[Live]) -> RevisionSet:
    grouped = {int(label(s, naming.GROUP)): s for s in sets if label(s, naming.GROUP).isdecimal()}
    if not grouped:
        ready, lost = _ordinals(p for p in own if is_ready(p)), _ordinals(hanging)
        return RevisionSet(component, revision, sets[0].get("spec", {}).get("replicas", 1), ready, len(own), lost)
    members = {group: [p for p in own if label(p, naming.GROUP) == str(group)] for group in grouped}
    lost = frozenset(int(g) for g in (label(p, naming.GROUP) for p in hanging) if g.isdecimal())
    whole = frozenset(
        group
        for group, one in grouped.items()
        if group not in lost and sum(is_ready(p) for p in members[group]) >= one.get("spec", {}).get("replicas", 1)
    )
    present = sum(bool(found) for found in members.values())
    return RevisionSet(component, revision, max(grouped) + 1, whole, present, lost)


def _ordinals(pods: Iterable[Live]) -> frozenset[int]:
    return frozenset(number for number in map(ordinal, pods) if number is not None)


def is_ready(pod: Live) -> bool:
    """Serving, and not told to end."""
    conditions = pod.get("status", {}).get("conditions", [])
    return not pod["metadata"].get("deletionTimestamp") and any(
        c["type"] == "Ready" and c["status"] == "True" for c in conditions
    )


def ordinal(pod: Live) -> int | None:
    """Its number in its StatefulSet."""
    number = str(pod["metadata"]["name"]).rpartition("-")[2]
    return int(number) if number.isdecimal() else None


def label(live: Live, name: str) -> str:
    """A label, empty where there is none; a workload's selector says it, too, and can't be edited."""
    selected = live.get("spec", {}).get("selector") if live.get("kind") in _SELECTING else None
    kept = (selected or {}).get("matchLabels", {})
    return str(kept.get(name) or live["metadata"].get("labels", {}).get(name, ""))


def why(pod: Live) -> Waiting | None:
    """Why a pod doesn't serve; None where it does, or is told to end."""
    if is_ready(pod) or pod["metadata"].get("deletionTimestamp"):
        return None
    name, status = str(pod["metadata"]["name"]), pod.get("status", {})
    before, statuses = status.get("initContainerStatuses", []), status.get("containerStatuses", [])
    found = next((w for w in (_container(name, s) for s in (*before, *statuses)) if w), None)
    if found:
        return found
    if any(one.get("name") == LOADER and "running" in one.get("state", {}) for one in before):
        return Waiting(name, LOADING, "loads its model")
    if _is_unreached(pod):
        return Waiting(name, UNREACHABLE, "it is ready, but the frontends can't reach it")
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Waiting(name, condition.get("reason") or "Unschedulable", condition.get("message", ""))
    if status.get("phase") == "Failed":
        return Waiting(name, status.get("reason") or "Failed", status.get("message", ""))
    return Waiting(name, _STARTING, "is not ready yet")


def _container(pod: str, status: Mapping[str, Any]) -> Waiting | None:
    """A container that waits for something that may never come; the last words of the one before tell why."""
    waiting = status.get("state", {}).get("waiting", {})
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated") or {}
    reason = waiting.get("reason", "")
    if reason == "CrashLoopBackOff" or (ended.get("exitCode") and not status.get("ready")):
        worst = "OOMKilled" if ended.get("reason") == "OOMKilled" else "CrashLoopBackOff"
        doing = "its model could not be loaded" if status.get("name") == LOADER else ""
        said = _last_words(ended) or waiting.get("message", "")
        return Waiting(pod, worst, ": ".join(part for part in (doing, said) if part))
    if reason and reason not in MERELY_STARTING:
        return Waiting(pod, reason, waiting.get("message", ""))
    return None


def _last_words(ended: Mapping[str, Any]) -> str:
    code = f"exit code {ended['exitCode']}" if "exitCode" in ended else ""
    said = gist(chosen(str(ended.get("message", "")).splitlines()), GIST_CHARACTERS)
    return ": ".join(part for part in (code, said) if part)


def _overdue(pod: Live, now: datetime) -> bool:
    """Kubernetes sets `deletionTimestamp` to when the grace ends."""
    text = pod["metadata"].get("deletionTimestamp")
    if not text:
        return False
    end = datetime.fromisoformat(str(text).replace("Z", "+00:00")).astimezone(UTC)
    return (now - end).total_seconds() > OVERDUE_SECONDS
