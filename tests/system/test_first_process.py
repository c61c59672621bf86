"""In a container ours is the first process, which no SIGTERM ends by itself: it must end when told, however early."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

# As the kernel treats the first process: the number, and no default for SIGTERM.
AS_FIRST = (
    "import os, runpy, signal, sys\n"
    "os.getpid = lambda: 1\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)\n"
)
WORKER = ["dynamo.worker", "--engine", "mocker", "--model-name", "m"]


@pytest.mark.parametrize("words", [WORKER, ["dynamo.frontend", "--http-port", "0"]], ids=["worker", "frontend"])
def test_it_ends_while_it_still_waits_for_its_servers(words: list[str]) -> None:
    """etcd and NATS take the connection and say nothing; a pod that is deleted now must not stay for all its grace."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        env = {**os.environ, "ETCD_ENDPOINTS": f"http://{address}", "NATS_SERVER": f"nats://{address}"}
        process = subprocess.Popen([sys.executable, "-c", AS_FIRST, *words], env=env, stdin=subprocess.DEVNULL)
        try:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()
            process.wait(10)


def test_every_program_does() -> None:
    """What a container may run sets its handler before it imports what takes long."""
    root = Path(__file__).parents[2]
    programs = {
        path for path in root.glob("*/dynamo/*/__main__.py") if path.parts[-4] in ("frontend", "worker", "operator")
    }
    assert len(programs) == 8
    for path in programs:
        words = path.read_text()
        latest = max(words.find("end_on_sigterm()"), words.find("signal.SIGTERM"))
        assert 0 <= latest < words.index("import main"), path
