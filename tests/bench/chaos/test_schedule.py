"""A schedule follows from its seed, fits its time and leaves somebody to answer."""

from __future__ import annotations

from collections import Counter

import pytest
from bench.chaos.network import rules
from bench.chaos.schedule import APART, KINDS, REST, schedule, sort_of

TARGETS = [*(f"worker-{n}" for n in range(4)), "frontend-1", "frontend-2", "etcd", "nats"]


@pytest.mark.parametrize("seed", range(20))
def test_the_same_seed_is_the_same_schedule(seed: int) -> None:
    """And another seed another one; a longer run begins like a shorter one."""
    made = schedule(seed, 600, TARGETS)
    assert made == schedule(seed, 600, TARGETS)
    assert made != schedule(seed + 1, 600, TARGETS)
    assert all(item.at > 0 and item.end <= 600 and item.seconds > 0 for item in made)
    assert [item.at for item in made] == sorted(item.at for item in made)
    short = schedule(seed, 60, TARGETS)
    assert short == made[: len(short)]


@pytest.mark.parametrize("seed", range(20))
def test_somebody_is_always_there(seed: int) -> None:
    """A target has one fault at a time and rests after it; half of the workers and a frontend stay."""
    made = schedule(seed, 600, TARGETS)
    for item in made:
        near = [x for x in made if x is not item and x.at <= item.at < x.end + REST]
        assert item.target not in {x.target for x in near}
        beside = Counter(sort_of(x.target) for x in near)
        assert beside["worker"] <= (1 if sort_of(item.target) == "worker" else 2)
        if sort_of(item.target) == "frontend":
            assert beside["frontend"] == 0


def test_all_kinds_come() -> None:
    """Five runs of ten minutes have nearly every fault for everybody."""
    made = [fault for seed in range(5) for fault in schedule(seed, 600, TARGETS)]
    assert len(made) > 400
    assert {item.target for item in made} == set(TARGETS)
    assert len({(sort_of(item.target), item.kind) for item in made}) >= 26


def test_what_a_machine_can_not_do_is_left_out() -> None:
    """Without a network of its own a run has the other faults of its seed."""
    rest = schedule(1, 600, TARGETS, without=APART)
    assert rest == [fault for fault in schedule(1, 600, TARGETS) if not fault.kind.startswith(APART)]
    assert {fault.kind for fault in rest} == {"kill", "pause", "slow", "leave", "empty"}


def test_each_fault_of_the_network_is_a_rule_for_one_link() -> None:
    """Both ways where nothing is said, one way for the deaf and the mute; never about another link."""
    links = {"nats": {"127.0.1.3"}, "etcd": {"127.0.2.3"}, "both": {"127.0.1.3", "127.0.2.3"}}
    kinds = {kind.name for sort in KINDS.values() for kind in sort if kind.name.startswith(APART)}
    for kind in kinds:
        made = rules(kind, "127.0.1.3", "127.0.2.3")
        how, what = kind.split()
        assert {rule[1] for rule in made} == links[what]
        ways = {"deaf": {"-s"}, "mute": {"-d"}}.get(how, {"-d", "-s"})
        assert {rule[0] for rule in made} == ways
    assert {kind.split()[0] for kind in kinds} == set(APART)
