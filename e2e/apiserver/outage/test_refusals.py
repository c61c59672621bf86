"""Writes that are refused, or whose answers are lost, and watches that fail: everything still comes to the same."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import pytest
from e2e.apiserver.client import until
from e2e.apiserver.faults import REFUSALS, Refusal
from e2e.apiserver.lanes import Lane, Lanes
from e2e.apiserver.lives import OFTEN
from e2e.apiserver.operators import Operator
from e2e.apiserver.proxy import Proxy
from e2e.apiserver.story import Story, lived
from e2e.apiserver.world import Note, World

from dynamo.operator.kube.resources import CHILDREN, PIPELINES, PODS, resource_of

AT_ONCE = 30
AWAY_SECONDS = 2.0
WATCHED = tuple(refusal for refusal in REFUSALS if refusal.code in (410, 429, 500))
KINDS_WATCHED = [kind.plural for kind in (PIPELINES, *CHILDREN, PODS)]
Fault = tuple[int, Refusal | None]
"""A write's number, and how it is refused; None: it is carried out, and nobody hears."""
KINDS: tuple[Refusal | None, ...] = (*REFUSALS, None)


def test_a_fault_at_every_write(world: World, proxy: Proxy, whole: Story, note: Note) -> None:
    """Refused with 409, 410, 422, 429 or 500, or carried out without an answer: another of these at each write."""
    numbers = range(1, sum(whole.writes) + 1)
    befallen(world, proxy, whole, list(zip(numbers, itertools.cycle(KINDS), strict=False)), note)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_every_fault_at_every_write(world: World, proxy: Proxy, whole: Story, note: Note) -> None:
    """Each with each."""
    found = list(itertools.product(range(1, sum(whole.writes) + 1), KINDS))
    for begin in range(0, len(found), AT_ONCE):
        befallen(world, proxy, whole, found[begin : begin + AT_ONCE], note)


def befallen(world: World, proxy: Proxy, whole: Story, faults: Sequence[Fault], note: Note) -> None:
    """One fault per lane."""
    names = [f"{number}-{what.code if what else 'lost'}" for number, what in faults]
    lanes = Lanes(world, proxy.faults, names)
    for lane, (number, what) in zip(lanes, faults, strict=True):
        if what is not None:
            lane.script.refuse = number, what
        else:
            lane.script.lose = number
    operator = world.operators.through(proxy.url, f"operator-{names[0]}", OFTEN)
    story = lived(lanes)
    assert story.unlike(whole) == []
    written = lanes.written()
    time.sleep(2 * OFTEN["intervals"]["resyncSeconds"])
    assert lanes.since(written) == [], "at rest nothing is written"
    fired = sum(len(lane.script.writes) >= number for lane, (number, _) in zip(lanes, faults, strict=True))
    note("writes that had a fault, of so many", (fired, len(faults)))
    assert fired >= 0.8 * len(faults)
    assert operator.defects() == []
    assert operator.end() == 0


def test_watches_that_end_with_an_error(world: World, proxy: Proxy, whole: Story) -> None:
    """With 410, 429 or 500, of all kinds at once; what happens until they are back is found out."""
    lanes = Lanes(world, proxy.faults, ["edited", *(str(refusal.code) for refusal in WATCHED)])
    operator = world.operators.through(proxy.url, "operator", OFTEN)
    lived(lanes)
    for left, (gone, refusal) in zip((3, 2, 1), zip(lanes[1:], WATCHED, strict=True), strict=True):
        try:
            broken(proxy, refusal)
            world.admin.delete(PIPELINES, gone.namespace, "llama")
            without_children(world, lanes[0])
            time.sleep(AWAY_SECONDS)
        finally:
            proxy.faults.shut = {}
        until("the gone one is forgotten", forgotten(operator, left))
        until("all is back", lambda: lanes.is_like(lanes[0], whole.ends[-1][0]))
    assert operator.process.poll() is None
    assert operator.defects() == []


def broken(proxy: Proxy, refusal: Refusal) -> None:
    """Every watch ends with it, and can't be begun anew; one that has just ended by itself meets the same."""
    until("all is watched", lambda: proxy.watched() >= set(KINDS_WATCHED))
    proxy.faults.shut = dict.fromkeys(KINDS_WATCHED, refusal)
    assert sum(proxy.break_watches(kind, refusal) for kind in KINDS_WATCHED) >= len(KINDS_WATCHED) / 2


def without_children(world: World, lane: Lane) -> None:
    """Somebody deletes them all."""
    for kind, name in World(world.plane, world.operators, lane.namespace).children():
        world.admin.delete(resource_of(kind), lane.namespace, name)


def forgotten(operator: Operator, left: int) -> Callable[[], bool]:
    """Whether it knows no more than so many pipelines."""
    return lambda: operator.metric("dynamo_operator_pipelines") == left
