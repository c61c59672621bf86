"""The reader's half of KV events, against everything that a bus may do to them."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dynamo.llm.kv.messages import VERSION, KvStep, Part, Sender, Step, decode_step, pack
from dynamo.llm.kv_events.reader import SLICE, EventReader
from dynamo.runtime.errors import InvalidArgument

WORKER = 5


class Told:
    """What an index would hold, and where it comes from."""

    def __init__(self, following: EventReader | None = None) -> None:
        self.following = following or EventReader()
        self.ranks: dict[int, set[int]] = {}

    def apply(self, steps: list[KvStep]) -> None:
        for step in steps:
            names = self.ranks.setdefault(step.dp_rank, set())
            if step.cleared:
                names.clear()
            names -= set(step.removed)
            names |= set(step.stored)

    def hear(self, seq: int, stored: list[int] | None = None, removed: list[int] | None = None) -> None:
        step = Step(VERSION, WORKER, seq, stored is None, 0, pack(stored or []), pack(removed or []))
        self.apply(self.following.heard(step))

    def answer(self, seq: int, names: list[int], part: int = 0, parts: int = 1) -> None:
        self.apply(self.following.answered(Part(VERSION, seq, part, parts, [(0, pack(names))])))

    @property
    def names(self) -> set[int]:
        return self.ranks.get(0, set())


def begun(seq: int = 10, names: list[int] | None = None) -> Told:
    """A reader that has its first snapshot."""
    worker = Told()
    assert worker.following.behind
    assert worker.following.ask() == (0, 0)
    worker.answer(seq, [1, 2, 3] if names is None else names)
    assert (worker.following.behind, worker.following.ask()) == (False, None)
    return worker


def test_steps_in_order_are_applied_at_once() -> None:
    events = begun()
    events.hear(11, [4], [1])
    events.hear(12, [5])
    assert (events.names, events.following.seq, events.following.gaps) == ({2, 3, 4, 5}, 12, 0)


def test_a_repeat_changes_nothing() -> None:
    """Nor does a beat that says what is known."""
    events = begun()
    events.hear(11, [4], [1])
    events.hear(11, [1], [])
    events.hear(9, [9], [])
    events.hear(11)
    assert (events.names, events.following.behind) == ({2, 3, 4}, False)


def test_a_gap_asks_for_a_snapshot_and_then_goes_on() -> None:
    """What came after the gap waits, and is replayed on top of the snapshot."""
    events = begun()
    events.hear(12, [5])
    assert (events.names, events.following.behind) == ({1, 2, 3}, True)
    assert events.following.ask() == (0, 0)
    events.hear(13, [6], [5])
    events.answer(12, [1, 4, 5])
    assert (events.names, events.following.seq, events.following.behind) == ({1, 4, 6}, 13, False)
    assert events.following.gaps == 1


def test_a_lost_last_message_shows_in_the_next_beat() -> None:
    events = begun()
    events.hear(11)
    assert events.following.behind


def test_what_was_only_overtaken_needs_no_snapshot() -> None:
    events = begun()
    events.hear(12, [], [4])
    events.hear(11, [4])
    assert (events.names, events.following.behind) == ({1, 2, 3}, False)


def test_a_gap_behind_the_snapshot_is_a_gap() -> None:
    """Something was lost while it was on its way."""
    events = begun()
    events.following.lost()
    assert events.following.ask() == (0, 0)
    events.hear(14, [9])
    events.answer(12, [1])
    assert (events.names, events.following.seq, events.following.behind) == ({1}, 12, True)
    assert events.following.ask() == (0, 0)
    events.answer(14, [1, 9])
    assert (events.names, events.following.behind) == ({1, 9}, False)


def test_a_loss_during_a_snapshot_asks_again() -> None:
    events = begun()
    events.following.lost()
    events.following.ask()
    events.following.lost()
    events.answer(11, [1])
    assert (events.names, events.following.behind) == ({1}, True)


def test_an_answer_to_an_older_question_is_not_taken() -> None:
    """What came since is not there any more to be replayed."""
    events = begun()
    events.following.lost()
    events.following.ask()
    events.answer(9, [7])
    assert (events.names, events.following.behind) == ({1, 2, 3}, True)
    events.answer(9, [7])  # nobody asked
    assert events.names == {1, 2, 3}


def test_parts_of_different_moments_fit_together() -> None:
    """Even names as of 11, odd ones as of 13: everything after 11 is said again, in order."""
    events = begun()
    events.following.lost()
    assert events.following.ask() == (0, 0)
    events.answer(11, [2, 4], 0, 2)
    events.hear(12, [6], [2, 5])
    events.hear(13, [5], [4])
    assert events.following.ask() == (1, 2)
    events.answer(13, [1, 5], 1, 2)
    assert (events.names, events.following.seq, events.following.behind) == ({1, 5, 6}, 13, False)


def test_a_busy_worker_can_be_caught_up_with() -> None:
    """A step between every two parts: the snapshot still comes to its end."""
    events = begun()
    events.following.lost()
    for part in range(5):
        assert events.following.ask() == (part, 5 if part else 0)
        events.answer(10 + part, [50 + part], part, 5)
        events.hear(11 + part, [100 + part])
    assert (events.following.behind, events.following.seq) == (False, 15)
    assert events.names == {*range(50, 55), *range(100, 105)}


def test_a_large_snapshot_is_applied_in_slices() -> None:
    """So that nobody has to take in a million names at once; ranks that are not in it any more are cleared."""
    worker = Told()
    worker.apply(worker.following.heard(Step(VERSION, WORKER, 1, dp_rank=3, stored=pack([1]))))
    worker.following.ask()
    names = list(range(3 * SLICE + 5))
    steps = worker.following.answered(Part(VERSION, 0, 0, 1, [(0, pack(names)), (1, b"")]))
    assert [(step.dp_rank, step.cleared, len(step.stored)) for step in steps] == [
        (0, True, 0), (0, False, SLICE), (0, False, SLICE), (0, False, SLICE), (0, False, 5),
        (1, True, 0), (3, False, 1),
    ]  # fmt: skip
    worker.apply(steps)
    assert (worker.ranks, worker.following.steps) == ({0: set(names), 1: set(), 3: {1}}, 1)
    worker.following.lost()
    worker.following.ask()
    worker.answer(1, [5])
    assert worker.ranks == {0: {5}, 1: set(), 3: set()}


def test_a_snapshot_that_does_not_come_leaves_what_is_known() -> None:
    """What waited is applied where it can be, and the next question begins from the start."""
    events = begun()
    events.following.lost()
    events.following.ask()
    events.answer(11, [2], 0, 2)
    events.hear(11, [8])
    events.apply(events.following.failed())
    assert (events.names, events.following.behind, events.following.ask()) == ({1, 2, 3, 8}, True, (0, 0))


@pytest.mark.parametrize(
    "part",
    [
        Part(VERSION, 1, 1, 2, []), Part(VERSION, 1, 0, 0, []), Part(VERSION + 1, 1, 0, 1, []),
        Part(VERSION, 1, 0, 1 << 40, []), Part(VERSION, 1, 0, 1, [(0, b"123")]), Part(VERSION, 1, 0, 1, [(-1, b"")]),
    ],
)  # fmt: skip
def test_another_part_than_asked_for_is_refused(part: Part) -> None:
    """Whoever called says `failed` then, and asks again."""
    following = EventReader()
    following.ask()
    with pytest.raises((InvalidArgument, ValueError)):
        following.answered(part)
    assert following.failed() == []
    assert (following.behind, following.ask()) == (True, (0, 0))


def test_an_unreadable_step_is_a_gap() -> None:
    events = begun()
    with pytest.raises(ValueError, match="multiple"):
        events.following.heard(Step(VERSION, WORKER, 11, stored=b"123"))
    assert events.following.behind


def test_what_waits_is_bounded() -> None:
    """By messages and by names; what was dropped shows as a gap, and the next snapshot mends it."""
    for most, names in ((10, 1 << 20), (1000, 10)):
        worker = Told(EventReader(most, names))
        worker.following.ask()
        for seq in range(1, 101):
            worker.hear(seq, [seq])
        worker.answer(50, list(range(1, 51)))
        assert worker.following.behind
        assert worker.names == set(range(1, 51))
        worker.following.ask()
        worker.answer(95, list(range(1, 96)))
        assert (worker.names, worker.following.seq, worker.following.behind) == (set(range(1, 101)), 100, False)


class Histories(RuleBasedStateMachine):
    """Any order of steps, losses, repeats, overtakings, and snapshots in parts that steps come between."""

    LIMIT = 1 << 20
    """What a message may hold. As large as this, a snapshot is one part."""

    def __init__(self) -> None:
        super().__init__()
        self.sender = Sender()
        self.truth: dict[int, set[int]] = {}
        self.history: dict[int, dict[int, set[int]]] = {0: {}}
        self.wire: list[Step] = []
        self.told = Told(EventReader(most_waiting=6))
        self.answer: Part | None = None
        self.asked: tuple[int, int] | None = None

    names = st.sets(st.integers(0, 40), max_size=12)

    @rule(stored=names, removed=names, rank=st.integers(0, 1), cleared=st.integers(0, 9))
    def step(self, stored: set[int], removed: set[int], rank: int, cleared: int) -> None:
        """An engine step: it removes what is there and stores what isn't."""
        old = set() if cleared == 0 else self.truth.setdefault(rank, set())
        step = KvStep(sorted(stored - old), sorted(removed & old - stored), rank, cleared == 0)
        self.truth[rank] = (old - set(step.removed)) | set(step.stored)
        for data in self.sender.step(step, WORKER, self.LIMIT):
            self.wire.append(decode_step(data))
        self.history[self.sender.seq] = {rank: set(names) for rank, names in self.truth.items()}

    @rule()
    def beat(self) -> None:
        self.wire.append(decode_step(self.sender.beat(WORKER)))

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """Mostly in order."""
        at = data.draw(st.sampled_from([0, 0, 0, len(self.wire) - 1]))
        self.told.apply(self.told.following.heard(self.wire.pop(at)))

    @precondition(lambda self: self.wire)
    @rule()
    def lose(self) -> None:
        del self.wire[0]

    @precondition(lambda self: self.wire)
    @rule()
    def repeat(self) -> None:
        self.wire.append(self.wire[0])

    @precondition(lambda self: self.asked is None)
    @rule()
    def ask(self) -> None:
        self.asked = self.told.following.ask()

    @precondition(lambda self: self.asked is not None and self.answer is None)
    @rule()
    def make_answer(self) -> None:
        """The worker looks at its cache: at its own moment, not at the question's or the answer's."""
        self.answer = self.sender.snapshot(self.asked, self.LIMIT)

    @precondition(lambda self: self.answer is not None)
    @rule()
    def get_answer(self) -> None:
        assert self.answer is not None
        part, self.answer, self.asked = self.answer, None, None
        self.told.apply(self.told.following.answered(part))

    @precondition(lambda self: self.asked is not None)
    @rule()
    def fail(self) -> None:
        self.answer = self.asked = None
        self.told.apply(self.told.following.failed())

    @rule()
    def reconnect(self) -> None:
        """The bus lost what was on its way."""
        self.wire.clear()
        self.told.following.lost()

    @rule()
    def settle(self) -> None:
        """Once nothing is lost any more, a beat and one snapshot or two make everything good."""
        if self.asked is not None:
            self.fail()
        for _ in range(2):
            self.beat()
            for step in self.wire:
                self.told.apply(self.told.following.heard(step))
            self.wire.clear()
            while (asked := self.told.following.ask()) is not None:
                self.told.apply(self.told.following.answered(self.sender.snapshot(asked, self.LIMIT)))
        assert not self.told.following.behind
        assert self.told.following.seq == self.sender.seq
        assert self.held() == {rank: names for rank, names in self.truth.items() if names}

    def held(self) -> dict[int, set[int]]:
        return {rank: names for rank, names in self.told.ranks.items() if names}

    @invariant()
    def what_is_held_was_once_true(self) -> None:
        """After one part and after steps alike: exactly the cache as it was after the last number applied."""
        seq = self.told.following.seq
        if self.LIMIT == Histories.LIMIT and seq is not None:
            assert self.held() == {rank: names for rank, names in self.history[seq].items() if names}


class HistoriesInParts(Histories):
    """With room for nine names a message: steps and snapshots are cut."""

    LIMIT = 256 + 9 * 8


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestHistoriesInParts = HistoriesInParts.TestCase
TestHistoriesInParts.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def test_a_number_that_was_made_up_is_not_waited_for() -> None:
    """A beat far beyond what the worker has said: its snapshot says how far it is, and that is believed."""
    events = begun(seq=10)
    events.hear(1 << 40)
    assert events.following.behind
    assert events.following.ask() == (0, 0)
    events.answer(12, [4])
    assert not events.following.behind
    events.hear(13, [5])
    assert events.names == {4, 5}
    events.hear(15)
    assert events.following.behind, "what is really lost shows at the next beat"
