"""The cost of a choice, term by term, and how a choice is made."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm.kv.cost import Candidate, Weights, choose, costs
from dynamo.llm.kv.index import Rank

A, B = Rank(1), Rank(2)


def one(candidate: Candidate, tokens: int = 64, size: int = 16, **weights: float) -> float:
    (cost,) = costs([candidate], tokens, size, Weights(**weights))
    return cost


def test_an_idle_rank_costs_the_prompt() -> None:
    """NVIDIA Dynamo logs 0.375 for 6 tokens in blocks of 16 on an idle worker."""
    assert one(Candidate(A), tokens=6) == 0.375


def test_each_term_counts() -> None:
    assert one(Candidate(A, prefill_tokens=32)) == 6.0
    assert one(Candidate(A, decode_blocks=5)) == 9.0
    assert one(Candidate(A, overlap_blocks=3)) == 1.0
    assert one(Candidate(A, overlap_blocks=3), overlap_credit=0.0) == 4.0
    assert one(Candidate(A, requests=2), decode_request_weight=0.5) == 5.0
    assert one(Candidate(A, decode_blocks=5), prefill_load_scale=0.0) == 5.0
    assert one(Candidate(A, overlap_blocks=4), overlap_credit=2.0) == 0.0


def test_credit_fades_on_busy_ranks() -> None:
    """With decay, a cache hit behind a long queue is worth less than one on an idle rank."""
    busy, idle = Candidate(A, prefill_tokens=64, overlap_blocks=4), Candidate(B, overlap_blocks=4)
    assert costs([busy, idle], 64, 16, Weights(overlap_credit_decay=1.0)) == [6.0, 0.0]


def test_the_lowest_wins_and_ties_are_shared() -> None:
    drawn = random.Random(1).random
    assert choose([3.0, 1.0, 2.0], 0.0, drawn) == 1
    ties = Counter(choose([1.0, 2.0, 1.0], 0.0, drawn) for _ in range(1000))
    assert set(ties) == {0, 2}
    assert min(ties.values()) > 400
    assert set(Counter(choose([5.0] * 4, 0.7, drawn) for _ in range(200))) == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="no candidate"):
        choose([], 0.0, drawn)


def test_temperature_is_a_softmax_of_scaled_costs() -> None:
    """At 1, costs 0 and 1 are chosen as e to 1, however large the numbers are."""
    drawn = random.Random(2).random
    counter = Counter(choose([100.0, 1100.0], 1.0, drawn) for _ in range(20_000))
    assert counter[0] / counter[1] == pytest.approx(2.718, rel=0.1)


@given(
    st.lists(st.floats(0, 1e9), min_size=1, max_size=20),
    st.floats(0, 10),
    st.floats(0, 1, exclude_max=True),
)
def test_a_choice_is_always_one_of_them(numbers: list[float], temperature: float, drawn: float) -> None:
    index = choose(numbers, temperature, lambda: drawn)
    assert 0 <= index < len(numbers)
    if temperature == 0.0:
        assert numbers[index] == pytest.approx(min(numbers), abs=1e-9)
