"""Real processes: started in a group of their own, tied to our life, their output read line by line.

The executor decides, this module does. A child gets its own session, so that Ctrl-C in a
terminal reaches only us and the end can be orderly; `_tether.py` and `_watchdog.py` see to
it that nothing survives our own sudden death.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

OnLine = Callable[[str, str], None]
"""(stream, text): one line of `stdout` or `stderr`, without its end."""

_HERE = Path(__file__).parent
_LONGEST_LINE = 16_384
_PIPES_CLOSE_WITHIN = 1.0


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
        """The group is gone; its number may soon be someone else's."""
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


class Child:
    """One running process."""

    def __init__(self, process: asyncio.subprocess.Process, watchdog: Watchdog) -> None:
        self._process = process
        self._watchdog = watchdog
        self.pid = process.pid

    def terminate(self) -> None:
        """Ask it to end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def destroy(self) -> None:
        """End it and everything it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def run(self, on_line: OnLine) -> int:
        """Read its output until it ends; returns the exit code (negative: signal)."""
        pumps = asyncio.gather(
            _pump(self._process.stdout, "stdout", on_line),
            _pump(self._process.stderr, "stderr", on_line),
        )
        try:
            code = await self._process.wait()
            self.destroy()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pumps, _PIPES_CLOSE_WITHIN)
            return code
        finally:
            pumps.cancel()
            self._watchdog.forget(self.pid)


async def spawn(argv: Sequence[str], environment: Mapping[str, str], folder: Path, watchdog: Watchdog) -> Child:
    """Start `argv` as a child that can't outlive us."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(_HERE / "_tether.py"), str(os.getpid()), *argv,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=dict(environment), cwd=folder, start_new_session=True,
    )  # fmt: skip
    watchdog.add(process.pid)
    return Child(process, watchdog)


class LineSplitter:
    """Bytes to lines; a line without end is cut, so that memory stays bounded."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) >= _LONGEST_LINE:
            lines.append(self._rest[:_LONGEST_LINE])
            self._rest = self._rest[_LONGEST_LINE:]
        return [_text(line) for line in lines]

    def end(self) -> list[str]:
        """What was left without a line end."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    return line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")


async def _pump(reader: asyncio.StreamReader | None, stream: str, on_line: OnLine) -> None:
    if reader is None:
        return
    splitter = LineSplitter()
    while data := await reader.read(65_536):
        for line in splitter.feed(data):
            on_line(stream, line)
    for line in splitter.end():
        on_line(stream, line)
