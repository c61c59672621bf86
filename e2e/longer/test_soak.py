"""`make soak`, as its users run it, for as short as it goes: its figures mean little then, but it has to work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.bench.chaos.test_chaos import running

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_both_halves_are_read_and_judged(tmp_path: Path) -> None:
    """Nothing but memory may grow within minutes, in which caches fill; no request ends wrong, no process is left."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    env = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    argv = [sys.executable, "-m", "bench.soak", "--minutes", "4", "--sample", "5"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=880, check=False)
    assert ", 0 ended wrong" in done.stdout, done.stdout + done.stderr
    missed = re.findall(r"^(\S+) +(\S+) .*MISSED", done.stdout, re.M)
    assert {what for _, what in missed} <= {"megabytes"}, done.stdout
    assert {of for of, _ in re.findall(r"^(\S+) +(megabytes|keys|subscriptions) ", done.stdout, re.M)} == {
        "frontend-1", "worker-1", "operator", "etcd", "nats"
    }  # fmt: skip
    assert running(tmp_path) == []
