"""Kubernetes' own autoscaler, without metrics: what it does then is keep the number between its bounds."""

from __future__ import annotations

import pytest
from e2e.apiserver.client import Object, until
from e2e.apiserver.lifecycle.test_waiting import running
from e2e.apiserver.world import World

from dynamo.operator.kube.resources import resource_of

STATEFUL_SETS = resource_of("StatefulSet")
MOCKER: Object = {"engine": "mocker", "replicas": 1, "replicasOwner": "autoscaler"}
USER = "admin"
FLAGS = (
    "--controllers=horizontal-pod-autoscaler-controller", "--horizontal-pod-autoscaler-sync-period=2s",
    "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0",
)  # fmt: skip


@pytest.mark.full
def test_an_autoscaler_of_kubernetes_sets_a_components_workers(world: World) -> None:
    """Its least number of workers is raised twice: each time there are so many, and the operator writes none."""
    world.operators.start()
    world.pipeline(spec={"components": [MOCKER]})
    world.until_ready()
    (name,) = [one["metadata"]["name"] for one in world.items(STATEFUL_SETS)]
    world.settle()
    mark = world.plane.mark()
    words = ["-n", world.namespace]
    with running(world.plane, "kube-controller-manager", *FLAGS):
        world.plane.kubectl("autoscale", f"statefulset/{name}", "--min=3", "--max=6", *words)
        scaled(world, name, 3)
        world.plane.kubectl("patch", f"hpa/{name}", "--type=merge", '--patch={"spec": {"minReplicas": 5}}', *words)
        scaled(world, name, 5)
    assert not [one for one in world.writes(mark) if "statefulsets" in one]
    by_it = [one for one in world.plane.writes(USER, mark) if one["objectRef"].get("subresource") == "scale"]
    assert len(by_it) == 2, "the autoscaler wrote once for each bound: nobody undid it"


def scaled(world: World, name: str, number: int) -> None:
    """So many are wanted, there and told, and the operator has no more to write."""
    until("all are there", lambda: world.ready() and world.live()["status"]["workers"] == f"{number}/{number}")
    world.settle()
    assert world.get(STATEFUL_SETS, name)["spec"]["replicas"] == number
