"""Test processes as children of one `fork_server.py`, for xdist."""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
BACKLOG: Final = 64
"""Test processes that may wait until all is imported."""
END_SECONDS: Final = 60.0


@contextlib.contextmanager
def forking(tests: Sequence[str]) -> Iterator[str]:
    """Run a server that imports these; yield what xdist takes for the interpreter of a test process."""
    with tempfile.TemporaryDirectory(prefix="tests-") as folder:
        address = f"{folder}/server"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(BACKLOG)
            argv = [sys.executable, str(HERE / "fork_server.py"), str(listener.fileno()), *tests]
            server = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
        try:
            yield shlex.join([sys.executable, "-IS", str(HERE / "fork_client.py"), address])
        finally:
            end(server)


def end(server: subprocess.Popen[bytes]) -> None:
    """Tell the server that nothing comes after this, as our own death would; one that doesn't end is killed."""
    assert server.stdin is not None
    server.stdin.close()
    try:
        server.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(END_SECONDS)
