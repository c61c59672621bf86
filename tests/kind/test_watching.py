"""What counts as a lie: Ready, of the present generation, for longer than allowed while the endpoint refuses, or a
worker lacks."""

from __future__ import annotations

import pytest
from e2e.traffic.watching import Truth, is_ready, lacking

PIPELINE = {
    "metadata": {"generation": 2},
    "status": {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 2}]},
}


def seen(*polls: tuple[float, bool, str]) -> Truth:
    truth = Truth(allowed=2.0)
    for poll in polls:
        truth.saw(*poll)
    return truth


@pytest.mark.parametrize(
    ("polls", "lies", "longest"),
    [
        ([(0, True, ""), (9, True, "")], 0, 0.0),
        ([(0, False, "503"), (9, False, "503")], 0, 0.0),
        ([(0, True, "503"), (2, True, "503"), (2.1, False, "503"), (4.5, True, "503")], 0, 2.0),
        ([(0, True, "503"), (1, True, ""), (2.5, True, "503"), (4, True, "503")], 0, 1.5),
        ([(0, True, "503"), (2.1, True, "503")], 1, 2.1),
        ([(0, True, "503"), (2.5, True, "503"), (9, True, "503")], 1, 9.0),
        ([(0, True, "a"), (3, True, "a"), (4, True, ""), (5, True, "b"), (8, True, "b")], 2, 3.0),
    ],
)
def test_only_what_lasts_is_a_lie(polls: list[tuple[float, bool, str]], lies: int, longest: float) -> None:
    """Each time once, however long it lasts."""
    truth = seen(*polls)
    assert (len(truth.lies), truth.longest) == (lies, longest)


def test_a_lie_names_the_refusal() -> None:
    """So that one sees what users saw."""
    assert "503 no worker" in seen((0, True, "503 no worker"), (3, True, "503 no worker")).lies[0]


def test_a_worker_that_lacks_is_a_lie_of_its_own() -> None:
    """The endpoint goes on answering by the others."""
    truth = Truth(allowed=2.0)
    for now in (0, 1, 2.5):
        truth.saw(now, True, "", "1 of 2")
    assert truth.lacks == ["Ready for 2.5 s and more while a frontend lacked a worker: 1 of 2"]
    assert (truth.lies, truth.longest) == ([], 0.0)


def test_what_a_frontend_lacks() -> None:
    """Workers that can be asked, by their pods; an older release names neither pod nor state."""
    status: dict[str, object] = {"components": [{"replicas": 2}, {"replicas": 1}]}
    first, second = (
        {"host": "a-0", "routable": True, "instance_id": 1},
        {"host": "a-1", "routable": False, "instance_id": 2},
    )
    other = {"instance_id": 3}
    assert lacking(status, {"instances": [first, first, second, other]}) == "2 of 3, ['3', 'a-0']"
    assert lacking(status, {"instances": [first, {**second, "routable": True}, other]}) == ""
    assert lacking({}, {}) == ""


@pytest.mark.parametrize(
    ("pipeline", "ready"),
    [
        (PIPELINE, True),
        ({**PIPELINE, "metadata": {"generation": 3}}, False),
        ({**PIPELINE, "status": {}}, False),
        ({"metadata": {"generation": 2}}, False),
        ({}, False),
    ],
)
def test_a_status_counts_for_its_generation(pipeline: dict[str, object], ready: bool) -> None:
    """One that speaks of an earlier spec promises nothing."""
    assert is_ready(pipeline) is ready
