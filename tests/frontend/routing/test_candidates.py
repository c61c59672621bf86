"""The choice among candidates by their load, in every mode."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dynamo.frontend.routing.candidates import Candidate, load
from dynamo.runtime.load_balancing import RouterMode, least_loaded, power_of_two, select

candidates = st.lists(
    st.builds(
        Candidate, id=st.integers(1, 2**53), open_streams=st.integers(0, 9), running=st.integers(0, 9),
        waiting=st.integers(0, 9), capacity=st.sampled_from([0, 4, 16]),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@given(candidates, st.sampled_from(RouterMode), st.integers(0, 2**32))
def test_every_mode_picks_a_candidate(candidates: list[Candidate], mode: RouterMode, seed: int) -> None:
    """Whatever the loads, the choice is one of the candidates."""
    assert select(mode, candidates, load, 0, Random(seed)) in candidates


def test_round_robin_is_even() -> None:
    """Each candidate has its turn."""
    candidates = [Candidate(i) for i in range(3)]
    counts = Counter(select(RouterMode.ROUND_ROBIN, candidates, load, turn, Random(1)).id for turn in range(30))
    assert counts == {0: 10, 1: 10, 2: 10}


@given(candidates, st.integers(0, 2**32))
def test_least_loaded_is_least(candidates: list[Candidate], turn: int) -> None:
    """Nobody is less busy than the chosen one."""
    chosen = least_loaded(candidates, load, turn)
    assert load(chosen) == min(load(c) for c in candidates)


def test_equals_take_turns() -> None:
    """Idle instances share the requests."""
    results = [Candidate(0), Candidate(1), Candidate(2, open_streams=1)]
    assert {least_loaded(results, load, turn).id for turn in range(4)} == {0, 1}


def test_power_of_two_avoids_the_busy_one() -> None:
    """The busiest of three is never the less busy of two."""
    results = [Candidate(0), Candidate(1), Candidate(2, open_streams=5)]
    assert {power_of_two(results, load, Random(seed)).id for seed in range(50)} == {0, 1}


def test_load_counts_slots() -> None:
    """A large engine with some streams is less busy than a small full one."""
    assert load(Candidate(1, running=8, capacity=64)) < load(Candidate(2, running=4, capacity=4))
    assert load(Candidate(1, open_streams=3, running=1, waiting=1)) == 3
