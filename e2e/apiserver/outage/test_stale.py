"""Operators that begin with what lists showed some time ago, and that no watch tells more: they do no harm by it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial

from e2e.apiserver.client import until
from e2e.apiserver.faults import Snapshot
from e2e.apiserver.lanes import FIRST, SECOND, Lane, Lanes
from e2e.apiserver.lives import OFTEN
from e2e.apiserver.operators import Operator
from e2e.apiserver.proxy import Proxy, serving
from e2e.apiserver.story import Story
from e2e.apiserver.world import World

from dynamo.operator.kube.resources import CHILDREN, PIPELINES, PODS

STALE_SECONDS = 3 * OFTEN["intervals"]["resyncSeconds"]
EVERYTHING = tuple(kind.plural for kind in (PIPELINES, *CHILDREN, PODS))
BEFORE_THE_EDIT = {
    "everything": EVERYTHING, "pipelines": EVERYTHING[:1], "children": EVERYTHING[1:], "pods": EVERYTHING[-1:],
}  # fmt: skip
"""What is old, by the lane's name."""
CAME, WENT = "came", "went"
Held = tuple[str, str, str, str]
"""Kind, name, uid, resourceVersion."""


def test_lists_of_some_time_ago(world: World, proxy: Proxy, whole: Story) -> None:
    """Of the time before an edit, a creation or a deletion: no child is made, changed or deleted for it.

    Nor does a status go back to an older generation; and once lists and watches are of now, all is as it should be.
    """
    lanes = Lanes(world, proxy.faults, [*BEFORE_THE_EDIT, CAME, WENT])
    went = lanes[-1]
    nothing = snapshot(world)
    operator = world.operators.through(proxy.url, "before", OFTEN)
    lanes.apply(FIRST)
    lanes.until_ready()
    first = snapshot(world)
    lanes.apply(SECOND)
    lanes.until_ready()
    world.admin.delete(PIPELINES, went.namespace, "llama")
    until("it is gone", lambda: not lanes.objects()[went.namespace])
    assert operator.end() == 0
    olds = [{kind: first[kind] for kind in kinds} for kinds in BEFORE_THE_EDIT.values()]
    before, generations = held(lanes), observed(lanes)
    with ExitStack() as open_till_the_end:
        proxies = [open_till_the_end.enter_context(serving(world.plane.server)) for _ in lanes]
        for one, lists in zip(proxies, [*olds, nothing, first], strict=True):
            one.faults.stale = Snapshot(lists)
        operators = [begun(world, one, lane) for one, lane in zip(proxies, lanes, strict=True)]
        time.sleep(STALE_SECONDS)
        assert changed(before, held(lanes)) == []
        assert observed(lanes) == generations, "a status went back"
        for one in proxies:
            one.faults.stale = None
        for lane, operator in zip(lanes, operators, strict=True):
            until("it knows what there is", partial(knows, operator, 0 if lane is went else 1))
            assert operator.defects() == []
        for lane in lanes[:-1]:
            until("all is as before", partial(lanes.is_like, lane, whole.ends[-1][0]))
        assert changed(before, held(lanes)) == []
        assert [operator.end() for operator in operators] == [0] * len(lanes)


def begun(world: World, proxy: Proxy, lane: Lane) -> Operator:
    """An operator of this lane alone."""
    found = world.operators.through(proxy.url, lane.namespace, OFTEN | {"namespaces": [lane.namespace]})
    until("it answers", lambda: found.probe()[0] == 200)
    return found


def knows(operator: Operator, pipelines: int) -> bool:
    """Whether it knows of so many."""
    return operator.metric("dynamo_operator_pipelines") == pipelines


def snapshot(world: World) -> dict[str, dict[str, object]]:
    """What lists show now."""
    return {kind.plural: world.admin.ask("GET", kind.path()) for kind in (PIPELINES, *CHILDREN, PODS)}


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
