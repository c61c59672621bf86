"""`dynamo ps` in a narrow terminal."""

from __future__ import annotations

from dynamo.cli.commands.ps import fitting, narrow_lines, rows
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


def test_forty_columns_have_whole_words() -> None:
    """Where no table fits, each part has lines of its own, folded between words; the address stays whole."""
    PARTS[1].reason = "the file that the pipeline names can't be read: no file of this name"
    try:
        runs = [(RUN, True)]
        lines = narrow_lines(runs, rows(runs, 60.0, wide=False), 60.0, 40)
    finally:
        PARTS[1].reason = ""
    assert all(len(line) <= 40 for line in lines), lines
    assert "  http://127.0.0.1:8000/v1" in lines
    said = " ".join(" ".join(lines).split())
    assert "worker-1 ready 1m: the file that the pipeline names can't be read: no file of this name" in said


def test_eighty_columns_keep_the_table() -> None:
    """The shape changes only where it has to."""
    runs = [(RUN, True)]
    assert narrow_lines(runs, rows(runs, 60.0, wide=False), 60.0, 80)[0].startswith("PIPELINE")
