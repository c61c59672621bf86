"""A minute of what `make fuzz` does for longer with /openapi.json; a file of its own, beside the other smoke tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz.findings import Kept
from tests.fuzz.targets import openapi

pytestmark = [pytest.mark.processes(seconds=80), pytest.mark.servers, pytest.mark.timeout(600)]
SEED = 7


def test_the_description_is_true(tmp_path: Path) -> None:
    """schemathesis finds nothing that /openapi.json says otherwise, in a few cases of each operation."""
    kept = Kept(lambda text: None, tmp_path)
    flags = ("--phases", "examples,coverage,fuzzing", "--max-examples", "6")
    assert openapi.run(SEED, 60.0, kept, flags) > 100
    assert [(finding.case, [*finding.violations]) for finding in kept.findings] == []
