"""What is kept of a run: each sort of finding once, with the command that does it again; hung and dead cases too."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz import children
from tests.fuzz.__main__ import NAMES
from tests.fuzz.findings import Finding, Kept
from tests.fuzz.firing import post, read_answer
from tests.fuzz.targets import attacks, bodies, constraints, openapi, rawhttp, wire

REPORT = """= FAILURES =
____ POST /v1/completions ____
1. Test Case ID: x

- Undocumented HTTP status code

    Received: 418

[418] I'm a teapot:
____ GET /metrics ____
1. Test Case ID: y

- Undocumented Content-Type

= SUMMARY =
  12 generated, 2 found
"""


def test_alike_findings_are_said_once(tmp_path: Path) -> None:
    """Other figures make no other finding; another sentence does, and each has its file."""
    said: list[str] = []
    kept = Kept(said.append, tmp_path)
    for number, text in enumerate(("/live waited 100 ms", "/live waited 200 ms", "a traceback")):
        kept.add(Finding("bodies", f"/v1 of {number} bytes", [text], f"--case {number}", b"data"))
    assert (len(kept.findings), kept.again) == (2, 1)
    assert '  make fuzz ARGS="--case 0"' in said
    assert len([*tmp_path.glob("*.txt")]) == len([*tmp_path.glob("*.bin")]) == 3


@pytest.mark.parametrize("target", [bodies, rawhttp, constraints], ids=lambda target: target.NAME)
def test_a_number_is_always_the_same_case(target: Any) -> None:
    """Seed and number make a case, so that a finding can be done again; other numbers make others."""
    names = [target.case(random.Random(f"a/{number}")) for number in (1, 1, 2)]
    assert names[0] == names[1] != names[2]


def test_every_field_is_reached() -> None:
    """Each field of each request, and of the structs in it, is one of the places that get hostile values."""
    for path, kind in bodies.kinds().items():
        assert {place[0] for place in bodies.places(kind)} == set(kind.__struct_fields__), path
    places = bodies.places(bodies.kinds()["/v1/chat/completions"])
    assert ("messages", "tool_calls") in places
    assert ("nvext", "session_control", "session_id") in places
    assert b'"nvext": {"agent_hints": {"priority": NaN}}' in bodies.filled(
        "/v1/completions", {("nvext", "agent_hints", "priority"): b"NaN"}, {}
    )


def test_a_case_that_hangs_dies_or_raises_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the cases behind it are done all the same."""
    kept = Kept(lambda text: None, tmp_path)
    monkeypatch.setattr(children, "BUSY", 1.0)
    assert children.run("played_cases", 1, 100.0, kept, most=5) == 5
    table = {finding.case: finding.violations[0] for finding in kept.findings}
    assert table.keys() == {"raises", "dies", "spins"}
    assert table["raises"].startswith("it raised KeyError: 'x' at played_cases.py:")
    assert "exit code -6" in table["dies"]
    assert "s of CPU time, 2 are allowed" in table["spins"]


def test_the_report_of_schemathesis_is_read() -> None:
    """Operation and sort of each failure."""
    results = [(operation, failure) for operation, failure, _ in openapi.deviations(REPORT)]
    assert results == [
        ("POST /v1/completions", "Undocumented HTTP status code"), ("GET /metrics", "Undocumented Content-Type"),
    ]  # fmt: skip


def test_the_end_of_a_stream_is_its_answer() -> None:
    """An error in a stream that began well counts by its code."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n"
    for code, status in (("engine_error", 500), ("deadline", 504), ("model_full", 503)):
        tail = head + b'data: {"error": {"code": "%s"}}\n\n' % code.encode()
        assert (read_answer(head, tail, 1.0, "").status, read_answer(head, tail, 1.0, "").code) == (status, code)
    assert read_answer(head, head, 1.0, "").status == 200
    assert read_answer(b"", b"", 1.0, "").status == -1


def test_names_are_said_once() -> None:
    """Targets and attacks have names of their own, and each attack makes shots."""
    assert len(set(NAMES)) == len(NAMES)
    assert wire.NAME in NAMES
    assert all(attack.shots() for attack in attacks.ALL.values())
    assert post("/x", {"a": "\ud800"}).pieces[1] == b'{"a": "\\ud800"}'
