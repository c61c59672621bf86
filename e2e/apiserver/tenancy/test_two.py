"""Two installations for the same pipelines, by mistake: one serves each, the other stands back, and follows it."""

from __future__ import annotations

import time

from e2e.apiserver.client import Object, until
from e2e.apiserver.operators import ACCOUNT, HOME, Operator
from e2e.apiserver.world import Note, World

from dynamo.operator.kube.resources import resource_of

RIVAL_SECONDS = 6.0
REST_SECONDS = 5.0
US = f"{HOME}/{ACCOUNT}"


def test_two_operators_by_mistake(world: World, note: Note) -> None:
    """A cluster-wide one and one for a namespace, with other images: what one serves, the other never writes to."""
    first = world.operators.start("first")
    world.pipeline()
    world.until_ready()
    second = installed(world, "second")
    until("the other one says what it sees", lambda: "leaves it alone" in second.said())
    world.settle()
    assert world.live()["status"]["operator"] == US
    assert at_rest(world) == []
    edited = world.plane.mark()
    world.pipeline(spec={"components": [{"engine": "mocker", "replicas": 3}]})
    world.until_ready()
    world.settle()
    note("two operators: writes of an edit that scales", len(world.writes(edited)))
    assert images(world) == {"dynamo"}
    for name in ("a", "b", "c"):
        begun = world.plane.mark()
        world.pipeline(name)
        world.until_ready(name)
        world.settle()
        owner = world.live(name)["status"]["operator"]
        note(f"two operators: writes of a creation, served by {owner}", len(world.writes(begun)))
        assert images(world, name) == {"dynamo" if owner == US else "other"}
    assert at_rest(world) == []
    assert first.end() == 0
    begun_at = time.monotonic()
    until("the other one follows", lambda: served_by_other(world, "llama", "a", "b", "c"))
    note("two operators: seconds until the other one follows", round(time.monotonic() - begun_at, 1))
    until("its children are the other one's", lambda: world.ready() and images(world) == {"other"})
    again = world.operators.start("again")
    until("it stands back", lambda: again.said().count("leaves it alone") == 4)
    world.settle()
    assert at_rest(world) == []
    assert second.process.poll() is None


def installed(world: World, name: str) -> Operator:
    """Another installation, which serves this namespace."""
    return world.operators.through(
        world.plane.server,
        name,
        {
            "images": {"frontend": "other/frontend:1", "workers": {"default": "other/worker:1"}},
            "leaderElection": {"enabled": True, "lease": f"{world.namespace}-{name}"},
            "namespaces": [world.namespace],
            "intervals": {"takeoverSeconds": RIVAL_SECONDS},
        },
    )


def images(world: World, name: str = "llama") -> set[str]:
    """Of all that makes pods, by repository."""
    found: list[Object] = [
        item for kind in ("Deployment", "StatefulSet") for item in world.items(resource_of(kind))
        if item["metadata"]["labels"]["dynamo.dev/pipeline"] == name
    ]  # fmt: skip
    return {one["spec"]["template"]["spec"]["containers"][0]["image"].partition("/")[0] for one in found}


def at_rest(world: World) -> list[str]:
    """What anybody writes while nothing is to be done."""
    mark = world.plane.mark()
    time.sleep(REST_SECONDS)
    return world.writes(mark)


def served_by_other(world: World, *names: str) -> bool:
    """All of them."""
    return not any(world.live(name)["status"]["operator"] == US for name in names)
