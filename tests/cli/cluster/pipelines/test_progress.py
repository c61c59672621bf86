"""What a status says of this generation, and how a wait follows it."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.cli.cluster.errors import ClusterError, RefusedError
from dynamo.cli.cluster.pipelines.follow import Tracker, follow
from dynamo.cli.cluster.pipelines.progress import Part, PipelinePhase, PipelineProgress, failure, phase_of, progress
from dynamo.cli.local.display import Row
from dynamo.cli.local.log_files import Severity
from dynamo.cli.local.process_lifecycle import State


def pipeline(
    generation: int = 2, observed: int = 2, conditions: dict[str, str] | None = None, **status: Any
) -> dict[str, Any]:
    results = [
        {"type": kind, "status": value, "reason": "Why", "message": "because", "observedGeneration": observed}
        for kind, value in (conditions or {}).items()
    ]
    return {
        "metadata": {"name": "llama", "namespace": "serving", "generation": generation},
        "status": {"observedGeneration": observed, "conditions": results, **status},
    }


def pod(name: str, component: str, reason: str = "", *, ready: bool = False) -> dict[str, Any]:
    status: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True"}]} if ready else {}
    if reason:
        status = {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "no such image"}}}]}
    return {"metadata": {"name": name, "labels": {"dynamo.dev/component": component}}, "status": status}


@pytest.mark.parametrize(
    ("live", "phase"),
    [
        (pipeline(conditions={"Ready": "True"}), PipelinePhase.READY),
        (pipeline(observed=1, conditions={"Ready": "True"}), PipelinePhase.UNSEEN),
        (pipeline(conditions={}), PipelinePhase.UNSEEN),
        (pipeline(conditions={"Ready": "False"}), PipelinePhase.WAITING),
        (pipeline(conditions={"Ready": "Unknown"}), PipelinePhase.WAITING),
        (pipeline(conditions={"Ready": "False", "Stalled": "True"}), PipelinePhase.STALLED),
        (pipeline(conditions={"Ready": "False", "Stalled": "False"}), PipelinePhase.WAITING),
        ({"metadata": {"name": "x", "generation": 1}}, PipelinePhase.UNSEEN),
        ({"metadata": {"name": "x", "deletionTimestamp": "now"}}, PipelinePhase.DELETED),
    ],
)
def test_only_this_generation_counts(live: dict[str, Any], phase: PipelinePhase) -> None:
    """Ready of the spec before says nothing."""
    assert phase_of(live) is phase


def test_a_condition_that_lags_behind_its_status_doesn_t_count() -> None:
    """observedGeneration stands at both."""
    live = pipeline(conditions={"Ready": "True"})
    live["status"]["conditions"][0]["observedGeneration"] = 1
    assert phase_of(live) is PipelinePhase.UNSEEN


def test_parts_say_how_many_and_why_not_more() -> None:
    """The frontends from their condition, the workers from their counts, the reason from a pod."""
    components = [
        {"name": "prefill", "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2},
        {"name": "decode", "replicas": 2, "updatedReplicas": 0, "readyReplicas": 1, "availableReplicas": 1},
        {"name": "roll", "replicas": 2, "updatedReplicas": 1, "readyReplicas": 2, "availableReplicas": 2},
    ]
    live = pipeline(conditions={"Ready": "False", "FrontendReady": "True"}, components=components)
    state = progress(live, [pod("p-1", "decode", "ImagePullBackOff"), pod("p-0", "decode", ready=True)])
    assert state.parts == (
        Part("frontend", True, "because"),
        Part("prefill", True, "2 of 2 ready"),
        Part("decode", False, "1 of 2 ready; pod p-1 ImagePullBackOff: no such image"),
        Part("roll", False, "1 of 2 of the new revision ready"),
    )
    assert state.workers == (5, 6)


def test_an_unseen_generation_shows_no_old_parts() -> None:
    """They would be of the spec before."""
    state = progress(pipeline(observed=1, conditions={"FrontendReady": "True"}, components=[{"name": "a"}]))
    assert (state.parts, state.reason) == ((), "")


@pytest.mark.parametrize(
    ("phase", "part"),
    [
        (PipelinePhase.STALLED, "serving/llama will not become ready: Why: because"),
        (PipelinePhase.WAITING, "serving/llama isn't ready after 9 s: Why: because"),
        (PipelinePhase.UNSEEN, "no operator has looked at it for 9 s"),
        (PipelinePhase.DELETED, "was deleted while this waited"),
    ],
)
def test_failures_are_sentences(phase: PipelinePhase, part: str) -> None:
    """With the reason's own words."""
    assert part in failure(PipelineProgress("llama", "serving", phase, "Why", "because"), 9.0)


class Recorder:
    """A display that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.moving: list[list[str]] = []

    def parts(self, rows: Any) -> None:
        self.moving.append([f"{row.label} {row.doing}" for row in rows])

    def changed(self, row: Row) -> None:
        self.said.append(f"{row.label} {row.state} {row.seconds:.0f} {row.note}")

    def log(self, label: str, text: str, severity: Severity) -> None:
        raise AssertionError(text)

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        """Nothing."""


class Time:
    """Goes on only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def seen(phase: PipelinePhase, *parts: Part, name: str = "llama") -> PipelineProgress:
    return PipelineProgress(name, "serving", phase, "Why", "because", parts)


def run(looks: list[Any], seconds: float = 10.0) -> tuple[list[PipelineProgress], Recorder, float]:
    """Each look in turn, the last one again and again; an exception is raised."""
    display, clock, rest = Recorder(), Time(), list(looks)

    def look() -> list[PipelineProgress]:
        state = rest.pop(0) if len(rest) > 1 else rest[0]
        if isinstance(state, Exception):
            raise state
        return list(state)

    result = follow(look, display, seconds, clock=clock, sleep=clock.sleep)
    return result, display, clock.now - 100.0


def test_a_wait_ends_when_it_is_ready() -> None:
    """Parts are told once, when they are there."""
    waiting = [seen(PipelinePhase.WAITING, Part("frontend", True, "1 of 1"), Part("w", False, "0 of 1"))]
    ready = [seen(PipelinePhase.READY, Part("frontend", True, "1 of 1"), Part("w", True, "1 of 1"))]
    progresses, display, seconds = run([[seen(PipelinePhase.UNSEEN)], waiting, waiting, ready])
    assert progresses[0].phase is PipelinePhase.READY
    assert display.said == [f"frontend {State.READY} 0 1 of 1", f"w {State.READY} 2 1 of 1"]
    assert display.moving == [["operator hasn't looked at it yet"], ["w 0 of 1"], ["w 0 of 1"], []]
    assert seconds == 1.5


def test_a_wait_ends_with_the_time() -> None:
    """And says how it stood last."""
    progresses, _, seconds = run([[seen(PipelinePhase.WAITING)]], seconds=3.0)
    assert (progresses[0].phase, seconds) == (PipelinePhase.WAITING, 3.0)


def test_one_that_stalled_does_not_end_the_others_wait() -> None:
    """All must have settled."""
    first = [seen(PipelinePhase.STALLED, name="a"), seen(PipelinePhase.WAITING, name="b")]
    last = [seen(PipelinePhase.STALLED, name="a"), seen(PipelinePhase.READY, name="b")]
    progresses, _, seconds = run([first, first, last])
    assert [entry.phase for entry in progresses] == [PipelinePhase.STALLED, PipelinePhase.READY]
    assert seconds == 1.0


def test_a_lost_server_is_said_once_and_asked_again() -> None:
    """The wait goes on; at its end the loss is the reason."""
    lost = ClusterError("gone")
    progresses, display, _ = run([[seen(PipelinePhase.WAITING)], lost, lost, [seen(PipelinePhase.READY)]])
    assert progresses[0].phase is PipelinePhase.READY
    assert display.said == ["gone (goes on asking)"]
    with pytest.raises(ClusterError, match="gone"):
        run([lost], seconds=2.0)
    with pytest.raises(ClusterError, match="gone"):
        run([[seen(PipelinePhase.READY), seen(PipelinePhase.WAITING, name="b")], lost], seconds=2.0)


@pytest.mark.parametrize("status", [401, 403])
def test_what_waiting_does_not_change_ends_it(status: int) -> None:
    """Missing rights, say."""
    with pytest.raises(RefusedError):
        run([RefusedError(status, {"message": "no"}, "/x", "c")])


def test_a_part_that_goes_back_is_shown_again() -> None:
    """Ready once is not ready for ever."""
    display = Recorder()
    tracker = Tracker(display)
    for done, at in ((True, 1.0), (False, 2.0), (True, 3.0)):
        tracker.show([seen(PipelinePhase.WAITING, Part("w", done, "x"))], at)
    assert [text.split()[2] for text in display.said] == ["1", "3"]
    assert display.moving[1] == ["w x"]


def test_what_is_gone_is_not_shown_and_what_has_no_part_is() -> None:
    """A component that was removed; a quota that keeps every part from being there."""
    display = Recorder()
    tracker = Tracker(display)
    for parts in ((Part("old", False, "x"), Part("w", False, "y")), (Part("w", False, "y"),), ()):
        tracker.show([seen(PipelinePhase.WAITING, *parts)], 0.0)
    assert display.moving == [["old x", "w y"], ["w y"], ["pipeline Why: because"]]


def test_several_pipelines_are_told_apart() -> None:
    """By their names."""
    display = Recorder()
    part = Part("w", False, "x")
    Tracker(display).show(
        [seen(PipelinePhase.WAITING, part, name="a"), seen(PipelinePhase.WAITING, part, name="b")], 0.0
    )
    assert display.moving == [["a/w x", "b/w x"]]
