"""Events: which transitions are told, how often, and what the API server gets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.operator.apiserver import refusal
from tests.operator.pipelines import SMALLEST
from tests.operator.reconcile.test_reconciler import Bench, on, run

from dynamo.operator.reconcile.status_writer import (
    MESSAGE_LIMIT,
    QUIET_SECONDS,
    REMEMBERED,
    EventContent,
    EventRateLimit,
    event_of,
    transition_event,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
PIPELINE = {"metadata": {"namespace": "serving", "name": "llama", "uid": "u", "resourceVersion": "7"}}


def ready(status: str, reason: str, message: str = "words") -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": status, "reason": reason, "message": message}]}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, ready("False", "Starting"), None),
        ({}, ready("Unknown", "Pending"), None),
        ({}, ready("False", "InvalidSpec"), EventContent("InvalidSpec", "words", False)),
        (ready("False", "Starting"), ready("False", "Starting", "other words"), None),
        (ready("False", "Starting"), ready("False", "LoadingModel"), None),
        (ready("Unknown", "Pending"), ready("False", "Starting"), None),
        (ready("True", "Serving"), ready("False", "Starting"), EventContent("Starting", "words", True)),
        (ready("False", "Starting"), ready("True", "Serving"), EventContent("Serving", "words", True)),
        (ready("True", "Serving"), ready("True", "Serving"), None),
        (ready("True", "Serving"), ready("False", "RollingOut"), EventContent("RollingOut", "words", True)),
        (
            ready("False", "Starting"),
            ready("False", "CrashLoopBackOff"),
            EventContent("CrashLoopBackOff", "words", False),
        ),
        (ready("False", "CrashLoopBackOff"), ready("True", "Serving"), EventContent("Serving", "words", True)),
        (ready("True", "Serving"), {}, None),
    ],
)
def test_only_a_transition_is_told(
    before: dict[str, Any], after: dict[str, Any], expected: EventContent | None
) -> None:
    """The same state again, in whatever words, is none; the beginning of a new pipeline is no news."""
    assert transition_event(before, after) == expected


def test_who_goes_to_and_fro_is_quiet() -> None:
    """Each reason once in five minutes, however often it comes; other reasons and pipelines aren't held up."""
    quiet = EventRateLimit()
    spoken = [quiet.allows("u", ("Up", "Down")[i % 2], NOW + timedelta(seconds=i)) for i in range(600)]
    assert sum(spoken) == 4
    assert quiet.allows("u", "Third", NOW)
    assert quiet.allows("v", "Up", NOW)
    assert not quiet.allows("v", "Up", NOW + timedelta(seconds=QUIET_SECONDS - 1))
    assert quiet.allows("v", "Up", NOW + timedelta(seconds=QUIET_SECONDS))


def test_what_was_said_is_remembered_within_bounds() -> None:
    """The oldest go first."""
    quiet = EventRateLimit()
    for i in range(REMEMBERED + 1):
        assert quiet.allows(str(i), "Up", NOW)
    assert not quiet.allows(str(REMEMBERED), "Up", NOW)
    assert quiet.allows("0", "Up", NOW)


def test_an_event_is_about_the_pipeline_and_short_enough() -> None:
    """`kubectl describe` finds it by the uid; sent twice it has the same name."""
    found = event_of(EventContent("CrashLoopBackOff", "x" * 2000, False), PIPELINE, NOW, "pod-1")
    assert found["involvedObject"] == {
        "apiVersion": "dynamo.dev/v1alpha1", "kind": "DynamoPipeline", "namespace": "serving", "name": "llama",
        "uid": "u", "resourceVersion": "7",
    }  # fmt: skip
    assert (found["type"], found["reason"], len(found["message"])) == ("Warning", "CrashLoopBackOff", MESSAGE_LIMIT)
    assert found == event_of(EventContent("CrashLoopBackOff", "x" * 2000, False), PIPELINE, NOW, "pod-1")
    other = event_of(EventContent("CrashLoopBackOff", "y", False), PIPELINE, NOW, "pod-1")
    assert other["metadata"]["name"] != found["metadata"]["name"]


def test_one_event_from_apply_to_serving_and_none_after() -> None:
    """Whatever happens in between, and over all resyncs."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        for _ in range(10):
            await bench.reconcile()
        assert [(e["reason"], e["type"]) for e in bench.server.events] == [("Serving", "Normal")]
        assert bench.server.events[0]["message"] == bench.condition("Ready")["message"]  # type: ignore[index]

    run(case, SMALLEST)


def test_an_event_that_is_refused_stops_nothing() -> None:
    """The status says the same."""

    async def case(bench: Bench) -> None:
        bench.server.fault = on("POST", "/events", lambda: refusal(403, "no events for you"))
        await bench.settle()
        found = bench.condition("Ready")
        assert found is not None
        assert found["status"] == "True"
        assert bench.server.events == []

    run(case, SMALLEST)
