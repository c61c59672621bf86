"""`python fork_server.py FD TESTS...`: imports these tests and all they use, then is each test process, by forking.

Five processes that import the same for themselves spend a minute of CPU on it in a fresh clone. What xdist takes for
an interpreter of a test process is `fork_client.py`: it hands over its files and its command, and waits for the end.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from typing import IO, Any, Final

import pytest

MOST: Final = 1 << 16
"""Bytes of a message: the words of a command."""


def collect(tests: list[str]) -> None:
    """Import all test modules as pytest does; whatever is wrong with a module is told by each test process."""
    with open(os.devnull, "w", encoding="utf-8") as silence:
        streams, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), silence, silence
        try:
            pytest.main(["--collect-only", "-q", "-p", "no:xdist", *tests])
        finally:
            sys.stdout, sys.stderr = streams
    gc.collect()
    gc.freeze()


def reap(*_: object) -> None:
    """Forget children that have ended: their clients see it for themselves."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def serve(listener: socket.socket) -> tuple[list[str], list[int]] | None:
    """Fork for each client; return its words and files in the child, and None here once stdin has ended."""
    signal.signal(signal.SIGCHLD, reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and those end this
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            return None
        client, _ = listener.accept()
        with client:
            message, files, _, _ = socket.recv_fds(client, MOST, 3)
            if message and os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                client.detach()  # it closes when this process ends, whatever ends it
                return json.loads(message), files
        for file in files:
            os.close(file)


def become(words: list[str], files: list[int]) -> None:
    """Run `-u -c COMMAND` as an interpreter does that was started with these files."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    streams: list[IO[Any]] = [os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww")]
    sys.stdin, sys.stdout, sys.stderr = streams
    sys.argv = ["-c"]
    exec(words[words.index("-c") + 1], {"__name__": "__main__"})


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        collect(sys.argv[2:])
        child = serve(listener)
    if child is not None:
        become(*child)
