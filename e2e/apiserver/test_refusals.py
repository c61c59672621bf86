"""Writes that are refused, or whose answers are lost, and watches that fail: everything still comes to the same."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from e2e.apiserver.client import until
from e2e.apiserver.faults import REFUSALS, Refusal
from e2e.apiserver.lanes import Lanes
from e2e.apiserver.lives import OFTEN
from e2e.apiserver.proxy import Proxy
from e2e.apiserver.story import Story, lived
from e2e.apiserver.world import Note, World

from dynamo.operator.kinds import CHILDREN, PIPELINES, PODS

AT_ONCE = 30
AWAY_SECONDS = 2.0
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


@pytest.mark.parametrize("refusal", [one for one in REFUSALS if one.code in (410, 429, 500)], ids=lambda one: one.code)
def test_watches_that_end_with_an_error(world: World, proxy: Proxy, whole: Story, refusal: Refusal) -> None:
    """Of all kinds at once; what is edited, deleted and made until they are back is found out."""
    lanes = Lanes(world, proxy.faults, ["edited", "gone"])
    edited, gone = lanes
    operator = world.operators.through(proxy.url, "operator", OFTEN)
    lived(lanes)
    kinds = [kind.plural for kind in (PIPELINES, *CHILDREN, PODS)]
    proxy.faults.shut = dict.fromkeys(kinds, refusal)
    try:
        until("each was watched", lambda: all(proxy.break_watches(kind, refusal) for kind in ("pods", "services")))
        for kind in kinds:
            proxy.break_watches(kind, refusal)
        world.admin.delete(PIPELINES, gone.namespace, "llama")
        for kind, name in World(world.plane, world.operators, edited.namespace).children():
            resource = next(one for one in CHILDREN if one.kind == kind)
            world.admin.delete(resource, edited.namespace, name)
        time.sleep(AWAY_SECONDS)
    finally:
        proxy.faults.shut = {}
    until("the gone one is forgotten", lambda: operator.metric("dynamo_operator_pipelines") == 1)
    until("all is back", lambda: lanes.is_like(edited, whole.ends[-1][0]))
    assert operator.process.poll() is None
    assert operator.defects() == []
