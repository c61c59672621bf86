"""`dynamo ps` in a narrow terminal."""

from __future__ import annotations

from dynamo.cli.commands.ps import fitting, rows
from dynamo.cli.local.state import PartState, RunState
from dynamo.cli.tables import table

PARTS = [PartState(f"worker-{n}", "worker", "worker", "ready", 0.0, pid=12345678, restarts=3) for n in range(2)]
RUN = RunState("r", 1, 0.0, "f", "mocker", "dynamo", "a-model-of-some-length", "http://127.0.0.1:8000/v1", parts=PARTS)


def test_what_fits_stays() -> None:
    cells = rows([(RUN, True)], 60.0, wide=False)
    assert fitting(cells, 200) == cells


def test_columns_go_until_it_fits() -> None:
    """The URL is never cut, since it is there to be copied."""
    for width in (100, 80, 64):
        lines = table(fitting(rows([(RUN, True)], 60.0, wide=False), width))
        assert all(len(line) <= width for line in lines), lines
        assert "http://127.0.0.1:8000/v1" in lines[1]
    assert "PID" not in lines[0]


def test_reasons_are_shortened_last() -> None:
    PARTS[0].reason = "no file of this name " * 20
    try:
        lines = table(fitting(rows([(RUN, True)], 60.0, wide=False), 100))
    finally:
        PARTS[0].reason = ""
    assert all(len(line) <= 100 for line in lines), lines
    assert "…" in lines[1]
