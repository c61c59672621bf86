"""One worker in one client's sight: a table of losses, repeats and silences, then all of them at random."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.runtime.errors import DynamoException
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.request_plane import inbox
from dynamo.runtime.request_plane.call import OpenStream
from dynamo.runtime.request_plane.inbox import Inbox
from dynamo.runtime.request_plane.wire import DONE, FAILED, Item, Pong, StepFrame
from dynamo.runtime.transport.bus import Verdict

KEY = InstanceKey(EndpointPath("n", "c", "e"), 7)


class Stream:
    """An open stream with what it got."""

    def __init__(self, number: int) -> None:
        self.items: list[Any] = []
        self.ends: list[DynamoException | None] = []
        self.open = OpenStream(number, lambda data, _: self.items.append(data), self.ends.append)

    @property
    def codes(self) -> list[str | None]:
        return [None if end is None else end.code for end in self.ends]


class Client:
    """An inbox with some streams opened at time 0."""

    def __init__(self, *numbers: int) -> None:
        self.inbox = Inbox(KEY, 0.0)
        self.streams = {number: Stream(number) for number in numbers}
        for stream in self.streams.values():
            self.inbox.open(stream.open, 0.0)

    def frame(self, seq: int, *items: tuple[Any, ...], accepted: list[int] | None = None, now: float = 0.0) -> None:
        self.inbox.receive(StepFrame(1, 7, seq, accepted or [], [Item(*item) for item in items]), now)

    def verdict(self) -> Verdict:
        return self.inbox.verdict

    def beat(self, seq: int, now: float = 0.0) -> None:
        self.inbox.receive(StepFrame(1, 7, seq, [], [], True), now)

    def tick_until(self, end: float, start: float = 0.0, *, answer: Any = None) -> list[float]:
        """Tick every 100 ms; the times at which a ping was wanted."""
        pings, now = [], start
        while now < end - 1e-9:
            now = round(now + 0.1, 6)
            if self.inbox.tick(now):
                pings.append(round(now, 3))
                self.inbox.pinged(now)
                if answer is not None:
                    answer(now)
        return pings


def test_items_in_order_then_the_end() -> None:
    """The plain case: acceptance, items, a last item with the end."""
    client = Client(1)
    client.frame(5, (1, "a"), accepted=[1])
    client.frame(6, (1, "b"))
    client.frame(7, (1, "c", DONE))
    assert client.streams[1].items == ["a", "b", "c"]
    assert client.streams[1].codes == [None]
    assert client.inbox.idle


@pytest.mark.parametrize("first", [1, 1000])
def test_the_first_frame_sets_the_number(first: int) -> None:
    """A client doesn't know how far a worker's numbers are; whatever comes first counts."""
    client = Client(1)
    client.frame(first, (1, "a"), accepted=[1])
    client.frame(first + 1, (1, None, DONE))
    assert (client.streams[1].items, client.streams[1].codes) == (["a"], [None])


def test_without_streams_the_number_is_forgotten() -> None:
    """A worker forgets a client that was idle for long and begins at 1 again; the client can't know."""
    client = Client(1)
    client.frame(50, (1, None, DONE), accepted=[1])
    client.streams[2] = Stream(2)
    client.inbox.open(client.streams[2].open, 1000.0)
    client.frame(1, (2, "a", DONE), accepted=[2], now=1000.0)
    assert (client.streams[2].items, client.streams[2].codes) == (["a"], [None])


def test_a_gap_fails_what_was_accepted() -> None:
    """Streams accepted before the gap are incomplete, and cancelled; a pending one may still be whole."""
    client = Client(1, 2, 3)
    client.frame(1, (1, "a"), accepted=[1, 2])
    client.frame(3, (1, "c"), (3, "x"), accepted=[3])
    assert client.streams[1].items == ["a"]
    assert client.streams[1].codes == client.streams[2].codes == ["incomplete"]
    assert client.inbox.to_cancel == [1, 2]
    assert client.streams[3].items == ["x"]
    assert client.inbox.gaps == 1


def test_a_heartbeat_shows_that_the_last_frame_was_lost() -> None:
    """The heartbeat repeats the last number, so a loss shows although nothing new is sent."""
    client = Client(1)
    client.frame(1, (1, "a"), accepted=[1])
    client.beat(1)
    assert client.streams[1].codes == []
    client.beat(2)
    assert client.streams[1].codes == ["incomplete"]


def test_repeats_are_ignored() -> None:
    """A frame that came before changes nothing."""
    client = Client(1)
    client.frame(1, (1, "a"), accepted=[1])
    client.frame(2, (1, "b"))
    client.frame(1, (1, "a"), accepted=[1])
    client.frame(2, (1, "b"))
    client.frame(3, (1, "c", DONE))
    assert client.streams[1].items == ["a", "b", "c"]
    assert client.inbox.repeats == 2


def test_reordering_is_a_gap() -> None:
    """The later frame comes first: the stream fails once, never with wrong text."""
    client = Client(1)
    client.frame(1, (1, "a"), accepted=[1])
    client.frame(3, (1, "c", DONE))
    client.frame(2, (1, "b"))
    assert (client.streams[1].items, client.streams[1].codes) == (["a"], ["incomplete"])


def test_items_before_the_acceptance_mean_that_it_was_lost() -> None:
    """Acceptance comes first or with the first item; otherwise the beginning is missing."""
    client = Client(1)
    client.frame(9, (1, "b"))
    assert (client.streams[1].items, client.streams[1].codes) == ([], ["incomplete"])
    assert client.inbox.to_cancel == [1]


def test_failures_keep_their_code() -> None:
    """A failed stream ends with the worker's error; one that can't be read is an engine error."""
    client = Client(1, 2)
    client.frame(1, (1, ["full", "no room"], FAILED), (2, 17, FAILED), accepted=[1, 2])
    assert client.streams[1].codes == ["full"]
    assert client.streams[2].codes == ["engine_error"]


def test_another_version_fails_everything() -> None:
    """A worker of another protocol version is not guessed at."""
    client = Client(1)
    client.inbox.receive(StepFrame(2, 7, 1, [1], []), 0.0)
    assert client.streams[1].codes == ["version"]


def test_cancel_is_repeated_now_and_then() -> None:
    """Items of a stream that was given up repeat the cancel, at most every 100 ms."""
    client = Client(1, 2)
    client.frame(1, accepted=[1, 2])
    assert client.inbox.cancel(1, 0.0)
    assert not client.inbox.cancel(1, 0.0)
    assert client.inbox.to_cancel == [1]
    client.inbox.to_cancel.clear()
    for seq, now in ((2, 0.01), (3, 0.05), (4, 0.11), (5, 0.15)):
        client.frame(seq, (1, "x"), now=now)
    assert client.inbox.to_cancel == [1]
    assert client.streams[1].ends == []
    client.frame(6, (1, None, DONE), now=0.2)
    assert client.inbox.to_cancel == [1]


def test_a_reader_that_fails_ends_alone() -> None:
    """An exception in one consumer's callback ends that stream; the frame's other items arrive."""
    client = Client(1, 2)

    def explode(data: Any, last: bool) -> None:
        raise KeyError("bug")

    client.streams[1].open.on_item = explode
    client.frame(1, (1, "a"), (2, "b"), accepted=[1, 2])
    assert client.streams[1].codes == ["engine_error"]
    assert client.streams[2].items == ["b"]


def test_two_missed_heartbeats_are_a_ping_and_a_pong_is_slow() -> None:
    """Silence with open streams leads to a ping; an answer means slow, not dead."""
    client = Client(1)
    client.frame(1, accepted=[1])
    pings = client.tick_until(2.0, answer=lambda now: client.inbox.pong(Pong(1, [1]), now, now))
    assert pings == [0.5, 1.0, 1.5, 2.0]
    assert client.verdict() is Verdict.ALIVE
    assert client.streams[1].ends == []


def test_nobody_listening_is_dead_now() -> None:
    """No responders to a ping: accepted streams are lost, pending ones unreachable, at once."""
    client = Client(1, 2)
    client.frame(1, accepted=[1])
    client.tick_until(0.5, answer=lambda now: client.inbox.no_responders(now, grace=False))
    assert client.streams[1].codes == ["worker_lost"]
    assert client.streams[2].codes == ["unreachable"]
    assert client.verdict() is Verdict.DEAD


def test_a_worker_that_dies_with_what_it_had_not_accepted() -> None:
    """What was sent before the question is lost with it; what was sent after it, or not at all, reached nobody."""
    client = Client(1, 2, 3)
    client.frame(1, accepted=[1])
    sent, later, unsent = (client.streams[number] for number in (1, 2, 3))
    for number in (2, 3):
        client.inbox.pending[number].since = 0.1 * number
    client.inbox.pending[2].sent = True
    pending = Stream(4)
    client.streams[4] = pending
    client.inbox.open(pending.open, 0.5)
    pending.open.sent = True
    client.inbox.no_responders(0.6, grace=False, asked=0.4)
    assert (sent.codes, later.codes) == (["worker_lost"], ["worker_lost"])
    assert (unsent.codes, pending.codes) == (["unreachable"], ["unreachable"])


def test_silence_is_suspect_then_dead_after_five_seconds() -> None:
    """Unanswered pings: suspect after one, dead after five seconds of suspicion."""
    client = Client(1)
    client.frame(1, accepted=[1])
    client.tick_until(1.6)
    assert client.verdict() is Verdict.SILENT
    assert client.streams[1].ends == []
    client.tick_until(7.0, start=1.6)
    assert client.verdict() is Verdict.DEAD
    assert client.streams[1].codes == ["worker_lost"]


def test_a_frame_ends_suspicion() -> None:
    """A suspected worker that speaks is alive again."""
    client = Client(1)
    client.frame(1, accepted=[1])
    client.tick_until(1.6)
    client.beat(1, now=1.7)
    assert client.verdict() is Verdict.ALIVE
    assert client.streams[1].ends == []


def test_in_the_grace_after_a_reconnect_no_responders_is_no_death() -> None:
    """Everybody is reconnecting: ask again, die only of lasting silence."""
    client = Client(1)
    client.frame(1, accepted=[1])
    client.tick_until(3.0, answer=lambda now: client.inbox.no_responders(now, grace=True))
    assert client.verdict() is Verdict.SILENT
    assert client.streams[1].ends == []


def test_a_worker_that_left_in_an_outage_died_of_nothing_that_was_open() -> None:
    """Of what was sent afterwards it may have died, also where that had waited for the bus."""
    client = Client(1, 2)
    client.frame(1, accepted=[1])
    client.inbox.reconnected(2)
    client.streams[2].open.sent = True
    later = client.streams[3] = Stream(3)
    client.inbox.open(later.open, 0.2)
    later.open.sent = True
    client.inbox.no_responders(6.0, grace=False, asked=5.9)
    assert client.streams[1].codes == ["incomplete"]
    assert (client.streams[2].codes, later.codes) == (["worker_lost"], ["worker_lost"])


@pytest.mark.parametrize("heard", ["frame", "pong"])
def test_a_worker_that_outlived_an_outage_may_die_of_what_was_open(heard: str) -> None:
    """It was heard afterwards, so it did not leave meanwhile."""
    client = Client(1)
    client.frame(1, accepted=[1])
    client.inbox.reconnected(1)
    if heard == "frame":
        client.beat(1, now=0.3)
    else:
        client.inbox.alive(0.3)
    client.inbox.no_responders(6.0, grace=False, asked=5.9)
    assert client.streams[1].codes == ["worker_lost"]


def test_unaccepted_requests_are_asked_about_after_a_second() -> None:
    """No acceptance: ping; a pong that doesn't know the request ends it retryably."""
    client = Client(1)
    pings = client.tick_until(1.0, answer=lambda now: client.inbox.pong(Pong(0, []), now, now))
    assert pings == [1.0]
    assert client.streams[1].ends == []
    client.tick_until(1.4, start=1.0)
    assert client.streams[1].codes == ["timeout"]


def test_large_requests_get_longer() -> None:
    """The time limit for acceptance is the stream's own."""
    client = Client()
    slow = Stream(1)
    slow.open.limit = 3.0
    client.inbox.open(slow.open, 0.0)
    assert client.tick_until(2.9) == []
    assert client.tick_until(3.2, start=2.9) != []


def test_unaccepted_requests_leave_a_suspect_before_it_counts_as_dead() -> None:
    """Two seconds of suspicion are enough to try elsewhere what nobody accepted."""
    client = Client(1)
    client.tick_until(2.9)
    assert client.streams[1].ends == []
    client.tick_until(3.2, start=2.9)
    assert client.streams[1].codes == ["timeout"]


def test_a_pong_shows_that_the_last_frame_of_all_was_lost() -> None:
    """The worker finished and fell silent; its pong names a number that never came."""
    client = Client(1)
    client.frame(1, (1, "a"), accepted=[1])
    client.tick_until(1.0, answer=lambda now: client.inbox.pong(Pong(2, []), now, now))
    assert client.streams[1].codes == ["incomplete"]


def test_a_pong_that_overtakes_frames_does_no_harm() -> None:
    """Frames may come a little after the pong that speaks of them."""
    client = Client(1)
    client.frame(1, (1, "a"), accepted=[1])
    client.inbox.pinged(0.5)
    client.inbox.pong(Pong(2, []), 0.5, 0.5)
    client.frame(2, (1, None, DONE), now=0.6)
    client.tick_until(2.0, start=0.6)
    assert client.streams[1].codes == [None]


def test_a_worker_that_forgot_a_stream_is_noticed() -> None:
    """The numbers fit, but the worker doesn't know the stream: it will never end by itself."""
    client = Client(1)
    client.frame(1, (1, "a"), accepted=[1])
    client.tick_until(1.0, answer=lambda now: client.inbox.pong(Pong(1, []), now, now))
    assert client.streams[1].codes == ["incomplete"]


def test_time_in_which_we_were_held_up_does_not_count() -> None:
    """A stalled loop of our own must not look like a dead worker."""
    client = Client(1)
    client.frame(1, accepted=[1])
    client.inbox.postpone(10.0, 10.0)
    assert client.tick_until(10.4, start=10.0) == []
    assert client.streams[1].ends == []


def test_a_dead_worker_is_asked_for_a_while_and_then_forgotten() -> None:
    """So that it is found when it answers again; after a minute there is nothing left to learn."""
    client = Client(1)
    client.frame(1, accepted=[1])
    client.tick_until(0.6, answer=lambda now: client.inbox.no_responders(now, grace=False))
    pings = client.tick_until(20.0, start=0.6, answer=lambda now: client.inbox.no_responders(now, grace=False))
    assert 15 <= len(pings) <= 20
    assert not client.inbox.forgettable(20.0)
    assert client.inbox.forgettable(61.0)
    client.inbox.pong(Pong(0, []), 30.0, 30.0)
    assert client.verdict() is Verdict.ALIVE


def test_a_dead_worker_that_takes_a_request_is_alive() -> None:
    """Frames under way when it died revive nobody; accepting what was sent afterwards does."""
    client = Client(1)
    client.frame(1, accepted=[1])
    client.inbox.no_responders(1.0, grace=False)
    client.frame(2, (1, "late"), now=1.1)
    assert client.verdict() is Verdict.DEAD
    client.streams[2] = Stream(2)
    client.inbox.open(client.streams[2].open, 2.0)
    client.frame(3, (2, "a", DONE), accepted=[2], now=2.1)
    assert client.verdict() is Verdict.ALIVE
    assert client.streams[2].codes == [None]


def test_constants_fit_together() -> None:
    """A kill shows within a second, within two where the bus is slow; a pong must settle before the next one."""
    assert inbox.MISSED + 0.2 < 1.0, "a missing heartbeat, a tick, and the bus says that nobody listens"
    assert inbox.MISSED + 0.2 + inbox.PING_TIMEOUT < 2.0
    assert inbox.SETTLE < inbox.MISSED
