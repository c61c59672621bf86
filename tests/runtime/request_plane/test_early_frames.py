"""Frames of one worker by two ways: in order whatever overtakes what, and a gap only where something was lost."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.errors import DynamoException
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.request_plane.call import OpenStream
from dynamo.runtime.request_plane.early_frames import ENOUGH, MOST, OVERLAP
from dynamo.runtime.request_plane.inbox import SETTLE, Inbox
from dynamo.runtime.request_plane.wire import Item, Pong, StepFrame

KEY = InstanceKey(EndpointPath("n", "c", "e"), 7)


class Client:
    """An inbox with one stream, opened when its worker had sent `sent` frames to us before."""

    def __init__(self, sent: int = 0) -> None:
        self.inbox = Inbox(KEY, 0.0)
        self.items: list[Any] = []
        self.ends: list[DynamoException | None] = []
        self.inbox.open(OpenStream(1, lambda data, _: self.items.append(data), self.ends.append), 0.0)
        self.inbox.link(sent)
        self.first = sent + 1

    def frame(self, seq: int, now: float = 0.0) -> None:
        """Receive a frame: the first accepts the stream, each has its number as an item."""
        accepted = [1] if seq == self.first else []
        self.inbox.receive(StepFrame(1, 7, seq, accepted, [Item(1, seq)]), now)

    def beat(self, seq: int, now: float) -> None:
        self.inbox.receive(StepFrame(1, 7, seq, [], [], True), now)


def test_what_overtakes_waits() -> None:
    """A direct frame that overtakes the acceptance on the bus is taken after it."""
    client = Client(sent=40)
    client.frame(42)
    assert client.items == []
    client.frame(41)
    client.frame(43)
    assert client.items == [41, 42, 43]
    assert (client.ends, client.inbox.gaps) == ([], 0)


def test_a_heartbeat_that_overtakes_is_no_gap() -> None:
    """Nor does it hide one: what it claims and never comes was lost."""
    client = Client()
    client.frame(1)
    client.beat(2, 0.0)
    client.frame(2, 0.1)
    assert (client.items, client.ends, client.inbox.early.since) == ([1, 2], [], None)
    client.beat(3, 1.0)
    client.inbox.tick(1.0 + SETTLE)
    assert [end and end.code for end in client.ends] == ["incomplete"]


def test_what_never_comes_is_lost() -> None:
    """The wait ends: the stream fails once, and what follows finds the inbox in step."""
    client = Client()
    client.frame(1)
    client.frame(3, 1.0)
    client.inbox.tick(1.0 + SETTLE / 2)
    assert client.ends == []
    client.inbox.tick(1.0 + SETTLE)
    assert ([end and end.code for end in client.ends], client.inbox.gaps) == (["incomplete"], 1)
    client.frame(4, 1.3)
    assert client.inbox.gaps == 1


def test_frames_that_wait_are_bounded() -> None:
    """Of frames without end before a lost one only so many are kept."""
    client = Client()
    client.frame(1)
    for seq in range(3, 3 + MOST + 1):
        client.frame(seq)
    assert not client.inbox.early.frames
    assert (len(client.ends), client.inbox.gaps) == (1, 1)


class Held:
    """A stream that notes how it is held up."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.waits = False

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


def test_a_stream_is_held_up_while_enough_waits() -> None:
    """Until what is missing came, or counts as lost; nothing that came is lost by it."""
    client, held = Client(), Held()
    client.inbox.link(0, held)
    for seq in range(2, 2 + ENOUGH):
        client.frame(seq)
    assert held.calls == ["pause"]
    client.frame(1)
    assert held.calls == ["pause", "resume"]
    assert client.items == list(range(1, 2 + ENOUGH))
    for seq in range(3 + ENOUGH, 3 + 2 * ENOUGH):
        client.frame(seq, 1.0)
    client.inbox.tick(1.0 + SETTLE)
    assert held.calls == ["pause", "resume"] * 2
    client.inbox.unlink(2.0)
    assert client.inbox.early.flow is None


def test_what_waits_for_its_turn_is_not_lost() -> None:
    """Frames that came, and that a busy client hasn't read yet, are neither a gap nor what a pong says is missing."""
    client, held = Client(), Held()
    client.inbox.link(0, held)
    client.frame(1)
    held.waits = True
    client.frame(3)
    client.inbox.pong(Pong(seq=9, streams=[1]), 0.1, 0.1)
    client.inbox.tick(0.1 + SETTLE)
    client.inbox.tick(0.1 + 3 * SETTLE)
    assert (client.items, client.ends) == ([1], [])
    client.frame(2, 0.1 + 3 * SETTLE)
    held.waits = False
    assert client.items == [1, 2, 3]
    client.inbox.tick(0.1 + 4 * SETTLE)
    assert [end and end.code for end in client.ends] == ["incomplete"], "what the pong named never came"


def test_each_missing_frame_has_its_own_wait() -> None:
    """A bus that catches up has time for the next one; a second gap doesn't go with the first."""
    client = Client()
    for seq in (1, 3, 5):
        client.frame(seq)
    client.inbox.tick(SETTLE * 0.9)
    client.frame(2, SETTLE * 0.9)
    client.inbox.tick(SETTLE * 1.8)
    assert (client.items, client.ends) == ([1, 2, 3], [])
    client.frame(4, SETTLE * 1.8)
    assert (client.items, client.ends, client.inbox.early.since) == ([1, 2, 3, 4, 5], [], None)


def test_a_gap_that_comes_later_is_waited_for_on_its_own() -> None:
    """The first gap costs the streams that were open then; one that began behind it is whole."""
    client, items, ends = Client(), [], []  # type: ignore[var-annotated]
    client.frame(1)
    client.frame(3)
    client.inbox.open(OpenStream(2, lambda data, _: items.append(data), ends.append), 0.1)
    client.inbox.receive(StepFrame(1, 7, 4, [2], [Item(2, "a")]), 0.1)
    client.inbox.receive(StepFrame(1, 7, 6, [], [Item(2, "c")]), 0.2)
    client.inbox.tick(SETTLE)
    assert ([end and end.code for end in client.ends], items, ends) == (["incomplete"], ["a"], [])
    client.inbox.receive(StepFrame(1, 7, 5, [], [Item(2, "b")]), SETTLE + 0.1)
    assert (items, ends, client.inbox.gaps) == (["a", "b", "c"], [], 1)


def test_old_gaps_end_together() -> None:
    """What has waited for long enough already gets no new wait: a held stream goes on after one."""
    client, held = Client(), Held()
    client.inbox.link(0, held)
    for seq in range(2, 2 + 2 * ENOUGH, 2):
        client.frame(seq)
    client.inbox.tick(SETTLE)
    assert (held.calls, client.inbox.early.since) == (["pause", "resume"], None)


def test_a_pong_ends_only_waits_that_it_speaks_of() -> None:
    """Numbers above the one that it names were sent later, and may still be on their way."""
    client = Client()
    client.frame(1)
    client.inbox.pong(Pong(1, [1]), 0.0, 0.0)
    client.frame(3, SETTLE * 0.9)
    client.inbox.tick(SETTLE)
    assert client.ends == []
    client.frame(2, SETTLE * 1.5)
    assert (client.items, client.ends, client.inbox.gaps) == ([1, 2, 3], [], 0)
    client.frame(5, 2.0)
    client.inbox.pong(Pong(4, [1]), 2.0, 2.0 - SETTLE)
    client.inbox.tick(2.0)
    assert ([end and end.code for end in client.ends], client.inbox.early.since) == (["incomplete"], None)


def test_a_pong_waits_while_the_stream_is_held_up() -> None:
    """Frames of which it speaks are in that stream, and nobody reads it."""
    client, held = Client(), Held()
    client.inbox.link(0, held)
    for seq in range(2, 2 + ENOUGH):
        client.frame(seq, SETTLE)
    client.inbox.pong(Pong(2 + ENOUGH, [1]), 0.0, 0.0)
    client.inbox.tick(SETTLE * 1.5)
    client.frame(1, SETTLE * 1.6)
    client.inbox.tick(SETTLE * 1.7)
    client.frame(2 + ENOUGH, SETTLE * 1.8)
    client.inbox.tick(SETTLE * 3)
    assert (client.ends, len(client.items), held.calls) == ([], ENOUGH + 2, ["pause", "resume"])


def test_seconds_without_a_bus_do_not_count_and_no_more_than_those() -> None:
    """What came before waits as much longer; what came after a standstill of ours waits no longer than ever."""
    client = Client()
    client.frame(1)
    client.frame(3, 10.0)
    client.inbox.postpone(5.0, 15.0)
    client.inbox.tick(15.0 + SETTLE * 0.9)
    assert client.ends == []
    client.inbox.postpone(60.0, 15.0 + SETTLE)
    client.inbox.tick(15.0 + SETTLE * 2)
    assert len(client.ends) == 1


def test_a_heartbeat_after_the_overlap_does_not_lose_what_is_kept() -> None:
    """Only what is missing of the numbers up to its own is lost, and numbers never go backwards."""
    client, items, ends = Client(), [], []  # type: ignore[var-annotated]
    client.frame(1)
    client.inbox.unlink(0.0)
    client.frame(3, OVERLAP * 0.9)
    client.inbox.open(OpenStream(2, lambda data, _: items.append(data), ends.append), OVERLAP * 0.9)
    client.inbox.receive(StepFrame(1, 7, 4, [2], [Item(2, "a")]), OVERLAP * 0.95)
    client.beat(4, OVERLAP * 1.01)
    assert ([end and end.code for end in client.ends], items, ends) == (["incomplete"], ["a"], [])
    client.inbox.receive(StepFrame(1, 7, 5, [], [Item(2, "b")]), OVERLAP * 1.02)
    client.inbox.tick(OVERLAP * 2)
    assert (items, ends, client.inbox.repeats, client.inbox.gaps) == (["a", "b"], [], 0, 1)


def test_one_way_alone_has_gaps_at_once() -> None:
    """Without a direct stream, and some time after its end, nothing waits."""
    client = Client()
    client.frame(1)
    client.inbox.unlink(5.0)
    client.frame(3, 5.0 + OVERLAP)
    assert len(client.ends) == 1


def test_numbers_are_remembered_while_a_stream_is_there() -> None:
    """A client without open streams goes on where it was: its worker doesn't forget it either."""
    client = Client()
    client.frame(1)
    client.inbox.cancel(1, 0.0)
    assert client.inbox.idle
    client.inbox.open(OpenStream(2, lambda data, _: client.items.append(data), client.ends.append), 0.0)
    client.inbox.receive(StepFrame(1, 7, 3, [], [Item(2, "b")]), 0.0)
    client.inbox.receive(StepFrame(1, 7, 2, [2], [Item(2, "a")]), 0.0)
    assert client.items == [1, "a", "b"]


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(0, 40), st.integers(0, 5))
def test_any_interleaving_is_exact(seed: int, count: int, switch: int, sent: int) -> None:
    """Frames up to a number by the bus, the others directly, each way in order: all items, in order, no gap."""
    source = random.Random(seed)
    client = Client(sent)
    numbers = range(sent + 1, sent + count + 1)
    ways = [[n for n in numbers if n <= sent + switch], [n for n in numbers if n > sent + switch]]
    while any(ways):
        client.frame(source.choice([way for way in ways if way]).pop(0))
    assert client.items == list(numbers)
    assert (client.ends, client.inbox.gaps, client.inbox.early.since) == ([], 0, None)
