"""What waits while the NATS of a namespace is away or has just come back: `nats_serves`, `without_rollouts`. Pure.

Without NATS no worker and no frontend is Ready. A rollout would take the old ones for broken, and remove first what
serves as soon as NATS is back. So an upgrade of the platform, which replaces both, replaces NATS first.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynamo.operator.cluster.observe import Live, label
from dynamo.operator.cluster.writes import Apply, Change, Delete, Resize
from dynamo.operator.manifests import naming
from dynamo.operator.plan.workload import Plan

_ONLY_MORE_OR_FEWER = {"spec.replicas"}


def nats_serves(objects: Sequence[Live]) -> bool:
    """Return whether the Deployment among them runs as it is told, and serves for as long as it calls available."""
    deployment = next((item for item in objects if item["kind"] == "Deployment"), None)
    if deployment is None:
        return False
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    is_seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    # Of several, one may be lost with its node: the others serve.
    return bool(is_seen and status.get("updatedReplicas", 0) >= wanted and status.get("availableReplicas", 0) >= 1)


def without_rollouts(todo: Sequence[Change], plan: Plan, live: Sequence[Live]) -> list[Change]:
    """Return the writes that take the place of no pod: creations, other numbers, and all that is no workload."""
    labels = {(item["kind"], item["metadata"]["name"]): item for item in live}
    current = {workload.component: workload.revision for workload in plan.workloads}
    rolling = {label(item, naming.COMPONENT) for item in live if _is_old(item, current)}

    def waits(change: Change) -> bool:
        if isinstance(change, Apply):
            component = label(change.manifest, naming.COMPONENT)
            if change.manifest["kind"] == "Deployment":
                return change.uid is not None and not set(change.because) <= _ONLY_MORE_OR_FEWER
            return change.manifest["kind"] == "StatefulSet" and component in rolling
        if isinstance(change, Delete | Resize):
            target = labels.get((change.target.kind, change.target.name))
            return target is not None and _is_old(target, current)
        return False

    return [change for change in todo if not waits(change)]


def _is_old(item: Live, current: dict[str, str]) -> bool:
    """Return whether it is of a former revision of a component that there still is."""
    component, revision = label(item, naming.COMPONENT), label(item, naming.REVISION)
    return item["kind"] != "Pod" and component in current and revision not in ("", current[component])
