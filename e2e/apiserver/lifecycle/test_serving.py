"""What the operator writes on a real API server, and that it writes nothing at rest."""

from __future__ import annotations

from functools import partial

import pytest
from e2e.apiserver.client import until
from e2e.apiserver.operators import Operator
from e2e.apiserver.world import World

from dynamo.operator.kube.client import MANAGER
from dynamo.operator.kube.resources import CHILDREN, Resource, resource_of


def test_a_pipeline_is_served_and_then_left_alone(world: World) -> None:
    """Each child is written once; ten reconciles and three restarts later nothing has been written."""
    begun = world.plane.mark()
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    world.settle()
    writes = world.writes(begun)
    assert all(write.endswith((" 200", " 201")) for write in writes), writes
    parts = [write for write in writes if "dynamopipelines" not in write and "events" not in write]
    assert len(parts) == len(set(parts)) == len(world.children()), parts
    rest = world.plane.mark()
    for _ in range(10):
        nudged(world, operator)
    for number in range(3):
        assert operator.end() == 0
        operator = world.operators.start(f"again-{number}")
        has_reconciled(operator)
        nudged(world, operator)
    assert world.writes(rest) == []


@pytest.mark.parametrize("replicas", [5, 0])
def test_kubectl_scale(world: World, replicas: int) -> None:
    """On the pipeline it changes the workers' number; nothing fights over it."""
    world.operators.start()
    world.pipeline(spec={"replicas": 1, "components": [{"engine": "mocker"}]})
    world.until_ready()
    world.plane.kubectl("scale", f"--replicas={replicas}", "dynamopipelines/llama", "-n", world.namespace)
    until("the number of workers follows", lambda: workers(world) == [replicas])
    until("the status says so", lambda: settled(world, replicas))


def test_by_hand_changed_children_come_back(world: World) -> None:
    """Somebody scales, edits or deletes each kind: it is as before, and what others added stays."""
    world.operators.start()
    world.pipeline()
    world.until_ready()
    for resource in CHILDREN:
        for kind, name in world.children():
            if kind == resource.kind and kind != "PersistentVolumeClaim":
                uid = world.uid(resource, name)
                world.admin.delete(resource, world.namespace, name)
                until(f"{kind} {name} is back", partial(again, world, resource, name, uid))
    world.until_ready()
    deployments = resource_of("Deployment")
    name = next(name for kind, name in world.children() if kind == "Deployment")
    patch = {"metadata": {"annotations": {"theirs": "stays"}}, "spec": {"replicas": 7}}
    world.admin.merge(deployments, world.namespace, name, patch)
    until("the replicas are back", lambda: world.get(deployments, name)["spec"]["replicas"] == 1)
    assert world.get(deployments, name)["metadata"]["annotations"]["theirs"] == "stays"


def test_who_owns_which_fields(world: World) -> None:
    """Children have one manager that applies, and nobody updates them; the pipeline's spec stays the user's."""
    world.operators.start()
    world.pipeline()
    world.until_ready()
    for kind, name in world.children():
        managers = world.managers(resource_of(kind), name)
        assert (MANAGER, "Apply", "") in managers, (kind, name, managers)
        assert not [manager for manager in managers if manager[0] == MANAGER and manager[1] != "Apply"], (
            kind,
            name,
            managers,
        )
    fields = world.live()["metadata"]["managedFields"]
    ours = [field for field in fields if field["manager"] == MANAGER]
    assert [field.get("subresource") for field in ours] == ["status"]
    assert "f:spec" not in str(ours)
    assert "finalizers" not in world.live()["metadata"]
    assert "annotations" not in world.live()["metadata"]


def workers(world: World) -> list[int]:
    """Replicas of the workers' sets."""
    sets = resource_of("StatefulSet")
    return [item["spec"]["replicas"] for item in world.items(sets)]


def settled(world: World, replicas: int) -> bool:
    """Ready for the present generation with so many workers."""
    components = world.live().get("status", {}).get("components", [])
    return world.ready() and [component["replicas"] for component in components] == [replicas]


def again(world: World, resource: Resource, name: str, uid: str) -> bool:
    """Whether it was made anew."""
    return world.uid(resource, name) not in ("", uid)


def has_reconciled(operator: Operator) -> None:
    """Waits for its first reconcile."""
    until("it looked", lambda: operator.reconciles() >= 1)


def nudged(world: World, operator: Operator) -> None:
    """Somebody annotates a Service of ours: the watch tells, it is reconciled, and there is nothing to do."""
    reconciles, services = operator.reconciles(), resource_of("Service")
    name = next(name for kind, name in world.children() if kind == services.kind)
    world.admin.merge(
        services, world.namespace, name, {"metadata": {"annotations": {"nudge": f"{operator.name} {reconciles}"}}}
    )
    until("it looked", lambda: operator.reconciles() > reconciles)
