"""Ctrl-C while a program starts: no traceback, whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRIES = 6


@pytest.mark.parametrize("words", [["dynamo", "ps"], ["dynamo-run", "in=http", "out=echo_core", "--http-port", "0"]])
def test_no_traceback_from_our_first_line_on(words: list[str], tmp_path: Path) -> None:
    """From the moment that the first module of others is read, at several times up to 0.3 s after it."""
    program = Path(sys.executable).with_name(words[0])
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "PYTHONVERBOSE": "1"}
    for number in range(TRIES):
        command = [str(program), *words[1:]]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        assert process.stderr is not None
        for line in process.stderr:
            if "click" in line:
                break
        time.sleep(0.3 * number / TRIES)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in out + err, err[-2000:]
