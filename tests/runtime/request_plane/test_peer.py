"""The worker's frames: numbered, batched, cut, and repeated as heartbeats."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.request_plane.peer import MOST_ITEMS, TICK, Outbox
from dynamo.runtime.request_plane.wire import FAILED, HEARTBEAT, StepFrame, decode_frame

LIMIT = 1 << 20


def frames(outbox: Outbox, now: float = 0.0, limit: int = LIMIT) -> list[StepFrame]:
    return [decode_frame(frame) for frame in outbox.take(now, limit)]


def contents(found: list[StepFrame]) -> list[tuple[int, Any, int]]:
    return [(item.stream, item.data, item.end) for frame in found for item in frame.items]


def test_one_step_is_one_frame() -> None:
    """All acceptances and items of a step leave together, under the next number."""
    outbox = Outbox(7, 0.0)
    outbox.accept(1)
    outbox.accept(2)
    outbox.items.extend([(1, "a"), (2, "b"), (1, None, 1)])
    (frame,) = frames(outbox)
    assert (frame.version, frame.worker, frame.seq, frame.accepted) == (1, 7, 1, [1, 2])
    assert contents([frame]) == [(1, "a", 0), (2, "b", 0), (1, None, 1)]
    assert frames(outbox) == []
    outbox.items.append((2, "c"))
    assert [frame.seq for frame in frames(outbox)] == [2]


def test_heartbeats_repeat_the_last_number() -> None:
    """While streams are open there is a frame every 250 ms; with none there is silence."""
    outbox = Outbox(7, 0.0)
    assert outbox.heartbeat(100.0) is None
    outbox.accept(1)
    frames(outbox, 0.0)
    beats, now = [], 0.0
    while now < 2.0:
        now += TICK
        if beat := outbox.heartbeat(now):
            beats.append((now, decode_frame(beat)))
    assert all(beat.heartbeat and beat.seq == 1 and not beat.items for _, beat in beats)
    times = [0.0, *(at for at, _ in beats), 2.0]
    assert max(b - a for a, b in itertools.pairwise(times)) <= HEARTBEAT
    outbox.streams.discard(1)
    assert outbox.heartbeat(50.0) is None


def test_cancelled_streams_leave_nothing_behind() -> None:
    """What a cancelled stream still had is not sent; the list object stays, since senders hold it."""
    outbox = Outbox(7, 0.0)
    held = outbox.items
    outbox.items.extend([(1, "a"), (2, "b"), (1, "c")])
    outbox.discard(1)
    assert contents(frames(outbox)) == [(2, "b", 0)]
    assert outbox.items is held


items = st.lists(st.tuples(st.integers(0, 2**53), st.text(max_size=120)), max_size=300)


@given(items, st.lists(st.integers(0, 2**53), max_size=200), st.integers(1024, 4096))
def test_large_steps_are_cut(sent: list[tuple[int, str]], accepted: list[int], limit: int) -> None:
    """Every frame fits, numbers are consecutive, nothing is lost or reordered, acceptances come first."""
    outbox = Outbox(2**53 - 1, 0.0)
    for stream in accepted:
        outbox.accept(stream)
    outbox.items.extend(sent)
    raw = outbox.take(0.0, limit)
    assert all(len(frame) <= limit for frame in raw)
    found = [decode_frame(frame) for frame in raw]
    assert [frame.seq for frame in found] == list(range(1, len(found) + 1))
    assert [(s, d) for s, d, _ in contents(found)] == sent
    assert [stream for frame in found for stream in frame.accepted] == accepted
    with_items = [index for index, frame in enumerate(found) if frame.items]
    assert all(not frame.accepted for frame in found[(with_items or [0])[0] + 1 :] if with_items)


@pytest.mark.parametrize("odd", [None, object()])
def test_frames_have_few_items(odd: object) -> None:
    """A client handles a frame as a whole, so none takes it long; also where one item of a step can't be sent."""
    outbox, count = Outbox(7, 0.0), 2 * MOST_ITEMS + 3
    for stream in range(count):
        outbox.accept(stream)
    outbox.items.extend((stream, "a" if stream or odd is None else odd) for stream in range(count))
    sent = frames(outbox)
    assert [len(frame.items) for frame in sent] == [MOST_ITEMS, MOST_ITEMS, 3]
    assert [frame.accepted for frame in sent] == [list(range(count)), [], []]
    assert [frame.seq for frame in sent] == [1, 2, 3]
    assert [stream for stream, _, _ in contents(sent)] == list(range(count))
    assert outbox.failed == ([] if odd is None else [0])
    outbox.items.append((1, "b"))
    assert [frame.seq for frame in frames(outbox)] == [4]


def test_an_item_over_the_limit_fails_its_stream_alone() -> None:
    """It becomes the end of its stream; the others' items go out."""
    outbox = Outbox(7, 0.0)
    outbox.items.extend([(1, "x" * 5000), (2, "fine"), (1, "late")])
    found = contents(frames(outbox, limit=1024))
    assert found[0][0::2] == (1, FAILED)
    assert found[0][1][0] == "engine_error"
    assert "over the bus's limit" in found[0][1][1]
    assert found[1:] == [(2, "fine", 0)]
    assert outbox.failed == [1]


def test_an_item_that_cannot_be_sent_fails_its_stream_alone() -> None:
    """An engine may yield anything; only its own stream ends."""
    nested: list[Any] = []
    nested.append(nested)
    for bad in (object(), 2**70, "\ud800", nested):
        outbox = Outbox(7, 0.0)
        outbox.items.extend([(2, "fine"), (1, bad), (1, "late")])
        found = contents(frames(outbox))
        assert found[0] == (2, "fine", 0)
        assert found[1][0::2] == (1, FAILED)
        assert len(found) == 2
        assert outbox.failed == [1]
