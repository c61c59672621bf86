"""A minute of schemathesis, in all of its phases."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz.test_description import deviations


@pytest.mark.full
def test_the_description_is_true_for_a_minute(tmp_path: Path) -> None:
    """schemathesis finds nothing that /openapi.json says otherwise, in a few cases of each operation."""
    assert deviations(tmp_path, 60.0, "--phases", "examples,coverage,fuzzing", "--max-examples", "6") == []
