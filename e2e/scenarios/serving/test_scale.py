"""`kubectl scale dp/x`, and a HorizontalPodAutoscaler on the pipeline: both set spec.replicas, and workers follow."""

from __future__ import annotations

from typing import Any

from e2e.cluster.cluster import wait_for
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import PIPELINE_LABEL, asking, is_ready, pipeline, say, workers

NAME = "scaled"
STEP_SECONDS = 240
COUNT_SECONDS = 2


def test_scale(namespace: Namespace) -> None:
    """From one to five and back; it answers all the time, the status counts, and no pod but the new ones is touched."""
    namespace.apply(pipeline(NAME))
    namespace.wait_ready(NAME)
    (first,) = _uids(namespace)
    with asking(namespace, NAME) as client:
        for count in (5, 1):
            assert "scaled" in namespace.kubectl("scale", f"dp/{NAME}", f"--replicas={count}")
            _wait_for_workers(namespace, count)
            assert say(client, NAME)
    assert _uids(namespace) == {first}
    columns = namespace.kubectl("get", "dp", NAME, "--no-headers").split()
    assert columns[1:3] == ["True", "Serving"]
    assert "1/1" in columns


def test_autoscaler(namespace: Namespace) -> None:
    """An autoscaler finds the scale subresource and its pods; the operator leaves the number that it sets alone."""
    namespace.apply(pipeline(NAME))
    namespace.wait_ready(NAME)
    namespace.apply(_autoscaler(least=3, most=5))
    _wait_for_workers(namespace, 3)
    wait_for("the autoscaler can scale", lambda: _able(namespace), STEP_SECONDS)
    namespace.apply(_autoscaler(least=1, most=2))
    _wait_for_workers(namespace, 2)


def test_scale_to_zero_and_back(namespace: Namespace) -> None:
    """Nobody is left, which is what was asked for; then one is back."""
    namespace.apply(pipeline(NAME))
    namespace.wait_ready(NAME)
    namespace.kubectl("scale", f"dp/{NAME}", "--replicas=0")
    wait_for("no worker", lambda: not workers(namespace, NAME), STEP_SECONDS)
    wait_for("it says so", lambda: namespace.condition(NAME).get("reason") == "ScaledToZero", STEP_SECONDS)
    namespace.kubectl("scale", f"dp/{NAME}", "--replicas=1")
    _wait_for_workers(namespace, 1)


def _uids(namespace: Namespace) -> set[str]:
    return {pod["metadata"]["uid"] for pod in workers(namespace, NAME)}


def _wait_for_workers(namespace: Namespace, count: int) -> None:
    def reached() -> bool:
        pods = workers(namespace, NAME)
        # The operator counts what the StatefulSet's controller reports, which on a busy machine lags behind the pods.
        return len(pods) == count and all(map(is_ready, pods)) and _reported(namespace) == (count, count)

    wait_for(f"{count} workers are Ready", reached, STEP_SECONDS)
    namespace.wait_ready(NAME, STEP_SECONDS)
    # The status may lag behind by as much as it ever may (docs/contributing/promises.md).
    wait_for(f"the status counts {count}", lambda: _counted(namespace) == (count, count, count), COUNT_SECONDS)


def _reported(namespace: Namespace) -> tuple[int, int]:
    """The replicas and the ready ones by the StatefulSet's own status."""
    sets = namespace.list("apps/v1/StatefulSet", f"{PIPELINE_LABEL}={NAME}")
    statuses = [item.get("status", {}) for item in sets]
    return sum(s.get("replicas", 0) for s in statuses), sum(s.get("readyReplicas", 0) for s in statuses)


def _counted(namespace: Namespace) -> tuple[int, int, int]:
    (component,) = namespace.pipeline(NAME)["status"]["components"]
    return component["replicas"], component["updatedReplicas"], component["readyReplicas"]


def _autoscaler(least: int, most: int) -> dict[str, Any]:
    """Nobody measures here: what it does is keep the number between the two bounds."""
    target = {"apiVersion": "dynamo.dev/v1alpha1", "kind": "DynamoPipeline", "name": NAME}
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
    spec = {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": most, "metrics": [cpu]}
    kind = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": NAME}}
    return {**kind, "spec": spec}


def _able(namespace: Namespace) -> bool:
    found = namespace.get("autoscaling/v2/HorizontalPodAutoscaler", NAME) or {}
    conditions = {c["type"]: c["status"] for c in found.get("status", {}).get("conditions", [])}
    return conditions.get("AbleToScale") == "True" and found["status"].get("currentReplicas") == 3
