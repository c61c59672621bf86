"""What may be written while the NATS of a namespace is away or has just come back: `due`. Pure.

Without NATS no worker and no frontend is Ready. A rollout would take the old ones for broken, and remove first what
serves as soon as NATS is back. So an upgrade of the platform, which replaces both, replaces NATS first.

A hold has an end where Kubernetes says that NATS makes no progress (`progressDeadlineSeconds`), and never keeps anybody
from having less: a NATS for which there is no room waits for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dynamo.operator.cluster.observe import Live, Waiting, label
from dynamo.operator.cluster.writes import Apply, Change, Delete, Resize
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.nats import NAME as NATS
from dynamo.operator.plan.rollout import RevisionSet
from dynamo.operator.plan.workload import Plan

HELD = Waiting(f"of {NATS}", "Starting", "is replaced, or has just come back; rollouts wait for it")
_ONLY_MORE_OR_FEWER = {"spec.replicas"}
_ENTRANCES = {"Service", "NetworkPolicy", "Ingress", "HTTPRoute"}
"""They lead to the pods that a held rollout would make: those of before still need what was."""


def due(
    todo: Sequence[Change],
    plan: Plan,
    live: Sequence[Live],
    sets: Sequence[RevisionSet],
    nats: Sequence[Live] | None,
) -> list[Change]:
    """Return what may be written now; `nats` has the server's objects, None where the pipeline doesn't use one."""
    if not todo or nats is None or nats_serves(nats):
        return [*todo]
    return without_rollouts(todo, plan, live, sets)


def nats_serves(objects: Iterable[Live]) -> bool:
    """Return whether the namespace's NATS runs as it is told, and has been Ready for a while; or makes no progress."""
    deployment = next((o for o in objects if (o["kind"], o["metadata"]["name"]) == ("Deployment", NATS)), None)
    if deployment is None:
        return False
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return False
    if any((c["type"], c["status"]) == ("Progressing", "False") for c in status.get("conditions", ())):
        return True
    # Of several, one may be replaced, or lost with its node: clients use the others.
    is_whole = wanted > 1 or deployment["spec"].get("paused") or status.get("updatedReplicas", 0) >= wanted
    return bool(is_whole and status.get("availableReplicas", 0) >= max(1, wanted - 1))


def without_rollouts(
    todo: Sequence[Change], plan: Plan, live: Sequence[Live], sets: Sequence[RevisionSet]
) -> list[Change]:
    """Return the writes that take the place of no pod: creations, other numbers, and all that is no workload.

    Where a component has more workers than it should have, also while it rolls, old ones may go.
    """
    items = {(item["kind"], item["metadata"]["name"]): item for item in live}
    current = {workload.component: workload.revision for workload in plan.workloads}
    rolling = {s.component for s in sets if s.component in current and s.revision != current[s.component]}
    rolling -= _too_many(plan, sets)

    def waits(change: Change) -> bool:
        if isinstance(change, Apply):
            kind, component = change.manifest["kind"], label(change.manifest, naming.COMPONENT)
            if kind == "Deployment":
                return change.uid is not None and not set(change.because) <= _ONLY_MORE_OR_FEWER
            return kind == "StatefulSet" and component in rolling
        if isinstance(change, Delete | Resize):
            target = items.get((change.target.kind, change.target.name))
            return target is not None and label(target, naming.COMPONENT) in rolling and _is_old(target, current)
        return False

    due = [change for change in todo if not waits(change)]
    return due if len(due) == len(todo) else [change for change in due if not _leads_elsewhere(change)]


def _too_many(plan: Plan, sets: Sequence[RevisionSet]) -> set[str]:
    """Return the components that have more workers than a rollout may bring, or should have none."""
    there = Counter[str]()
    for revision_set in sets:
        there[revision_set.component] += revision_set.replicas
    most = {w.component: w.replicas + w.rollout.max_surge if w.replicas else 0 for w in plan.workers}
    return {component for component, number in most.items() if there[component] > number or not number}


def _leads_elsewhere(change: Change) -> bool:
    return isinstance(change, Apply) and change.uid is not None and change.manifest["kind"] in _ENTRANCES


def _is_old(item: Live, current: dict[str, str]) -> bool:
    """Return whether it is of a former revision of a component that there still is."""
    component, revision = label(item, naming.COMPONENT), label(item, naming.REVISION)
    return item["kind"] != "Pod" and component in current and revision not in ("", current[component])
