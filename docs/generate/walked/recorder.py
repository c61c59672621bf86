"""Record in which of our files Python code runs, in this process or in one that is asked over a socket.

`python -m docs.generate.walked.recorder SOCKET MODULE ARGUMENT…` runs a program that answers `start` and `stop` there.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]
_PACKAGES: Final = tuple(f"{ROOT / folder}/" for folder in ("sdk", "frontend", "worker", "operator", "cli"))
_ANSWER: Final = 1 << 20
Walk = list[tuple[str, int]]
"""Files below the repository's root, each with the time at which it was first entered (CLOCK_MONOTONIC, in ns)."""


class Recorder:
    """Note the files of the functions that are called, or go on, while it records."""

    def __init__(self) -> None:
        self._recording = False
        self._files: dict[str, int] = {}

    def install(self) -> None:
        """Watch this thread, and all that are started after it."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def start(self) -> None:
        """Forget what was noted, and record."""
        self._files.clear()
        self._recording = True

    def stop(self) -> Walk:
        """Stop recording; return the files in the order in which they were entered."""
        self._recording = False
        return [
            (str(Path(file).relative_to(ROOT)), when)
            for file, when in self._files.items()
            if file.startswith(_PACKAGES)
        ]

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._recording and event == "call" and (file := frame.f_code.co_filename) not in self._files:
            self._files[file] = time.monotonic_ns()


def _serve(listener: socket.socket, recorder: Recorder) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            if connection.recv(16) == b"start":
                recorder.start()
                connection.sendall(b"[]")
            else:
                connection.sendall(json.dumps(recorder.stop()).encode())


def ask(path: Path, word: str) -> Walk:
    """Send `start` or `stop` to a recorded program; return its answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(word.encode())
        answer = b"".join(iter(lambda: connection.recv(_ANSWER), b""))
    return [(file, when) for file, when in json.loads(answer)]


@contextlib.contextmanager
def _listening(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        yield listener


def main(path: str, module: str, *arguments: str) -> None:
    """Run `module` as a program; its files are recorded when the socket at `path` is told so."""
    recorder = Recorder()
    with _listening(path) as listener:
        threading.Thread(target=_serve, args=(listener, recorder), daemon=True).start()
        recorder.install()
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
