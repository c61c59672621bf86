"""An operator that begins with what lists showed some time ago, and that no watch tells more: it does no harm by it."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from e2e.apiserver.client import until
from e2e.apiserver.faults import Snapshot
from e2e.apiserver.lanes import FIRST, SECOND, Lanes
from e2e.apiserver.lives import OFTEN
from e2e.apiserver.operators import Operator
from e2e.apiserver.proxy import Proxy
from e2e.apiserver.story import Story
from e2e.apiserver.world import World

from dynamo.operator.kinds import CHILDREN, PIPELINES, PODS, Resource

EVERYTHING = (PIPELINES, *CHILDREN, PODS)
Held = tuple[str, str, str, str]
"""Kind, name, uid, resourceVersion."""
STALE_SECONDS = 3 * OFTEN["intervals"]["resyncSeconds"]
SEEN: dict[str, tuple[Resource, ...]] = {
    "everything": EVERYTHING,
    "pipelines": (PIPELINES,),
    "children": (*CHILDREN, PODS),
    "pods": (PODS,),
}


def snapshot(world: World, kinds: Iterable[Resource]) -> Snapshot:
    """What lists of these kinds show now."""
    return Snapshot({kind.plural: world.admin.ask("GET", kind.path()) for kind in kinds})


def begun(world: World, proxy: Proxy, name: str) -> Operator:
    """An operator that has looked a few times, or had the time to."""
    operator = world.operators.through(proxy.url, name, OFTEN)
    until("it answers", lambda: operator.probe()[0] == 200)
    time.sleep(STALE_SECONDS)
    return operator


@pytest.mark.parametrize("which", SEEN)
def test_before_the_last_edit(world: World, proxy: Proxy, whole: Story, which: str) -> None:
    """Lists are of the time before it: no child is made, changed or deleted, and the status doesn't go back."""
    lanes = Lanes(world, proxy.faults, ["one"])
    operator = world.operators.through(proxy.url, "before", OFTEN)
    lanes.apply(FIRST)
    lanes.until_ready()
    old = snapshot(world, SEEN[which])
    lanes.apply(SECOND)
    lanes.until_ready()
    assert operator.end() == 0
    before, generation = held(lanes), observed(lanes)
    proxy.faults.stale = old
    try:
        operator = begun(world, proxy, "stale")
        assert changed(before, held(lanes)) == []
        assert observed(lanes) == generation, "the status went back"
    finally:
        proxy.faults.stale = None
    until("it looks", lambda: operator.looks() >= 1)
    until("all is as before", lambda: lanes.is_like(lanes[0], whole.ends[-1][0]))
    assert changed(before, held(lanes)) == []
    assert operator.defects() == []


@pytest.mark.parametrize("was_there", [True, False])
def test_before_it_came_or_went(world: World, proxy: Proxy, was_there: bool) -> None:
    """Lists show a pipeline with all its children that is deleted, or don't show one that is there: nothing changes."""
    lanes = Lanes(world, proxy.faults, ["one"])
    before = snapshot(world, EVERYTHING)
    operator = world.operators.through(proxy.url, "before", OFTEN)
    lanes.apply(FIRST)
    lanes.until_ready()
    old = snapshot(world, EVERYTHING) if was_there else before
    assert operator.end() == 0
    if was_there:
        lanes.delete()
        lanes.until_gone()
    before_it = held(lanes)
    proxy.faults.stale = old
    try:
        operator = begun(world, proxy, "stale")
    finally:
        proxy.faults.stale = None
    pipelines = 0 if was_there else 1
    until("it knows better", lambda: operator.metric("dynamo_operator_pipelines") == pipelines)
    lanes.until_rest()
    assert changed(before_it, held(lanes)) == []
    assert operator.defects() == []


def changed(before: list[Held], after: list[Held]) -> list[str]:
    """What is in one of them only."""
    return [f"{'-' if one in before else '+'} {' '.join(one)}" for one in sorted(set(before) ^ set(after))]


def observed(lanes: Lanes) -> list[int]:
    """The generation that each status speaks of."""
    return [one["status"]["observedGeneration"] for objects in lanes.objects().values() for one in objects
            if one["kind"] == PIPELINES.kind]  # fmt: skip


def held(lanes: Lanes) -> list[Held]:
    """Every child and pod, with its version: whoever writes changes it."""
    found = [one for objects in lanes.objects().values() for one in objects if one["kind"] != PIPELINES.kind]
    return sorted(
        (one["kind"], one["metadata"]["name"], one["metadata"]["uid"], one["metadata"]["resourceVersion"])
        for one in found
    )
