"""Threads follow the container's limit, not the node's cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dynamo.worker.engines.llamacpp.engine import usable_cpus


@pytest.mark.parametrize(
    ("said", "expected"),
    [("200000 100000", 2), ("50000 100000", 1), ("250000 100000", 2), ("max 100000", 8), ("", 8), ("1 0", 8)],
)
def test_the_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, expected: int) -> None:
    """A limit below the cores wins, rounded down to at least one; none or nonsense leaves the cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    file = tmp_path / "cpu.max"
    file.write_text(said)
    assert usable_cpus(file) == expected


def test_without_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no such file, the cores that the process may run on count."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 3})
    assert usable_cpus(tmp_path / "none") == 2
