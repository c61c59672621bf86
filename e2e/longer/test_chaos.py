"""A seed of `make chaos`, as its users run it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.chaos.test_chaos import chaos, running


@pytest.mark.timeout(600)
def test_a_seed_has_no_violation(tmp_path: Path) -> None:
    """Half a minute of faults: every request ends once and right, and nothing is left behind."""
    started = chaos(tmp_path, "--seed", "11", "--minutes", "0.5", "--every", "1")
    try:
        said, _ = started.communicate(timeout=580)
    finally:
        started.kill()
    assert started.returncode == 0, said
    assert "1 seeds, 0 violations" in said
    assert running(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
