"""Thresholds and the queue in front of routing, without clock or workers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.frontend.routing.admission_policy import (
    NO_THRESHOLDS,
    Admission,
    Load,
    Queue,
    QueueEntry,
    Thresholds,
    Verdict,
    over,
)

HALF = Thresholds(active_decode_blocks_threshold=0.5)
FREE, FULL = Load(blocks=50, total_blocks=100), Load(blocks=51, total_blocks=100)
IDLE, SATURATED = Load(prefill_tokens=200, batched_tokens=100), Load(prefill_tokens=201, batched_tokens=100)


@pytest.mark.parametrize(
    ("thresholds", "load", "busy"),
    [
        (NO_THRESHOLDS, Load(10**9, 10**9, 1, 1), False),
        (HALF, FREE, False),
        (HALF, FULL, True),
        (HALF, Load(blocks=51), False),  # nobody knows of how many
        (Thresholds(active_decode_blocks_threshold=0.0), Load(blocks=1, total_blocks=100), True),
        (Thresholds(active_prefill_tokens_threshold=200), IDLE, False),
        (Thresholds(active_prefill_tokens_threshold=200), SATURATED, True),
        (Thresholds(active_prefill_tokens_threshold_frac=2.0), IDLE, False),
        (Thresholds(active_prefill_tokens_threshold_frac=2.0), SATURATED, True),
        (Thresholds(active_prefill_tokens_threshold_frac=2.0), Load(prefill_tokens=10**9), False),
        (Thresholds(active_decode_blocks_threshold=1.0, active_prefill_tokens_threshold=200), SATURATED, True),
    ],
)
def test_over_one_threshold_is_busy(thresholds: Thresholds, load: Load, busy: bool) -> None:
    """Each by itself is enough; at the threshold is not over it."""
    assert thresholds.busy(load) is busy


def test_limits_are_the_lowest_of_what_is_known() -> None:
    """Of two thresholds for one figure the stricter; none where the worker doesn't say how much it has."""
    both = Thresholds(active_prefill_tokens_threshold=300, active_prefill_tokens_threshold_frac=2.0)
    infinite = float("inf")
    assert [both.limits(0, tokens) for tokens in (100, 200, 0)] == [(infinite, 200), (infinite, 300), (infinite, 300)]
    assert [HALF.limits(blocks, 1) for blocks in (100, 0)] == [(50, infinite), (infinite, infinite)]
    assert NO_THRESHOLDS.limits(100, 100) == (infinite, infinite)


def admission(thresholds: Thresholds = NO_THRESHOLDS, queue: float | None = None) -> Admission[str]:
    return Admission(thresholds, queue, Queue(2))


def test_all_busy_is_refused_and_one_free_is_enough() -> None:
    """Without a queue."""
    decide = admission(HALF)
    assert [decide.ask(loads) for loads in ([FULL, FULL], [FULL, FREE], [])] == [
        Verdict.BUSY,
        Verdict.GO,
        Verdict.GO,
    ]


def test_all_saturated_waits_and_nobody_overtakes() -> None:
    """With a queue; who comes while somebody waits is behind them, whatever has become free."""
    decide = admission(queue=2.0)
    assert decide.ask([SATURATED, SATURATED]) is Verdict.WAIT
    assert decide.queue.enter("a", 0.0, 9.0) is not None
    assert decide.ask([SATURATED, IDLE]) is Verdict.WAIT
    assert (decide.room([SATURATED, IDLE]), decide.room([SATURATED]), decide.room([])) == (True, False, True)
    decide.queue.next()
    assert decide.ask([SATURATED, IDLE]) is Verdict.GO


def test_busy_workers_have_no_room_for_those_who_wait() -> None:
    """Both kinds of threshold: the one that isn't saturated is busy, so the request waits for the other."""
    both = admission(HALF, 2.0)
    saturated = SATURATED._replace(total_blocks=100)
    idle_but_full = Load(prefill_tokens=0, blocks=51, total_blocks=100, batched_tokens=100)
    assert both.ask([saturated, idle_but_full]) is Verdict.WAIT
    assert not both.room([saturated, idle_but_full])
    assert both.ask([idle_but_full]) is Verdict.BUSY


def order(policy: str, *who: tuple[str, float, dict[str, Any]]) -> list[str]:
    queue: Queue[str] = Queue(10, policy)
    for name, at, options in who:
        assert queue.enter(name, at, 99.0, **options)
    return [queue.next().owner for _ in range(len(queue))]


def test_orders() -> None:
    """Each policy's own; strict priority before all."""
    three = (("a", 1.0, {"tokens": 30}), ("b", 2.0, {"tokens": 10}), ("c", 3.0, {"tokens": 20}))
    assert [order(policy, *three) for policy in ("fcfs", "lcfs", "wspt")] == [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["b", "c", "a"],
    ]
    jump: Any = (("a", 1.0, {}), ("b", 2.0, {"priority": 5}), ("c", 3.0, {"strict_priority": 1}))
    assert order("fcfs", *jump) == ["c", "b", "a"]
    assert order("wspt", ("a", 1.0, {"tokens": 30, "priority": 9}), ("b", 2.0, {"tokens": 10})) == ["a", "b"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, 3), st.integers(0, 9)),
        st.tuples(st.just("leave"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("next"), st.just(0), st.just(0)),
        st.tuples(st.just("expire"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from(["fcfs", "lcfs", "wspt"]))
def test_the_queue_is_bounded_and_nobody_is_lost(steps: list[tuple[str, int, int]], policy: str) -> None:
    """Whatever happens: never over the limit, everybody leaves once, in time, and the sums are right."""
    queue: Queue[int] = Queue(5, policy)
    waiting: dict[int, QueueEntry[int]] = {}
    everybody: list[QueueEntry[int]] = []
    now = 0.0
    for what, number, tokens in steps:
        now += 1.0
        if what == "enter":
            place = queue.enter(len(everybody), now, now + 4, tokens=tokens, strict_priority=number)
            assert (place is None) == (len(waiting) == 5)
            if place is not None:
                waiting[place.owner] = place
                everybody.append(place)
        elif what == "leave" and everybody:
            place = everybody[number % len(everybody)]
            assert queue.leave(place) == (waiting.pop(place.owner, None) is not None)
        elif what == "next" and waiting:
            first = min(waiting.values(), key=lambda place: place.key)
            assert queue.next() is waiting.pop(first.owner)
        elif what == "expire":
            gone = {owner for owner, place in waiting.items() if place.deadline <= now}
            assert {place.owner for place in queue.expired(now)} == gone
            waiting = {owner: place for owner, place in waiting.items() if owner not in gone}
        assert len(queue) == len(waiting) <= 5
        assert queue.tokens == sum(place.tokens for place in waiting.values())
        assert queue.deadline == min((place.deadline for place in waiting.values()), default=float("inf"))


def test_a_fraction_of_what_nobody_published_is_never_exceeded() -> None:
    """A worker without the figure can't be over it."""
    assert not over(Load(prefill_tokens=10**9), 0.0)
