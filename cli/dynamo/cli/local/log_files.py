"""Log lines of local processes: how severe each is, where they are kept, and reading them back.

The executor appends, `dynamo logs` reads. A file is a bounded pair (`worker-0.log` and the
older `worker-0.log.1`); each line begins with the time at which it was read.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import IO, Final, NamedTuple

from dynamo.operator.cluster.termination_message import chosen, gist

MAX_BYTES = 8 << 20


class Severity(IntEnum):
    """Severity: how much a line matters."""

    INFO = 0
    WARNING = 1
    ERROR = 2


_OWN_LINE = re.compile(r"^\d\d:\d\d:\d\d (?:[A-Z]+ )?[\w.]+: ")
"""How our own processes begin a line; without a level it is an INFO."""

_MARKS = (
    (
        Severity.ERROR,
        re.compile(r'"level": ?"(error|critical|fatal|panic)"|\b(ERROR|CRITICAL|FATAL)\b|\[(ERR|FTL)\]', re.I),
    ),
    (Severity.WARNING, re.compile(r'"level": ?"warn(ing)?"|\bWARN(ING)?\b|\[WRN\]', re.I)),
    (Severity.INFO, re.compile(r'"level": ?"(info|debug|trace)"|\b(INFO|DEBUG|TRACE)\b|\[(INF|DBG|TRC)\]')),
    (Severity.INFO, re.compile(r"^\d\d:\d\d:\d\d [a-z_][\w.]*: ")),
    (Severity.ERROR, re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} E ")),  # llama.cpp, whose warnings are for its developers
    (Severity.INFO, re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} [WIDT] ")),
)
_HEAD = 100
_PANIC: Final = "panic: "
"""How a Go program's last words begin; its stack follows."""
_NO_SPACE: Final = "no space left on device"
_FULL: Final = (
    "the disk is full: free space (dynamo clean removes what earlier runs left), or set XDG_STATE_HOME to a folder of "
    "another disk; "
)
_REQUESTS: Final = 64
_OF_REQUEST: Final = re.compile(r"\[(?P<id>[^\]\s]{8,128})\] (?P<rest>.+)")


def severity(line: str) -> Severity | None:
    """Return what a line says of itself near its start.

    None for one that goes on with the line before (a traceback).
    """
    marks = [(match.start(), level) for level, mark in _MARKS if (match := mark.search(line[:_HEAD]))]
    return min(marks)[1] if marks else None


def message(line: str) -> str | None:
    """Return what a line of our own processes says, without its head; None for others' lines."""
    match = _OWN_LINE.match(line)
    return line[match.end() :] if match else None


def last_words(lines: Iterable[tuple[Severity, str]], most: int) -> str:
    """Return what most likely says why a process ended: a full disk, a Go program's panic, or its last error. Pure."""
    said = list(lines)
    errors = [text for level, text in said if level is Severity.ERROR]
    panics = [text for _, text in said if text.startswith(_PANIC)]
    words = gist(chosen(panics[:1] or errors or [text for _, text in said]), most)
    return f"{_FULL}{words}" if any(_NO_SPACE in text.lower() for _, text in said) else words


class Repeats:
    """Repeats: lines of several parts that tell one failure, as a worker's and the frontend's about one request."""

    def __init__(self) -> None:
        self._shown: deque[tuple[str, str]] = deque(maxlen=_REQUESTS)

    def is_one(self, text: str) -> bool:
        """Tell whether a line says of its request what another one said; remembers it where none did."""
        match = _OF_REQUEST.search(text)
        if match is None:
            return False
        rest = match["rest"]
        if any(known == match["id"] and (said in rest or rest in said) for known, said in self._shown):
            return True
        self._shown.append((match["id"], rest))
        return False


class LogFile:
    """Log file of one part."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("a", encoding="utf-8", errors="replace", buffering=1)

    def write(self, text: str, now: datetime) -> None:
        """Add a line; the file becomes `.1` when it is full. A full disk must not end what serves."""
        with contextlib.suppress(OSError):
            self._write(text, now)

    def _write(self, text: str, now: datetime) -> None:
        self._file.write(f"{now.astimezone(UTC).isoformat(timespec='milliseconds')} {text}\n")
        if self._file.tell() > self._max_bytes:
            self._file.close()
            self.path.replace(_older(self.path))
            self._file = self.path.open("a", encoding="utf-8", errors="replace", buffering=1)

    def close(self) -> None:
        """Write what is buffered."""
        self._file.close()


class LogLine(NamedTuple):
    """A line read back; sorts by time."""

    at: datetime
    part: str
    text: str


def read_lines(path: Path, part: str) -> Iterator[LogLine]:
    """Yield all lines of a part, oldest first."""
    for file in (_older(path), path):
        if file.exists():
            with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
                yield from parse_lines(lines, part)


def parse_lines(lines: Iterable[str], part: str) -> Iterator[LogLine]:
    """Yield lines with their time; what has none (a torn write) is passed over."""
    for line in lines:
        stamp, _, text = line.rstrip("\n").partition(" ")
        try:
            yield LogLine(datetime.fromisoformat(stamp), part, text)
        except ValueError:
            continue


class Follower:
    """Reads what is added to a log file, across its change to `.1`."""

    def __init__(self, path: Path, part: str) -> None:
        self._path, self._part = path, part
        self._file: IO[str] | None = None
        self._rest = ""
        self._open()
        if self._file is not None:
            self._file.seek(0, 2)

    def _open(self) -> None:
        if self._path.exists():
            self._file = self._path.open(encoding="utf-8", errors="replace", newline="\n")

    def poll(self) -> list[LogLine]:
        """Return the lines added since the last call."""
        lines = self._read()
        if self._replaced():
            self.close()
            self._open()
            lines += self._read()
        return lines

    def _read(self) -> list[LogLine]:
        if self._file is None:
            return []
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        return list(parse_lines(lines, self._part))

    def _replaced(self) -> bool:
        if self._file is None:
            return True
        try:
            return self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")
