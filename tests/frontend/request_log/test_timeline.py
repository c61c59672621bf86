"""What is kept of requests, and how it becomes stages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynamo.frontend.request_log.log import (
    KEPT_SECONDS,
    MOST_EVENTS,
    Event,
    Failure,
    Placement,
    RequestLog,
    RequestRecord,
    Wait,
    add_failure,
)
from dynamo.frontend.request_log.timeline import explain


def record(request_id: str = "r", began: float = 100.0, ended: float = 101.0, **more: object) -> RequestRecord:
    fields = {
        "endpoint": "chat_completions", "model": "m", "kind": "stream", "status": 200, "error": "",
        "tokenized": 0.0, "ready": 0.0, "first_token": 0.0, **more,
    }  # fmt: skip
    return RequestRecord(id=request_id, began=began, ended=ended, **fields)  # type: ignore[arg-type]


def test_the_stages_of_a_stream_that_moved() -> None:
    """A prefill elsewhere, a first token, a worker that was lost, another one that goes on."""
    events: tuple[Event, ...] = (
        Placement(100.003, 1, prefill=True), Placement(100.1, 2, False, 3, 5, 1.25), Failure(100.5, "lost"),
        Placement(100.6, 3),
    )  # fmt: skip
    explanation = explain(
        record(tokenized=100.001, ready=100.002, first_token=100.2, output_tokens=5, prompt_tokens=80, events=events),
        2.5, 1e9,
    )  # fmt: skip
    assert explanation.received == 1e9 - 2.5
    assert [(stage.name, stage.begins_ms) for stage in explanation.stages] == [
        ("receive", 0.0), ("tokenize", 1.0), ("route", 2.0), ("remote prefill", 3.0), ("prefill", 100.0),
        ("generate", 200.0), ("retry", 500.0), ("generate", 600.0),
    ]  # fmt: skip
    assert explanation.ttft_ms == 200.0
    assert "3 of 5 blocks cached, cost 1.250" in explanation.stages[4].what
    assert explanation.stages[6].what == "lost"
    assert "00000000000003" in explanation.stages[7].what


def test_waits_are_stages_of_their_own() -> None:
    """For a worker of the model, and for one with room; the choice is what is left, with the costs of others."""
    placement = Placement(100.8, 1, False, 0, 2, 3.0, ((2, 4.5), (3, 5.0)))
    events: tuple[Event, ...] = (Wait(100.1, 100.4, "none"), placement)
    explanation = explain(record(ready=100.5, tokenized=100.45, admitted=100.7, events=events), 1, 9)
    assert [(stage.name, round(stage.took_ms)) for stage in explanation.stages] == [
        ("receive", 100), ("wait", 300), ("receive", 50), ("tokenize", 50), ("queue", 200), ("route", 100),
        ("prefill", 200),
    ]  # fmt: skip
    assert [(other.worker[-1], other.cost) for other in explanation.stages[-1].others] == [("2", 4.5), ("3", 5.0)]
    refused = explain(record(ready=100.5, status=503, error="queue_timeout"), 1, 9).stages
    assert [stage.name for stage in refused] == ["receive", "queue"]


def test_choices_that_begin_at_once_are_one_stage() -> None:
    """Each worker is named once."""
    events = tuple(Placement(100.5 + n / 1000, n % 2) for n in range(8))
    stages = explain(record(ready=100.4, events=events), 1, 9).stages
    assert [stage.name for stage in stages] == ["receive", "route", "prefill"]
    assert stages[-1].what == "worker 00000000000000, 00000000000001"


TIMES = st.one_of(st.just(0.0), st.floats(100.0, 101.0))


@given(
    TIMES, TIMES, TIMES,
    st.lists(st.one_of(
        st.builds(Placement, st.floats(100, 101), st.integers(0, 9), st.booleans()),
        st.builds(Wait, st.floats(100, 100.5), st.floats(100.5, 101), st.just("w")),
        st.builds(Failure, st.floats(100, 101), st.text(max_size=5)),
    ), max_size=9),
)  # fmt: skip
def test_stages_add_up_to_the_whole(tokenized: float, ready: float, first: float, events: list[Event]) -> None:
    """Whatever happened in whichever order: no time is missing, and none counts twice."""
    explanation = explain(record(tokenized=tokenized, ready=ready, first_token=first, events=tuple(events)), 1, 9)
    assert abs(sum(stage.took_ms for stage in explanation.stages) - explanation.took_ms) < 0.05
    assert all(stage.took_ms >= 0 for stage in explanation.stages)


def test_what_is_kept_is_bounded() -> None:
    """By number, by age, and by what one request may have."""
    log = RequestLog(3)
    for n in range(5):
        log.add(record(f"r{n}", ended=100.0 + n))
    assert [log.find(f"r{n}", 105.0) is not None for n in range(5)] == [False, False, True, True, True]
    assert log.find("r4", 104.0 + KEPT_SECONDS) is not None
    assert log.find("r3", 104.0 + KEPT_SECONDS) is None
    events: list[Event] = []
    for _ in range(2 * MOST_EVENTS):
        add_failure(events, 1.0, "x" * 10_000)
    assert len(events) == MOST_EVENTS
    assert max(len(event.reason) for event in events if isinstance(event, Failure)) < 200


def test_an_id_that_a_client_uses_twice() -> None:
    """The latest is meant."""
    log = RequestLog(10)
    for status in (200, 503):
        log.add(record(status=status))
    found = log.find("r", 101.0)
    assert found is not None
    assert found.status == 503
