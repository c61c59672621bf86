"""`Terminal`: a program on a terminal, as its user sees it."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from tests.waiting import eventually


class Terminal:
    """The end that a user has: what is shown, and what is typed."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor, self.process = descriptor, process
        self._shown = bytearray()

    def wait_for(self, what: str, text: bytes) -> None:
        """Wait until the text has been shown."""
        eventually(what, lambda: self._shows(text))

    def type(self, text: bytes) -> None:
        """Press these keys."""
        os.write(self._descriptor, text)

    def _shows(self, text: bytes) -> bool:
        with contextlib.suppress(OSError):  # nothing new, or the program has gone
            self._shown.extend(os.read(self._descriptor, 65536))
        return text in self._shown


@contextlib.contextmanager
def on_terminal(argv: Sequence[str], env: Mapping[str, str]) -> Iterator[Terminal]:
    """Run a program on a terminal that answers no questions about its cursor; nothing of it stays."""
    ours, theirs = pty.openpty()
    env = {**env, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    try:
        os.set_blocking(ours, False)
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
