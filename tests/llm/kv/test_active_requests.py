"""What runs where, against the sum over all requests that run."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamo.llm.kv.active_requests import IDLE, Activity, Load
from dynamo.llm.kv.index import Rank

A, B = Rank(1), Rank(2)


def test_shared_blocks_count_once() -> None:
    """Two requests with the same system prompt hold it once; the second's end leaves it to the first."""
    activity = Activity()
    activity.add("x", A, [1, 2, 3], 48)
    activity.add("y", A, [1, 2, 9], 16)
    assert activity.load(A) == Load(64, 4, 2)
    assert activity.shared([1, 2, 9, 5]) == {A: 3}
    assert activity.loads([B, A], []) == ([0, 64], [0, 4], [0, 2], None)
    assert activity.loads([B, A], [1, 2, 9, 5]) == ([0, 64], [0, 1], [0, 2], [0, 3])
    activity.prefilled("x")
    activity.grew("x")
    assert activity.load(A) == Load(16, 5, 2)
    activity.free("y")
    assert activity.load(A) == Load(0, 4, 1)
    assert activity.shared([1, 2, 9]) == {A: 2}
    activity.free("x")
    assert activity.load(A) == IDLE


def test_whatever_ends_twice_ends_once() -> None:
    activity = Activity()
    activity.add("x", A, [1], 16)
    activity.add("x", B, [1], 16)
    assert (activity.load(A), activity.load(B)) == (IDLE, Load(16, 1, 1))
    for _ in range(2):
        activity.prefilled("x")
        activity.free("x")
        activity.grew("x")
    assert (activity.load(B), len(activity)) == (IDLE, 0)


def test_a_rank_that_goes_takes_its_requests() -> None:
    activity = Activity()
    activity.add("x", A, [1], 16)
    activity.add("y", B, [1], 16)
    assert activity.drop(A) == ["x"]
    assert activity.load(A) == IDLE
    assert activity.load(B) == Load(16, 1, 1)


class Histories(RuleBasedStateMachine):
    """Any order of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.activity = Activity()
        self.truth: dict[str, list[object]] = {}

    requests = st.sampled_from("abcdef")
    ranks = st.sampled_from([A, B])

    @rule(request=requests, rank=ranks, cut=st.integers(0, 6), kind=st.integers(0, 1), tokens=st.integers(0, 99))
    def add(self, request: str, rank: Rank, cut: int, kind: int, tokens: int) -> None:
        names = [kind * 100 + i for i in range(cut)]
        self.activity.add(request, rank, names, tokens)
        self.truth[request] = [rank, names, tokens, 0]

    @rule(request=requests)
    def prefilled(self, request: str) -> None:
        self.activity.prefilled(request)
        if request in self.truth:
            self.truth[request][2] = 0

    @rule(request=requests)
    def grew(self, request: str) -> None:
        self.activity.grew(request)
        if request in self.truth:
            self.truth[request][3] += 1  # type: ignore[operator]

    @rule(request=requests)
    def free(self, request: str) -> None:
        self.activity.free(request)
        self.truth.pop(request, None)

    @rule(rank=ranks)
    def drop(self, rank: Rank) -> None:
        gone = {request for request, entry in self.truth.items() if entry[0] == rank}
        assert set(self.activity.drop(rank)) == gone
        for request in gone:
            del self.truth[request]

    @invariant()
    def adds_up(self) -> None:
        for rank in (A, B):
            mine = [entry for entry in self.truth.values() if entry[0] == rank]
            names = {name for entry in mine for name in entry[1]}  # type: ignore[attr-defined]
            expected = Load(sum(e[2] for e in mine), len(names) + sum(e[3] for e in mine), len(mine))  # type: ignore[misc]
            assert self.activity.load(rank) == expected
            assert self.activity.shared([0, 1, 2]).get(rank, 0) == len([n for n in (0, 1, 2) if n in names])


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
