"""Processes that tests start: `Process` with its log, `Lines` for one read as it runs, `piped` for an answer."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM
from typing import Any, Final

from tests.environments import quick_environment
from tests.waiting import eventually
from tests.warm import Forked, may_be_forked, nursery

DYNAMO: Final = (sys.executable, "-m", "dynamo.cli")
APPENDS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND
RUN: Final = (sys.executable, "-m", "dynamo.cli.run")


def piped(state: Path, typed: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Do what `echo typed | dynamo-run words` does."""
    return answered([*RUN, *words], typed, quick_environment(state))


def answered(argv: Sequence[str], typed: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Do what `echo typed | argv` does."""
    if not may_be_forked(argv, env):
        return subprocess.run(argv, input=typed, env=env, capture_output=True, text=True, timeout=110, check=False)
    with tempfile.TemporaryDirectory(prefix="answered-") as folder:
        given, out, err = (Path(folder) / name for name in ("in", "out", "err"))
        given.write_text(typed)
        files = [(str(given), os.O_RDONLY), (str(out), APPENDS), (str(err), APPENDS)]
        process = nursery().start(argv, env, files)
        try:
            code = process.wait(110)
        finally:
            process.kill()
        return subprocess.CompletedProcess(argv, code, out.read_text(), err.read_text())


def living(variable: str, value: str | Path) -> dict[int, str]:
    """Return the command lines, by pid, of all that were started with this in their environment, however far down."""
    mark, commands = f"{variable}={value}".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone, or somebody else's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return commands


class Process:
    """One process, its log on disk, ended by pid."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.name, self.argv, self.log = name, [*argv], folder / f"{name}.log"
        self.env = dict(os.environ if env is None else env)
        self.log.unlink(missing_ok=True)  # of another that had this name: its ready line isn't ours
        self.log.touch()
        self._open()

    def _open(self) -> None:
        self.popen: subprocess.Popen[bytes] | Forked
        if may_be_forked(self.argv, self.env):
            said = (str(self.log), APPENDS)
            self.popen = nursery().start(self.argv, self.env, [(os.devnull, os.O_RDONLY), said, said])
            return
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, start_new_session=True
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        """Tell it to end, and see that it does."""
        if self.popen.poll() is None:
            try:
                self.stop(60)  # a busy machine
            finally:
                self.kill()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(number)

    def kill(self) -> None:
        self.signal(SIGKILL)
        self.popen.wait(10)

    def stop(self, within: float = 20, number: int = SIGTERM) -> int:
        """Tell it to end; its exit code."""
        self.signal(number)
        return self.popen.wait(within)

    def restart(self) -> None:
        self.kill()
        self._open()

    def ready_line(self, within: float = 60) -> dict[str, Any]:
        """What its last line `ready {...}` says; waits for one."""
        return self.ready_lines(1, within)[-1]

    def ready_lines(self, count: int, within: float = 60) -> list[dict[str, Any]]:
        """What its lines `ready {...}` say; waits for so many."""

        def find() -> list[str] | None:
            assert self.popen.poll() is None, f"{self.name} ended: {self.text()[-2000:]}"
            lines = re.findall(r"^ready (\{.*\})$", self.text(), re.MULTILINE)
            return lines if len(lines) >= count else None

        try:
            return [json.loads(line) for line in eventually(f"{self.name} is ready", find, within)]
        except AssertionError as error:
            raise AssertionError(f"{error}; it said {self.text()[-2000:]}") from error

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.popen.pid}/fd"))

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        return next(int(x.split()[1]) / 1024 for x in status.splitlines() if x.startswith("VmRSS"))


class Lines:
    """A running command, its output line by line."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], folder: Path, patience: float) -> None:
        self.patience = patience
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
        self.seen: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def until(self, wanted: Callable[[str], Any], what: str, within: float = 0.0) -> str:
        """The next line that is wanted; fails where the output ends before."""
        deadline = time.monotonic() + (within or self.patience)
        while True:
            try:
                line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not in time: {what}; it said\n" + "\n".join(self.seen)) from None
            assert line is not None, f"ended without {what}:\n" + "\n".join(self.seen)
            self.seen.append(line)
            if wanted(line):
                return line

    def wait_for(self, text: str, times: int = 1, within: float = 0.0) -> str:
        """The line that holds `text` for the nth time."""
        for _ in range(times):
            line = self.until(lambda line: text in line, repr(text), within)
        return line

    def end(self) -> str:
        """Wait for its end; everything it wrote."""
        self.process.wait(self.patience)
        self._reader.join(self.patience)
        while (line := self._lines.get(timeout=self.patience)) is not None:
            self.seen.append(line)
        self._lines.put(None)
        return "\n".join(self.seen)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, number: int = SIGINT) -> int:
        """Tell it to end; its exit code."""
        self.signal(number)
        return self.process.wait(self.patience)

    def close(self) -> None:
        """Nothing of it stays, but for what it started."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(self.patience)
        self._reader.join(self.patience)
        assert self.process.stdout is not None
        self.process.stdout.close()
