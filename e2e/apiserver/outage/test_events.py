"""Watches that leave an event out, or tell it late: everything still comes to the same, within one resync."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from e2e.apiserver.client import until
from e2e.apiserver.faults import Script, Told
from e2e.apiserver.lanes import Lanes
from e2e.apiserver.lives import OFTEN
from e2e.apiserver.operators import Operator
from e2e.apiserver.proxy import Proxy
from e2e.apiserver.story import Story, lived
from e2e.apiserver.world import Note, World

SWEEP, RESYNC = OFTEN["intervals"]["sweepSeconds"], OFTEN["intervals"]["resyncSeconds"]
SLACK = 5.0
SPARED = 4
"""Pipelines without a fault beside the others."""
LATE = 2.0
LATE_KINDS = ("dynamopipelines", "statefulsets")
KINDS = 20
"""Of events: a resource, and added, modified or deleted. The first of each is for `make e2e`."""
AT_ONCE = 30
TOLD_SECONDS = 120.0
SAMPLE_SECONDS = 20.0
TRIES = 3
SAMPLES = ("plain", "second", "third")
"""Pipelines from which the kinds of events are learnt: a watch that begins anew leaves one out for one of them."""
COMMON = 0.8
"""Of the pipelines beside each other."""
MOST_SPARED = 0.2
"""Of the events of one test."""

Fault = Callable[[Script, Told], None]


def dropped(script: Script, event: Told) -> None:
    """No watch tells it."""
    script.drop = event


def late(script: Script, event: Told) -> None:
    """Its watch stands still before it."""
    script.hold = event, LATE


@pytest.mark.full
def test_one_event_of_each_kind(world: World, proxy: Proxy, whole: Story, note: Note) -> None:
    """Dropped, or late: the same is there in the end, no later than a resync after.

    One that didn't occur is tried again: a watch that a busy machine begins anew finds in its list what it would tell.
    """
    operator = world.operators.through(proxy.url, "operator", OFTEN)
    first = learnt(world, proxy, operator)
    faults = [(event, dropped) for event in first]
    faults += [(event, late) for event in first if event.plural in LATE_KINDS]
    due = faults
    for _ in range(TRIES):
        spared = befallen(world, proxy, due, operator, whole, note)
        due = [(event, fault) for event, fault in due if event in spared]
        if len(due) <= MOST_SPARED * len(faults):
            break
    assert len(due) <= MOST_SPARED * len(faults)


@pytest.mark.full
@pytest.mark.quiet
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", [dropped, late])
def test_every_event(world: World, proxy: Proxy, whole: Story, note: Note, fault: Fault) -> None:
    """Each one of them, in a pipeline of its own; one that didn't occur there is tried again.

    How often a controller reports depends on how busy it is, so they are counted where as many are beside each other.
    """
    operator = world.operators.through(proxy.url, "operator", OFTEN)
    due = events = told_beside_each_other(world, proxy, operator)
    assert len(firsts(events)) >= KINDS, f"only these kinds of events are told: {firsts(events)}"
    for _ in range(TRIES):
        rounds = [due[begin : begin + AT_ONCE] for begin in range(0, len(due), AT_ONCE)]
        tried = [befallen(world, proxy, [(event, fault) for event in each], operator, whole, note) for each in rounds]
        due = [event for spared in tried for event in spared]
    note("events that had their fault, of so many", (len(events) - len(due), len(events)))
    assert len(due) <= MOST_SPARED * len(events)


def told(lanes: Lanes, operator: Operator, share: float = COMMON, seconds: float = TOLD_SECONDS) -> list[Told]:
    """The events of pipelines that nothing befalls, in order: those that such a share of them has."""
    lived(lanes)
    forgotten(lanes, operator)
    # A busy machine tells of the last deletions some time after they are seen.
    end, events = time.monotonic() + seconds, common(lanes, share)
    while len(firsts(events)) < KINDS and time.monotonic() < end:
        time.sleep(0.2)
        events = common(lanes, share)
    return events


def told_beside_each_other(world: World, proxy: Proxy, operator: Operator) -> list[Told]:
    """The events of many pipelines at once. Where a busy machine's controllers report two changes as one, again."""
    events: list[Told] = []
    for sample in range(TRIES):
        lanes = Lanes(world, proxy.faults, [f"plain{sample}-{number}" for number in range(AT_ONCE)])
        events = told(lanes, operator)
        if len(firsts(events)) >= KINDS:
            break
    return events


def learnt(world: World, proxy: Proxy, operator: Operator) -> list[Told]:
    """The first event of each kind, from as many samples as a busy machine needs: one that begins its watches anew
    between two events finds the second in a list, for all samples at once."""
    kinds: dict[Told, None] = {}
    for sample in range(TRIES):
        lanes = Lanes(world, proxy.faults, [f"{name}-{sample}" for name in SAMPLES])
        kinds |= dict.fromkeys(firsts(told(lanes, operator, 1 / len(SAMPLES), SAMPLE_SECONDS)))
        if len(kinds) >= KINDS:
            break
    assert len(kinds) >= KINDS * (1 - MOST_SPARED), f"only these kinds of events are told: {sorted(kinds)}"
    return list(kinds)


def common(lanes: Lanes, share: float) -> list[Told]:
    """What so many of them were told so far; on a busy machine a controller leaves a report out here and there."""
    times = Counter(event for lane in lanes for event in lane.script.events)
    return [event for event, seen in times.items() if seen >= share * len(lanes)]


def firsts(events: Sequence[Told]) -> list[Told]:
    """The first of each kind."""
    return [event for event in events if event.number == 1]


def befallen(
    world: World, proxy: Proxy, faults: Sequence[tuple[Told, Fault]], operator: Operator, whole: Story, note: Note
) -> list[Told]:
    """One fault per lane, of all that it lives through; some have none, and say how fast all is at the moment.

    The events that didn't occur: how often a controller reports differs from run to run.
    """
    names = [f"{'-'.join(map(str, event)).lower()}-{fault.__name__[:1]}" for event, fault in faults]
    lanes = Lanes(world, proxy.faults, [*names, *map(str, range(SPARED))])
    for lane, (event, fault) in zip(lanes, faults, strict=False):
        fault(lane.script, event)
    story = lived(lanes)
    time.sleep(RESYNC)
    written = lanes.written()
    forgotten(lanes, operator)
    assert story.unlike(whole) == []
    assert lanes.since(written) == [], "at rest, and of a deletion, nothing is written"
    assert operator.process.poll() is None
    delay = max(max(second[:-SPARED]) - max(second[-SPARED:]) for second in story.seconds)
    note(
        f"{len(faults)} pipelines: seconds by which the last was later than the last one without fault", round(delay, 1)
    )
    assert delay <= RESYNC + SWEEP + SLACK
    end = time.monotonic() + TOLD_SECONDS
    while len(spared := without(lanes, faults)) > MOST_SPARED * len(faults) and time.monotonic() < end:
        time.sleep(0.2)
    return spared


def without(lanes: Lanes, faults: Sequence[tuple[Told, Fault]]) -> list[Told]:
    """The events that didn't occur in the pipeline that was to have a fault there, so far."""
    return [event for lane, (event, _) in zip(lanes, faults, strict=False) if event not in lane.script.events]


def forgotten(lanes: Lanes, operator: Operator) -> None:
    """Deletes all pipelines: then the operator knows none, and nothing of theirs is left."""
    lanes.delete()
    until("all are forgotten", lambda: operator.metric("dynamo_operator_pipelines") == 0)
    lanes.until_gone()
