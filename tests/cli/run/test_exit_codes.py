"""How `dynamo-run in=http` ends, by who ends it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


@pytest.mark.processes(seconds=4)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_ctrl_c_is_told_from_an_orderly_end(number: int, code: int) -> None:
    """130 after Ctrl-C, as its help says; 0 where a supervisor asks it to end."""
    command = [sys.executable, "-m", "dynamo.cli.run", "in=http", "out=echo_core", "--http-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        assert any(line.startswith("ready ") for line in process.stdout)
        process.send_signal(number)
        assert process.wait(30) == code
    finally:
        process.kill()
        process.communicate()
