"""`started`: a program of ours with pipes, as `subprocess.Popen` shows one; forked where `tests/warm.py` may do so."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.processes import APPENDS
from tests.warm import may_be_forked, nursery


class Piped:
    """A forked process with a pipe for what it prints and, where no file is named for them, one for its errors."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], errors: Path | None = None) -> None:
        files = [(os.devnull, os.O_RDONLY)]
        with tempfile.TemporaryDirectory(prefix="piped-") as folder:
            paths = [Path(folder) / name for name in ("out", "err")[: 1 if errors else 2]]
            for path in paths:
                os.mkfifo(path)
            files += [(str(path), os.O_WRONLY) for path in paths]
            files += [(str(errors), APPENDS)] if errors else []
            self._child = nursery().start(argv, env, files)
            self._pipes = [path.open("rb") for path in paths]  # waits until the child has opened its end
        self.stdout: IO[bytes] | None = self._pipes[0]
        self.stderr: IO[bytes] | None = None if errors else self._pipes[1]

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        return self._child.returncode

    def poll(self) -> int | None:
        return self._child.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self._child.wait(timeout)

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._child.send_signal(number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Wait for its end; what it printed since, and its errors. Again: nothing."""
        left = [pipe for pipe in self._pipes if not pipe.closed]
        with ThreadPoolExecutor(2) as pool:
            texts = [reading.result(timeout) for reading in [pool.submit(pipe.read) for pipe in left]]
        for pipe in left:
            pipe.close()
        self.wait(timeout)
        out, errors, *_ = [*texts, b"", b""]
        return out, errors


Started = Piped | subprocess.Popen[bytes]


def started(argv: Sequence[str], env: Mapping[str, str], errors: Path | None = None) -> Started:
    """Start it with pipes; its errors go to the file, where one is named."""
    if may_be_forked(argv, env):
        return Piped(argv, env, errors)
    if errors is None:
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with errors.open("ab") as log:
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
