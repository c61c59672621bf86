"""Selection: pure, so tables and properties."""

from __future__ import annotations

import random as _random
from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.load_balancing import RouterMode, least_loaded, power_of_two, random, round_robin, select

T = TypeVar("T")
CANDIDATES = st.lists(st.integers(0, 20), min_size=1, max_size=8, unique=True)
LOADS = st.dictionaries(st.integers(0, 20), st.integers(0, 5))


def of(loads: Mapping[T, int]) -> Callable[[T], float]:
    """The load of each; one that is missing has none."""
    return lambda candidate: loads.get(candidate, 0)


def test_round_robin_takes_turns() -> None:
    """Everybody once, then again."""
    assert [round_robin("abc", turn) for turn in range(5)] == ["a", "b", "c", "a", "b"]


@given(CANDIDATES, LOADS, st.integers(0, 100))
def test_least_loaded_has_the_least(candidates: list[int], loads: dict[int, int], turn: int) -> None:
    """Nobody has fewer requests than the chosen one."""
    chosen = least_loaded(candidates, of(loads), turn)
    assert all(loads.get(chosen, 0) <= loads.get(other, 0) for other in candidates)


def test_least_loaded_goes_round_among_equals() -> None:
    """Equals take turns, so that idle workers share."""
    assert [least_loaded("abc", of({"b": 1}), turn) for turn in range(4)] == ["a", "c", "a", "c"]


@given(CANDIDATES, LOADS, st.integers())
def test_power_of_two_never_takes_the_worst_of_many(candidates: list[int], loads: dict[int, int], seed: int) -> None:
    """With two candidates or more, the only most loaded one is never chosen."""
    chosen = power_of_two(candidates, of(loads), _random.Random(seed))
    assert chosen in candidates
    worst = sorted(candidates, key=lambda c: loads.get(c, 0))
    if len(worst) > 1 and loads.get(worst[-1], 0) > loads.get(worst[-2], 0):
        assert chosen != worst[-1]


def test_random_reaches_everybody() -> None:
    """Every candidate is drawn sooner or later."""
    rng = _random.Random(1)
    assert {random("abc", rng) for _ in range(100)} == set("abc")


@pytest.mark.parametrize(
    ("mode", "chosen"),
    [(RouterMode.ROUND_ROBIN, "b"), (RouterMode.LEAST_LOADED, "c"), (RouterMode.POWER_OF_TWO, "c")],
)
def test_select_by_mode(mode: RouterMode, chosen: str) -> None:
    """The mode decides."""
    assert select(mode, ["b", "c"], of({"b": 2}), 0, _random.Random(0)) == chosen
    assert select(RouterMode.RANDOM, ["b"], of({}), 5, _random.Random(0)) == "b"


@pytest.mark.parametrize("text", ["round-robin", "round_robin", "RoundRobin", None, RouterMode.ROUND_ROBIN])
def test_spellings(text: str | RouterMode | None) -> None:
    """The spellings of flags, of files and of NVIDIA Dynamo are one."""
    assert RouterMode.parse(text) is RouterMode.ROUND_ROBIN


def test_an_unknown_mode() -> None:
    """The sentence lists the modes."""
    with pytest.raises(InvalidArgument, match="round-robin, random, least-loaded, power-of-two"):
        RouterMode.parse("kvv")


def test_a_client_has_no_mode_kv() -> None:
    """It knows nothing of prompts, and says which modes it has."""
    for mode in ("kv", RouterMode.KV):
        with pytest.raises(InvalidArgument, match=r"round-robin, random, least-loaded, power-of-two$"):
            RouterMode.parse(mode)
