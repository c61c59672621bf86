"""The index against the plainest thing that could be right: a set of blocks per rank."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamo.llm.kv.index import KvIndex, Match, Rank

A, B, C = Rank(11), Rank(12), Rank(12, 1)


def test_the_longest_beginning_counts() -> None:
    """A gap ends a match, however much comes after it."""
    index = KvIndex()
    index.store(A, [1, 2, 3])
    index.store(B, [1, 3, 4])
    assert index.depths([1, 2, 3, 4]) == {A: 3, B: 1}
    assert index.depths([2, 3]) == {A: 2}
    assert index.find([9, 1]) == []
    assert [match.blocks for match in index.find([1, 2, 3, 4])] == [3, 1]


def test_ranks_of_one_worker_are_told_apart() -> None:
    index = KvIndex()
    index.store(B, [1, 2])
    index.store(C, [1])
    assert index.depths([1, 2]) == {B: 2, C: 1}
    assert len(index) == 2


def test_a_block_that_came_twice_goes_once() -> None:
    index = KvIndex()
    index.store(A, [1, 1])
    index.store(A, [1])
    assert index.count(A) == 1
    index.remove(A, [1, 1])
    index.remove(B, [1])
    assert index.count(A) == 0
    assert len(index) == 0
    assert index.find([1]) == []


def test_no_rank_takes_more_than_its_share() -> None:
    """A worker that never says "removed" can't fill the frontend's memory."""
    index = KvIndex(blocks_per_rank=3)
    index.store(A, range(10))
    assert (index.count(A), index.refused, len(index)) == (3, 7, 3)
    index.store(B, range(3))
    assert index.count(B) == 3


def test_a_slot_is_used_again_once_nothing_refers_to_it() -> None:
    """A new worker never inherits the blocks of the one whose bit it gets."""
    index = KvIndex()
    index.store(A, range(100))
    index.store(B, range(50))
    index.drop(A)
    index.store(C, [200])
    assert index.depths(range(100)) == {B: 50}
    while index.sweep(7):
        pass
    assert len(index) == 51
    index.store(A, [300])
    assert index.depths(range(100)) == {B: 50}
    assert index.find([300]) == [Match(1, 1)]


class Histories(RuleBasedStateMachine):
    """Any order of stores, removals, departures and sweeps."""

    def __init__(self) -> None:
        super().__init__()
        self.index = KvIndex()
        self.truth: dict[Rank, set[int]] = {}

    ranks = st.builds(Rank, st.integers(0, 5), st.integers(0, 1))
    names = st.lists(st.integers(0, 12), max_size=8)

    @rule(rank=ranks, names=names)
    def store(self, rank: Rank, names: list[int]) -> None:
        self.index.store(rank, names)
        self.truth.setdefault(rank, set()).update(names)

    @rule(rank=ranks, names=names)
    def remove(self, rank: Rank, names: list[int]) -> None:
        self.index.remove(rank, names)
        self.truth.get(rank, set()).difference_update(names)

    @rule(rank=ranks)
    def drop(self, rank: Rank) -> None:
        self.index.drop(rank)
        self.truth.pop(rank, None)

    @rule(count=st.integers(1, 5))
    def sweep(self, count: int) -> None:
        self.index.sweep(count)

    @rule(prompt=st.lists(st.integers(0, 12), max_size=8))
    def find(self, prompt: list[int]) -> None:
        expected = {}
        for rank, blocks in self.truth.items():
            depth = next((i for i, name in enumerate(prompt) if name not in blocks), len(prompt))
            if depth:
                expected[rank] = depth
        assert self.index.depths(prompt) == expected
        ranks = [Rank(instance, rank) for instance in range(7) for rank in range(2)]
        assert self.index.overlaps(prompt, ranks) == [expected.get(rank, 0) for rank in ranks]

    @invariant()
    def holds_what_it_was_told(self) -> None:
        for rank, blocks in self.truth.items():
            assert set(self.index.blocks_of(rank)) == blocks
            assert self.index.count(rank) == len(blocks)
        assert set(self.index.ranks) == set(self.truth)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
