"""Seconds of what `make fuzz` does for longer with /openapi.json, and `make e2e` for a minute."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz.findings import Kept
from tests.fuzz.targets import openapi

pytestmark = [pytest.mark.processes(seconds=20), pytest.mark.servers, pytest.mark.timeout(600)]
SEED = 7
FEWEST = 50
LONGEST_SECONDS = 160.0


def deviations(folder: Path, seconds: float, *flags: str) -> list[tuple[str, list[str]]]:
    """Ask for so long; return what was found. It has to be what more than `FEWEST` requests showed.

    Where other tests have the machine, so few fit into the time that it is asked for longer.
    """
    kept = Kept(lambda text: None, folder)
    asked = openapi.run(SEED, seconds, kept, flags)
    while asked <= FEWEST and seconds < LONGEST_SECONDS:
        seconds *= 4
        asked = openapi.run(SEED, seconds, kept, flags)
    assert asked > FEWEST
    return [(finding.case, [*finding.violations]) for finding in kept.findings]


def test_the_description_is_true(tmp_path: Path) -> None:
    """schemathesis finds nothing that /openapi.json says otherwise, at the bounds of what it says."""
    assert deviations(tmp_path, 10.0, "--phases", "coverage") == []
