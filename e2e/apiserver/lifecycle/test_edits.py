"""What users and their tools do to a pipeline: many edits, replacements, everything stripped, additions of others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

import pytest
from e2e.apiserver.client import Object, until
from e2e.apiserver.lifecycle.test_serving import nudged
from e2e.apiserver.world import Note, World

from dynamo.operator.kube.resources import PIPELINES, PODS, Resource, resource_of
from dynamo.operator.manifests import naming

EDITS, EDIT_SECONDS = 50, 5.0
WRITES_OF_EDITS = 200
"""A reconcile takes in what came since the last one; at most four reconciles a second, each with a few writes."""
OBSERVED_SECONDS = 1.0
OF_ONE = 4
"""Times what a single edit takes on this machine now: what the last of many may, where that is more."""
SETS, DEPLOYMENTS, SERVICES = (resource_of(kind) for kind in ("StatefulSet", "Deployment", "Service"))


def test_the_last_of_fifty_edits_stands(world: World, note: Note) -> None:
    """Each is another revision; within a second after the last the status speaks of it, and nothing else is left."""
    world.operators.start()
    world.pipeline(spec=turn(-2))
    world.until_ready()
    world.settle()
    alone = edited(world, -1)
    world.settle()
    mark, begun = world.plane.mark(), time.monotonic()
    for number in range(EDITS):
        time.sleep(max(0.0, begun + number * EDIT_SECONDS / EDITS - time.monotonic()))
        if number < EDITS - 1:
            world.pipeline(spec=turn(number))
    last = time.monotonic()
    seconds = edited(world, EDITS - 1)
    note("seconds from the last of 50 edits to its observedGeneration, and from a single one", (seconds, alone))
    world.until_ready()
    world.settle()
    writes = world.writes(mark)
    note(f"writes of 50 edits in {last - begun:.1f} s", len(writes))
    (left,) = world.items(SETS)
    assert {"name": "TURN", "value": str(EDITS - 1)} in left["spec"]["template"]["spec"]["containers"][0]["env"]
    assert left["spec"]["replicas"] == 2
    assert len(writes) <= WRITES_OF_EDITS
    assert seconds <= max(OBSERVED_SECONDS, OF_ONE * alone)


def edited(world: World, number: int) -> float:
    """Seconds from an edit until the status speaks of it."""
    world.pipeline(spec=turn(number))
    began = time.monotonic()
    until("the status speaks of it", lambda: observed(world))
    return round(time.monotonic() - began, 2)


@pytest.mark.full
def test_everything_stripped(world: World) -> None:
    """Annotations and labels of all that is ours, and the whole status, while no operator runs: no pod is touched."""
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    world.settle()
    children, before = world.children(), specs(world)
    assert operator.end() == 0
    for kind, name in children:
        labels = dict.fromkeys(world.get(resource_of(kind), name)["metadata"]["labels"])
        patch = {"metadata": {"labels": labels, "annotations": None}}
        world.admin.merge(resource_of(kind), world.namespace, name, patch)
    world.admin.merge(PIPELINES, world.namespace, "llama", {"status": None}, "status")
    assert world.children() == []
    world.operators.start("next")
    until("all have their labels again", lambda: world.children() == children)
    world.until_ready()
    assert specs(world) == before


@pytest.mark.parametrize("way", ["replace", "replace --force"])
def test_kubectl_replace(world: World, way: str) -> None:
    """What kubectl forgets of the object is nothing of ours; by force it is another pipeline with its own children."""
    world.operators.start()
    body = {k: v for k, v in world.pipeline().items() if k in ("apiVersion", "kind", "spec")}
    metadata: Object = {"name": "llama", "namespace": world.namespace}
    world.admin.merge(PIPELINES, world.namespace, "llama", {"metadata": {"annotations": {"theirs": "goes"}}})
    world.until_ready()
    world.settle()
    uid, before, mark = world.live()["metadata"]["uid"], specs(world), world.plane.mark()
    world.plane.kubectl(*way.split(), "-f", "-", stdin=json.dumps({**body, "metadata": metadata}))
    if way == "replace":
        assert "annotations" not in world.live()["metadata"]
        world.settle()
        assert (specs(world), world.writes(mark)) == (before, [])
        return
    assert world.live()["metadata"]["uid"] != uid
    world.until_ready()
    owners = {one["uid"] for kind, name in world.children() for one in owned(world, kind, name)}
    assert owners == {world.live()["metadata"]["uid"]}


def test_what_others_add_stays_and_what_they_change_comes_back(world: World) -> None:
    """docs/design/cluster/operator.md, Foreign additions: each line of it."""
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    sets, service = world.items(SETS)[0]["metadata"]["name"], "llama-frontend"
    container = world.get(SETS, sets)["spec"]["template"]["spec"]["containers"][0]
    uid = world.get(SETS, sets)["metadata"]["uid"]
    more = {"name": "THEIRS", "value": "stays"}
    added: Object = {
        "metadata": {"labels": {"theirs": "stays"}, "annotations": {"theirs": "stays"}},
        "spec": {"template": {"spec": {"containers": [{**container, "env": [*container["env"], more]}]}}},
    }
    world.admin.merge(SETS, world.namespace, sets, added)
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "00000000-0000-4000-8000-000000000000"}
    keep_owner = [*owned(world, "Service", service), {**other, "controller": False}]
    port = {"name": "theirs", "port": 9999, "targetPort": 9999, "protocol": "TCP"}
    ports = [*world.get(SERVICES, service)["spec"]["ports"], port]
    patch = {"metadata": {"ownerReferences": keep_owner}, "spec": {"ports": ports}}
    world.admin.merge(SERVICES, world.namespace, service, patch)
    nudged(world, operator)
    world.settle()
    live = world.get(SETS, sets)
    assert live["metadata"]["uid"] == uid
    assert live["metadata"]["labels"]["theirs"] == live["metadata"]["annotations"]["theirs"] == "stays"
    assert more in live["spec"]["template"]["spec"]["containers"][0]["env"]
    assert port in world.get(SERVICES, service)["spec"]["ports"]
    for resource, name, patch, holds in changed(world, sets, service):
        world.admin.merge(resource, world.namespace, name, patch)
        until(f"{patch} is put back", holds)
    world.until_ready()
    assert world.get(SETS, sets)["metadata"]["uid"] == uid


def changed(world: World, sets: str, service: str) -> list[tuple[Resource, str, Object, Callable[[], object]]]:
    """What somebody does to our fields, and when it is undone."""
    label = {"metadata": {"labels": {naming.PIPELINE: None}}}
    selector, stranger = world.get(SERVICES, service)["spec"]["selector"], {naming.COMPONENT: "theirs"}
    owners = partial(owned, world, "Service", service)
    ours = owners()[0]
    return [
        (SETS, sets, {"spec": {"replicas": 5}}, lambda: world.get(SETS, sets)["spec"]["replicas"] == 2),
        (SETS, sets, label, lambda: naming.PIPELINE in world.get(SETS, sets)["metadata"]["labels"]),
        (SERVICES, service, {"spec": {"selector": stranger}}, partial(has_selector, world, selector)),
        (SERVICES, service, {"metadata": {"ownerReferences": None}}, lambda: ours in owners()),
    ]


def has_selector(world: World, selector: Object) -> bool:
    """Whether the frontends' Service has this one."""
    return bool(world.get(SERVICES, "llama-frontend")["spec"]["selector"] == selector)


def turn(number: int) -> Object:
    """A spec like no other."""
    return {"components": [{"engine": "mocker", "replicas": 2, "env": [{"name": "TURN", "value": str(number)}]}]}


def observed(world: World) -> bool:
    """Whether the status speaks of the present spec."""
    live = world.live()
    return bool(live.get("status", {}).get("observedGeneration") == live["metadata"]["generation"])


def owned(world: World, kind: str, name: str) -> list[Object]:
    """Its owners."""
    found: list[Object] = world.get(resource_of(kind), name)["metadata"].get("ownerReferences", [])
    return found


def specs(world: World) -> dict[tuple[str, str], tuple[str, Object]]:
    """Uid and spec of all that makes pods, and of the pods."""
    kinds = (DEPLOYMENTS, SETS, PODS)
    live = [(kind.kind, item) for kind in kinds for item in world.items(kind)]
    return {(kind, one["metadata"]["name"]): (one["metadata"]["uid"], one["spec"]) for kind, one in live}
