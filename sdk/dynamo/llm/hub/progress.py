"""How far a download is: the arithmetic, and the two ways to tell it (a bar on a terminal, lines in a log).

Threads that load say where they are (`Progress.at`); one thread asks every now and then what to tell (`Teller.tell`).
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

log = logging.getLogger(__name__)

LINE_SECONDS: Final = 5.0
"""Between two lines in a log."""
BAR_SECONDS: Final = 0.2
_WINDOW: Final = 10.0
"""A rate is that of the last seconds."""
_BAR: Final = 24


@dataclass(frozen=True)
class State:
    """A download at one moment; sizes in bytes."""

    done: int
    total: int
    rate: float
    """Bytes a second."""
    waiting: bool = False
    """Another process loads."""

    def __str__(self) -> str:
        share = 100 * self.done // self.total if self.total else 100
        parts = [f"{size_text(self.done)} of {size_text(self.total)} ({share}%)"]
        if self.rate > 0 and self.done < self.total:
            parts += [f"{size_text(self.rate)}/s", f"{duration_text((self.total - self.done) / self.rate)} left"]
        if self.waiting:
            parts.append("another process loads it")
        return ", ".join(parts)


class Progress:
    """Progress of each file of a download."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._lock = threading.Lock()
        self._sizes = dict(sizes)
        self._at = dict.fromkeys(sizes, 0)
        self._elsewhere: set[str] = set()
        self._marks: deque[tuple[float, int]] = deque()
        self.loaded = 0
        """Bytes that this process loaded."""

    def at(self, name: str, position: int, *, elsewhere: bool = False) -> None:
        """Say that a file is there up to `position`; `elsewhere`: another process writes it."""
        with self._lock:
            self._at[name] = position
            (self._elsewhere.add if elsewhere else self._elsewhere.discard)(name)

    def add(self, name: str, size: int) -> None:
        """Say that the next `size` bytes of a file came."""
        with self._lock:
            self._at[name] += size
            self.loaded += size

    def state(self, now: float) -> State:
        """Return the whole at the moment `now`, in seconds of a steady clock."""
        with self._lock:
            done = sum(self._at.values())
            waiting = any(self._at[name] < self._sizes[name] for name in self._elsewhere)
        marks = self._marks
        marks.append((now, done))
        while len(marks) > 2 and now - marks[0][0] > _WINDOW:
            marks.popleft()
        seconds = now - marks[0][0]
        rate = max(0.0, (done - marks[0][1]) / seconds) if seconds > 0 else 0.0
        return State(done, sum(self._sizes.values()), rate, waiting)


class Terminal(Protocol):
    """Terminal where a bar is drawn: standard error, mostly."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


class Teller:
    """Tells a person how far it is: draws over one line of a terminal, or logs a line every few seconds."""

    def __init__(self, title: str, terminal: Terminal | None) -> None:
        self._title = title
        self._terminal = terminal
        self.seconds = BAR_SECONDS if terminal else LINE_SECONDS
        self._drawn = False

    def tell(self, state: State) -> None:
        """Tell where it is now."""
        if self._terminal is None:
            log.info("%s: %s", self._title, state)
            return
        width = shutil.get_terminal_size().columns
        self._terminal.write("\r" + bar(self._title, state, width) + "\x1b[K")
        self._terminal.flush()
        self._drawn = True

    def end(self) -> None:
        """Leave the last line as it is and go on below it."""
        if self._drawn and self._terminal is not None:
            self._terminal.write("\n")
            self._terminal.flush()


def bar(title: str, state: State, width: int) -> str:
    """Return one line of at most `width` - 1 characters."""
    full = _BAR * state.done // state.total if state.total else _BAR
    line = f"[{'#' * full}{'.' * (_BAR - full)}] {state}"
    room = width - 2 - len(line)
    head = title if len(title) <= room else f"…{title[len(title) - room + 1 :]}" if room > 8 else ""
    return f"{head} {line}"[: max(width - 1, 20)] if head else line[: max(width - 1, 20)]


def terminal_of(stream: Terminal | None) -> Terminal | None:
    """Return `stream` where a bar may be drawn on it."""
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    hidden = os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "").upper() in ("1", "TRUE", "YES", "ON")
    return None if hidden else stream


def size_text(size: float) -> str:
    """Return a size in words, as in `1.2 GB`; decimal units, as disks and lines have."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit in ("B", "kB") or size >= 99.5 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def duration_text(seconds: float) -> str:
    """Return seconds in words, as in `2 min 10 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
