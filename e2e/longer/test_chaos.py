"""A minute of faults; `make test` has seconds, `make chaos` as much as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.chaos.test_chaos import holds


@pytest.mark.timeout(600)
def test_a_seed_has_no_violation(tmp_path: Path) -> None:
    """Every request ends once and right, and nothing is left behind."""
    holds(tmp_path, "--seed", "11", "--minutes", "1", "--every", "1")
