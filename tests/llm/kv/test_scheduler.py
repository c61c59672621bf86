"""Names, index, activity and cost together: what a decision says, and that asking changes nothing."""

from __future__ import annotations

import random

import pytest

from dynamo.llm.kv.cost import Candidate, Weights, costs
from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.messages import KvStep
from dynamo.llm.kv.scheduler import KvScheduler, rank_count

SIZE = 4


def router(temperature: float = 0.0) -> KvScheduler:
    return KvScheduler(SIZE, Weights(), temperature, random.Random(0).random, 120.0)


def test_a_question_counts_nothing() -> None:
    """`query` says what `place` will do, as often as it is asked."""
    made = router()
    prompt = made.prompt(range(40))
    ranks = made.ranks([1, 2, 3])
    for rank in ranks:
        made.follow(rank.instance)
    made.apply(2, KvStep(prompt.hashes[:6]))
    asked = [made.query(prompt, ranks) for _ in range(3)]
    assert asked == [asked[0]] * 3
    assert len(made.activity) == 0
    assert made.place("x", prompt, ranks, 0.0) == asked[0]
    assert (asked[0].rank, asked[0].position, asked[0].overlap_blocks, asked[0].to_prefill) == (Rank(2), 1, 6, 16)
    assert len(made.activity) == 1


def test_ranks_follow_the_instances() -> None:
    """The same list for the same instances, another one when somebody came, left or moved."""
    made = router()
    first = made.ranks([1, 2])
    assert first == [Rank(1), Rank(2)]
    assert made.ranks([1, 2]) is first
    assert made.ranks([2, 1]) == [Rank(2), Rank(1)]
    assert made.ranks([2]) == [Rank(2)]
    assert made.ranks([]) == []


def test_the_cost_is_that_of_its_parts() -> None:
    """Whatever runs and is cached anywhere: the chosen rank's cost is the lowest of the formula's, rank by rank."""
    numbers = random.Random(5)
    for _ in range(200):
        made = router()
        ranks = made.ranks(range(numbers.randint(1, 12)))
        tokens = list(range(40))
        names = made.prompt(tokens).hashes
        for rank in ranks:
            made.follow(rank.instance)
            made.apply(rank.instance, KvStep(names[: numbers.randint(0, 10)]))
        for request in range(numbers.randint(0, 20)):
            some = made.prompt([*tokens[: numbers.randint(0, 40)], *range(100, 100 + numbers.randint(0, 30))])
            made.place(f"r{request}", some, [numbers.choice(list(ranks))], 0.0)
            if numbers.random() < 0.5:
                made.prefilled(f"r{request}")
        prompt = made.prompt(tokens)
        shared, depths = made.activity.shared(names), made.index.depths(names)
        candidates = []
        for rank in ranks:
            load, both = made.activity.load(rank), shared.get(rank, 0)
            decode = load.blocks + len(names) - both
            cached = max(depths.get(rank, 0), both)
            candidates.append(Candidate(rank, load.prefill_tokens, decode, load.requests, cached))
        expected = costs(candidates, prompt.tokens, SIZE, Weights())
        decision = made.query(prompt, ranks)
        assert decision.cost == min(expected)
        assert expected[decision.position] == decision.cost
        assert decision.overlap_blocks == max(depths.get(decision.rank, 0), shared.get(decision.rank, 0))


def test_a_prompt_on_its_way_is_as_good_as_cached() -> None:
    """What is computed there for somebody else needn't be computed again, here or elsewhere."""
    made = router()
    ranks = made.ranks(range(2))
    for rank in ranks:
        made.follow(rank.instance)
    first = made.place("a", made.prompt(range(40)), ranks, 0.0)
    other = made.place("b", made.prompt(range(100, 140)), ranks, 0.0)
    again = made.place("c", made.prompt([*range(40), 7]), ranks, 0.0)
    assert other.rank != first.rank
    assert (again.rank, again.overlap_blocks, again.to_prefill) == (first.rank, 40 // SIZE, 41 - 40 // SIZE * SIZE)


def test_ranks_are_candidates_of_their_own() -> None:
    """An instance of three ranks has three caches and three loads; gone, it has one again."""
    made = router()
    made.has_ranks(7, 3)
    assert made.ranks([5, 7]) == [Rank(5), Rank(7, 0), Rank(7, 1), Rank(7, 2)]
    prompt = made.prompt(range(16))
    first = made.place("a", prompt, [Rank(7, 2)], 0.0)
    assert first.rank == Rank(7, 2)
    made.prefilled("a")
    again = made.place("b", prompt, made.ranks([5, 7]), 0.0)
    assert (again.rank, again.overlap_blocks, again.position) == (Rank(7, 2), 4, 3)
    other = made.place("c", made.prompt(range(100, 116)), made.ranks([7]), 0.0)
    assert other.rank in (Rank(7, 0), Rank(7, 1))
    made.left(7)
    assert made.ranks([5, 7]) == [Rank(5), Rank(7)]
    assert (len(made.activity), list(made.index.ranks)) == (0, [])


@pytest.mark.parametrize(
    ("figures", "count"), [({}, 1), ({"data_parallel_size": 4}, 4), ({"data_parallel_size": 0}, 1)]
)
def test_the_number_of_ranks_is_read_off_the_figures(figures: dict[str, int], count: int) -> None:
    """One where nothing is said."""
    assert rank_count(figures) == count
