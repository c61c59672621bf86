"""Kubernetes' own autoscaler on a pipeline, without metrics: then it keeps the number between its bounds."""

from __future__ import annotations

import pytest
from e2e.apiserver.client import Object, until
from e2e.apiserver.lifecycle.test_waiting import running
from e2e.apiserver.world import World

from dynamo.operator.kube.resources import resource_of

STATEFUL_SETS = resource_of("StatefulSet")
MOCKER: Object = {"engine": "mocker"}
USER = "admin"
FLAGS = (
    "--controllers=horizontal-pod-autoscaler-controller", "--horizontal-pod-autoscaler-sync-period=2s",
    "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0",
)  # fmt: skip


@pytest.mark.full
def test_an_autoscaler_of_kubernetes_scales_a_pipeline(world: World) -> None:
    """Its least number of workers is raised twice: each time there are so many, and nobody undoes its number."""
    world.operators.start()
    world.pipeline(spec={"components": [MOCKER]})
    world.until_ready()
    world.settle()
    mark = world.plane.mark()
    words = ["-n", world.namespace]
    with running(world.plane, "kube-controller-manager", *FLAGS):
        world.plane.kubectl("autoscale", "dynamopipeline.dynamo.dev/llama", "--min=3", "--max=6", *words)
        scaled(world, 3)
        world.plane.kubectl("patch", "hpa/llama", "--type=merge", '--patch={"spec": {"minReplicas": 5}}', *words)
        scaled(world, 5)
    by_it = [write for write in world.plane.writes(USER, mark) if write["objectRef"].get("subresource") == "scale"]
    assert len(by_it) == 2, "the autoscaler wrote once for each bound: nobody undid it"


def scaled(world: World, number: int) -> None:
    """So many are wanted, there and told, and the operator has no more to write."""
    until("all are there", lambda: world.ready() and world.live()["status"]["workers"] == f"{number}/{number}")
    world.settle()
    (workers,) = world.items(STATEFUL_SETS)
    assert workers["spec"]["replicas"] == number
