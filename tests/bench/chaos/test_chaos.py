"""`make chaos` itself, as its users run it, ended early; `make e2e` has a whole seed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.conftest import eventually

ROOT = Path(__file__).parents[3]
PARTS = 8

pytestmark = [pytest.mark.processes(seconds=20), pytest.mark.servers, pytest.mark.timeout(600)]


def chaos(folder: Path, *flags: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    env = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)}
    argv = [sys.executable, "-m", "bench.chaos", *flags]
    return subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def running(folder: Path) -> list[int]:
    """The processes that were started with this folder for temporary files."""
    wanted, processes = f"TMPDIR={folder}".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in environ.read_bytes().split(b"\0"):
                processes.append(int(environ.parent.name))
        except OSError:
            continue  # gone, or somebody else's
    return processes


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_whatever_ends_it_ends_all(tmp_path: Path, number: int, code: int) -> None:
    """Ctrl-C takes the processes down in order; what kills the run kills them too."""
    started = chaos(tmp_path, "--seed", "1")
    try:
        eventually("all are started", lambda: len(running(tmp_path)) > PARTS, 120)
        started.send_signal(number)
        assert started.wait(60) == code
    finally:
        started.kill()
        started.communicate()
    eventually("all are gone", lambda: not running(tmp_path), 30)
