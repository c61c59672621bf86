"""Real processes: started in a group of their own, tied to our life, their output read line by line.

The executor decides, this module does. A child gets its own session, so that Ctrl-C in a
terminal reaches only us and the end can be orderly; `_tether.py` and `_watchdog.py` see to
it that nothing survives our own sudden death.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

OnLine = Callable[[str, str], None]
"""(stream, text): one line of `stdout` or `stderr`, without its end."""

_HERE = Path(__file__).parent
_LONGEST_LINE = 16_384
_PIPES_CLOSE_WITHIN = 1.0
_LINE_END = re.compile(rb"\r?\n|\r(?=[^\n])")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_STREAMS = {1: "stdout", 2: "stderr"}


class Watchdog:
    """Our side of `_watchdog.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> Watchdog:
        """Start the process that outlives us for a moment."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(_HERE / "_watchdog.py"),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        return cls(process)

    def add(self, group: int) -> None:
        """Kill this group when we die."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Forget a group that is gone; its number may soon be someone else's."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(line.encode())

    async def stop(self) -> None:
        """Let it go; it kills what is still listed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(ConnectionError):
                await self._process.stdin.wait_closed()
        await self._process.wait()


class Child(asyncio.SubprocessProtocol):
    """One running process.

    A protocol of our own, since `asyncio.subprocess.Process.wait` waits for the pipes too, and
    those may be held open by something that the process started.
    """

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._splitters = {1: LineSplitter(), 2: LineSplitter()}
        self._open = {1, 2}
        self._exited, self._drained = asyncio.Event(), asyncio.Event()
        self._transport: asyncio.SubprocessTransport
        self.pid = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        self.pid = transport.get_pid() or 0

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if isinstance(data, bytes):
            for line in self._splitters[fd].feed(data):
                self._on_line(_STREAMS[fd], line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if fd in self._splitters:
            for line in self._splitters[fd].end():
                self._on_line(_STREAMS[fd], line)
        if not self._open:
            self._drained.set()

    def process_exited(self) -> None:
        self._exited.set()

    def terminate(self) -> None:
        """Ask it to end."""
        with contextlib.suppress(ProcessLookupError):
            self._transport.send_signal(signal.SIGTERM)

    def destroy(self) -> None:
        """End it and everything it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait until it ended and its output is read; returns the exit code (negative: signal)."""
        await self._exited.wait()
        self.destroy()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), _PIPES_CLOSE_WITHIN)
        self._transport.close()
        return self._transport.get_returncode() or 0


async def spawn(
    argv: Sequence[str], environment: Mapping[str, str], folder: Path, watchdog: Watchdog, on_line: OnLine
) -> Child:
    """Start `argv` as a child that can't outlive us."""
    _, child = await asyncio.get_running_loop().subprocess_exec(
        lambda: Child(on_line),
        sys.executable, "-I", "-S", str(_HERE / "_tether.py"), str(os.getpid()), *argv,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=dict(environment), cwd=folder, start_new_session=True,
    )  # fmt: skip
    watchdog.add(child.pid)
    return child


class LineSplitter:
    """Bytes to lines; a line without end is cut, so that memory stays bounded."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes; what a progress bar writes over itself are lines too."""
        *lines, self._rest = _LINE_END.split(self._rest + data)
        while len(self._rest) >= _LONGEST_LINE:
            lines.append(self._rest[:_LONGEST_LINE])
            self._rest = self._rest[_LONGEST_LINE:]
        return [_text(line) for line in lines]

    def end(self) -> list[str]:
        """Return what was left without a line end."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    """Return a line as it may be shown on a terminal: no colours, no other control characters."""
    return _CONTROL.sub("", line[:_LONGEST_LINE].decode("utf-8", "replace"))
