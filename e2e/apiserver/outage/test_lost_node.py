"""A node that is gone for good: its pods hang and keep their names, and their work goes on in others."""

from __future__ import annotations

import time

import pytest
from e2e.apiserver.client import until
from e2e.apiserver.world import Note, World

from dynamo.operator.cluster.observe import OVERDUE_SECONDS
from dynamo.operator.kube.resources import PODS, resource_of
from dynamo.operator.reconcile.reconciler import PROGRESS_SECONDS

SETS, BUDGETS = resource_of("StatefulSet"), resource_of("PodDisruptionBudget")
REPLACED_SECONDS = OVERDUE_SECONDS + 2 * PROGRESS_SECONDS


@pytest.mark.full
def test_a_pod_on_a_dead_node_is_replaced(world: World, note: Note) -> None:
    """By one more of its set; nobody deletes it by force. Once the node is back, its set is as before."""
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    (name,) = [item["metadata"]["name"] for item in world.items(SETS)]
    lost = f"{name}-0"
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": lost},
               "target": {"apiVersion": "v1", "kind": "Node", "name": "dead"}}  # fmt: skip
    world.admin.ask("POST", PODS.path(world.namespace, lost, "binding"), binding)
    # As the eviction of a node that doesn't answer: no kubelet ever ends it.
    world.admin.ask("DELETE", f"{PODS.path(world.namespace, lost)}?gracePeriodSeconds=1")
    uid, began = world.uid(PODS, lost), time.monotonic()
    until("it isn't ready", lambda: world.condition()["status"] == "False")
    until("it is replaced", lambda: world.get(SETS, name)["spec"]["replicas"] == 3, REPLACED_SECONDS)
    note("seconds from the end of its grace until a pod is replaced", round(time.monotonic() - began, 1))
    world.until_ready()
    assert world.live()["status"]["workers"] == "2/2"
    assert world.uid(PODS, lost) == uid, "it hangs still"
    until("another node may be drained", lambda: drainable(world) == 1)
    world.settle()
    rest = world.plane.mark()
    time.sleep(5)
    assert world.writes(rest) == []
    assert not [write for write in world.writes(0) if write.startswith("delete pods")]
    world.admin.ask("DELETE", f"{PODS.path(world.namespace, lost)}?gracePeriodSeconds=0")
    until("its set is as before", lambda: world.get(SETS, name)["spec"]["replicas"] == 2)
    world.until_ready()
    until(
        "as ever", lambda: drainable(world) == 1 and world.get(BUDGETS, "llama-worker")["spec"]["maxUnavailable"] == 1
    )
    assert operator.defects() == []


def drainable(world: World) -> int:
    """How many workers Kubernetes would let go now."""
    return int(world.get(BUDGETS, "llama-worker").get("status", {}).get("disruptionsAllowed", 0))
