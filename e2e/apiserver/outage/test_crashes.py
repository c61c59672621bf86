"""An operator that ends between any two of its writes: the next one brings about the same, and then rests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

import pytest
from e2e.apiserver.client import until
from e2e.apiserver.lanes import FIRST, Lanes
from e2e.apiserver.lives import NUDGE_SECONDS, Lives, processes, reconcilers
from e2e.apiserver.proxy import Proxy
from e2e.apiserver.story import Story, lived
from e2e.apiserver.world import Note, World

LOOKS_AT_REST = 10
AT_FIRST = 10
"""Nine children and a status."""
AT_ONCE = 4
"""Processes."""


def in_process(world: World, proxy: Proxy, lanes: Lanes) -> AbstractContextManager[Lives]:
    """Reconcilers, cut off."""
    return reconcilers(lanes, proxy.url, world.operators.token)


def killed(world: World, proxy: Proxy, lanes: Lanes) -> AbstractContextManager[Lives]:
    """Processes, killed with -9."""
    return processes(lanes, proxy.url, world.operators)


def crashing(lanes: Lanes, numbers: Sequence[int]) -> Story:
    """In each phase, each lane's operator ends after the write with its number."""

    def cut() -> None:
        for lane, number in zip(lanes, numbers, strict=True):
            lane.script.cut_at(number)

    return lived(lanes, cut)


def test_a_crash_after_every_write(world: World, proxy: Proxy, whole: Story, note: Note) -> None:
    """Of a creation and of an edit: the same is there in the end, ten reconciles later too, and goes with its pipeline.

    One that is deleted with the operator still down leaves nothing either.
    """
    numbers = range(1, max(whole.writes) + 1)
    lanes = Lanes(world, proxy.faults, map(str, numbers))
    with in_process(world, proxy, lanes) as lives:
        assert crashing(lanes, numbers).unlike(whole) == []
        written = lanes.written()
        time.sleep(LOOKS_AT_REST * NUDGE_SECONDS)
        lanes.delete()
        lanes.until_gone()
        assert lanes.since(written) == [], "neither rest nor a deletion takes a write"
        crashes = lives.crashes.total()
        deleted_after_a_crash(lanes, lives)
    note("writes of a creation and of an edit; crashes", (*whole.writes, crashes))
    assert crashes >= sum(whole.writes) - 2 * len(whole.writes), "some were never interrupted"


def deleted_after_a_crash(lanes: Lanes, lives: Lives) -> None:
    """In a creation, after each write of those that come whatever kubelets do."""
    crashes, lives.stays_down = lives.crashes.total(), True
    for number, lane in enumerate(lanes):
        lane.script.cut_at(1 + number % AT_FIRST)
    lanes.apply(FIRST)
    until("all have crashed", lambda: lives.crashes.total() == crashes + len(lanes))
    lanes.delete()
    written, lives.stays_down = lanes.written(), False
    lanes.until_gone()
    lanes.until_rest()
    assert lanes.since(written) == []


@pytest.mark.full
def test_processes_that_are_killed(world: World, proxy: Proxy, whole: Story, note: Note) -> None:
    """With -9, after the first write, in the middle and after the last child."""
    fewest = min(whole.writes)
    kill_after(world, proxy, whole, [1, fewest // 2, fewest - 1], note)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_processes_that_are_killed_after_every_write(world: World, proxy: Proxy, whole: Story, note: Note) -> None:
    """A real process for each write of a creation and of an edit."""
    numbers = list(range(1, max(whole.writes) + 1))
    for begin in range(0, len(numbers), AT_ONCE):
        kill_after(world, proxy, whole, numbers[begin : begin + AT_ONCE], note)


def kill_after(world: World, proxy: Proxy, whole: Story, numbers: Sequence[int], note: Note) -> None:
    """One process per number."""
    lanes = Lanes(world, proxy.faults, (f"k{number}" for number in numbers))
    with killed(world, proxy, lanes) as lives:
        assert crashing(lanes, numbers).unlike(whole) == []
        written = lanes.written()
        lanes.delete()
        lanes.until_gone()
        lanes.until_rest()
    assert lanes.since(written) == []
    note(f"processes killed at {list(numbers)}", lives.crashes.total())
    assert lives.crashes.total() >= 2 * len(numbers) - sum(n >= min(whole.writes) for n in numbers)
    world.operators.end()
