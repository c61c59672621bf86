"""An operator that begins with what lists showed some time ago, and that no watch tells more: it does no harm by it."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from e2e.apiserver.alike import unlike
from e2e.apiserver.client import until
from e2e.apiserver.faults import Snapshot
from e2e.apiserver.lanes import FIRST, SECOND, Lanes
from e2e.apiserver.lives import OFTEN
from e2e.apiserver.operators import Operator
from e2e.apiserver.proxy import Proxy
from e2e.apiserver.story import Story
from e2e.apiserver.world import Note, World

from dynamo.operator.kinds import CHILDREN, PIPELINES, PODS, Resource

EVERYTHING = (PIPELINES, *CHILDREN, PODS)
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
def test_before_the_last_edit(world: World, proxy: Proxy, whole: Story, note: Note, which: str) -> None:
    """Lists are of the time before it: no child is made, changed or deleted, and the status doesn't go back."""
    lanes = Lanes(world, proxy.faults, ["one"])
    operator = world.operators.through(proxy.url, "before", OFTEN)
    lanes.apply(FIRST)
    lanes.until_ready()
    old = snapshot(world, SEEN[which])
    lanes.apply(SECOND)
    lanes.until_ready()
    assert operator.end() == 0
    versions, written = held(lanes), lanes.written()
    proxy.faults.stale = old
    try:
        operator = begun(world, proxy, "stale")
        assert held(lanes) == versions
    finally:
        proxy.faults.stale = None
    until("it looks", lambda: operator.looks() >= 1)
    lanes.until_ready()
    assert unlike(lanes.normal()[lanes[0].namespace], whole.ends[-1][0]) == []
    assert held(lanes) == versions
    note(f"writes tried, and refused or without effect, while {which} was old", lanes.since(written))
    assert operator.defects() == []


@pytest.mark.parametrize("was_there", [True, False])
def test_before_it_came_or_went(world: World, proxy: Proxy, was_there: bool) -> None:
    """Lists show a pipeline with all its children that is deleted, or don't show one that is there: no write at all."""
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
    versions, written = held(lanes), lanes.written()
    proxy.faults.stale = old
    try:
        operator = begun(world, proxy, "stale")
    finally:
        proxy.faults.stale = None
    pipelines = 0 if was_there else 1
    until("it knows better", lambda: operator.metric("dynamo_operator_pipelines") == pipelines)
    lanes.until_rest()
    assert (held(lanes), lanes.since(written)) == (versions, [])
    assert operator.defects() == []


def held(lanes: Lanes) -> list[tuple[str, str, str, str]]:
    """Everything that is there, with its version: whoever writes changes it."""
    found = [one for objects in lanes.objects().values() for one in objects]
    return sorted(
        (one["kind"], one["metadata"]["name"], one["metadata"]["uid"], one["metadata"]["resourceVersion"])
        for one in found
    )
