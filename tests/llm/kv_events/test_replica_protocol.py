"""What frontends tell each other of their requests: everybody counts the same, and nothing stays counted."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from dynamo.llm.kv.active_requests import IDLE, Load
from dynamo.llm.kv.cost import Weights
from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.scheduler import KvScheduler
from dynamo.llm.kv_events.replica_protocol import (
    PATIENCE,
    VERSION,
    Added,
    ReplicaMessage,
    ReplicaReceiver,
    ReplicaSender,
    decode_message,
)

LIMIT = 1 << 20
A, B = Rank(7), Rank(8)


def router() -> KvScheduler:
    return KvScheduler(4, Weights(), 0.0, Random(1).random, 120.0)


class Frontend:
    """One side of it: what it hears is counted in its router."""

    def __init__(self, client: int) -> None:
        self.router, self.sender = router(), ReplicaSender(client)
        self.receiver = ReplicaReceiver(client, {7: self.router, 8: self.router}.get)

    def hear(self, data: bytes, now: float = 0.0) -> None:
        if self.receiver.heard(decode_message(data), now):
            self.sender.everything()

    def said(self, limit: int = LIMIT) -> list[bytes]:
        return list(self.sender.take(limit))


def pair() -> tuple[Frontend, Frontend]:
    """Two that know of each other."""
    first, other = Frontend(1), Frontend(2)
    other.hear(first.sender.beat())
    first.hear(other.sender.beat())
    return first, other


def test_the_bytes_of_a_message() -> None:
    """Positions are the contract."""
    speaker = ReplicaSender(5)
    speaker.everything()
    number = speaker.added(Rank(7, 1), [2**64 - 1], 9)
    (data,) = speaker.take(LIMIT)
    assert data.hex() == (
        "98" "01" "05" "91" "95" "01" "07" "01" "09" "c408" "ffffffffffffffff" "90" "90" "c0" "90" "c2"
    )  # fmt: skip
    assert speaker.beat().hex() == "98" "01" "05" "90" "90" "90" "91" "01" "91" "01" "c2"  # fmt: skip
    speaker.prefilled(number)
    assert decode_message(next(speaker.take(LIMIT))) == ReplicaMessage(VERSION, 5, prefilled=[number])
    assert decode_message(speaker.farewell()).leaving


def test_a_request_counts_everywhere_until_it_ends() -> None:
    """Its prefill until the first token, its blocks once however many share them, across frontends too."""
    first, other = pair()
    number = first.sender.added(A, [1, 2], 10)
    other.router.activity.add("own", A, [1, 3], 5)
    for data in first.said():
        other.hear(data)
    assert other.router.activity.load(A) == Load(15, 3, 2)
    assert other.router.activity.shared([1, 2, 4]) == {A: 2}
    first.sender.prefilled(number)
    for data in first.said():
        other.hear(data)
    assert other.router.activity.load(A) == Load(5, 3, 2)
    first.sender.freed(number)
    first.sender.freed(number)
    for data in first.said():
        other.hear(data)
    assert other.router.activity.load(A) == Load(5, 2, 1)


def test_a_newcomer_is_told_everything() -> None:
    frontend = Frontend(1)
    first = frontend.sender.added(A, [1], 10)
    frontend.sender.added(B, [2], 10)
    frontend.sender.prefilled(first)
    assert frontend.said() == [], "nobody listens yet"
    other = Frontend(2)
    frontend.hear(other.sender.beat())
    for data in frontend.said():
        other.hear(data)
    assert (other.router.activity.load(A), other.router.activity.load(B)) == (Load(0, 1, 1), Load(10, 1, 1))


def test_what_was_lost_is_mended_by_the_next_beat() -> None:
    """A lost end, and a lost first token: nothing stays counted that is over."""
    first, other = pair()
    numbers = [first.sender.added(A, [n], 10) for n in range(3)]
    for data in first.said():
        other.hear(data)
    first.sender.freed(numbers[0])
    first.sender.prefilled(numbers[1])
    assert len(first.said()) == 1  # lost
    assert other.router.activity.load(A) == Load(30, 3, 3)
    other.hear(first.sender.beat())
    assert other.router.activity.load(A) == Load(10, 2, 2)


def test_whoever_is_silent_or_leaves_is_forgotten() -> None:
    """A killed frontend's requests count for some seconds, one that says farewell takes them along."""
    first, other = pair()
    first.sender.added(A, [1], 10)
    for data in first.said():
        other.hear(data, 10.0)
    other.receiver.expire(10.0 + PATIENCE)
    assert other.router.activity.load(A) == Load(10, 1, 1)
    other.receiver.expire(10.1 + PATIENCE)
    assert (other.router.activity.load(A), len(other.receiver)) == (IDLE, 0)
    other.hear(first.sender.beat(), 20.0)
    first.sender.everything()
    for data in first.said():
        other.hear(data, 20.0)
    assert other.router.activity.load(A) == Load(10, 1, 1)
    other.hear(first.sender.farewell(), 20.0)
    assert (other.router.activity.load(A), len(other.receiver)) == (IDLE, 0)


def test_messages_stay_within_the_limit() -> None:
    """Many requests are several messages; of one that is too long its beginning is told."""
    first, other = pair()
    limit = 1024
    for number in range(50):
        first.sender.added(A, range(100 * number, 100 * number + 20), 1)
    first.sender.added(B, range(10_000, 11_000), 1)
    messages = first.said(limit)
    assert max(map(len, messages)) <= limit
    for data in messages:
        other.hear(data)
    assert other.router.activity.load(A) == Load(50, 1000, 50)
    assert other.router.activity.load(B).requests == 1
    assert 50 < other.router.activity.load(B).blocks < 1000


def test_own_messages_and_unknown_instances_do_not_count() -> None:
    first, other = pair()
    first.sender.added(Rank(99), [1], 10)
    for data in first.said():
        first.hear(data)
        other.hear(data)
    assert (len(first.router.activity), len(other.router.activity)) == (0, 0)
    with pytest.raises(ValueError, match="multiple"):
        other.receiver.heard(ReplicaMessage(VERSION, 3, [Added(1, 7, 0, 1, b"123")]), 0.0)


class Histories(RuleBasedStateMachine):
    """Requests come and go at one frontend while messages to the other are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = pair()
        self.truth: dict[int, str] = {}

    @rule(
        rank=st.sampled_from([A, B]), names=st.lists(st.integers(0, 9), max_size=5, unique=True), cached=st.booleans()
    )
    def send(self, rank: Rank, names: list[int], cached: bool) -> None:
        number = self.one.sender.added(rank, names, 0 if cached else 10)
        self.truth[number] = str(number)
        self.one.router.activity.add(str(number), rank, names, 0 if cached else 10)

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.truth)))
        self.one.sender.prefilled(number)
        self.one.router.prefilled(str(number))

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.truth)))
        self.one.sender.freed(number)
        self.one.router.ended(self.truth.pop(number))

    @rule(lost=st.booleans())
    def flush(self, lost: bool) -> None:
        for data in self.one.said():
            if not lost:
                self.other.hear(data)

    @rule()
    def greet(self) -> None:
        """The other has forgotten this one, and hears it again."""
        self.other.receiver.expire(100.0)
        self.other.hear(self.one.sender.beat())
        self.one.sender.everything()
        self.flush(lost=False)
        for rank in (A, B):
            assert self.other.router.activity.load(rank) == self.one.router.activity.load(rank)

    @rule()
    def beat(self) -> None:
        """After a beat nothing is counted that isn't so; what was lost may be missing."""
        self.flush(lost=False)
        self.other.hear(self.one.sender.beat())
        for rank in (A, B):
            counted, true = self.other.router.activity.load(rank), self.one.router.activity.load(rank)
            assert all(c <= t for c, t in zip(counted, true, strict=True))


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
