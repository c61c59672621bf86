"""What went wrong in a user's file, told by that file's own lines: no frame of ours, no traceback unless asked for.

A frame is the user's where its code lies in the file's folder and is neither ours nor an installed package's.
"""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, NamedTuple

from dynamo.llm.serving.handler_io import Mistake

_INSTALLED: Final = ("site-packages", "dist-packages")
_OURS: Final = "dynamo."
_LONGEST: Final = 400


class CodeLine(NamedTuple):
    """A line of the user's code."""

    file: str
    """As the user knows it: relative to the engine's folder."""
    line: int
    function: str
    code: str
    """The line itself, stripped; empty where it can't be read."""

    def __str__(self) -> str:
        where = "" if self.function == "<module>" else f" in {self.function}"
        return f"{self.file}:{self.line}{where}"


class Home:
    """The file and its folder: tells the user's frames from others."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._folder = file.parent

    def owns(self, filename: str, module: str = "") -> bool:
        """Tell whether code of that file is the user's."""
        path = Path(filename)
        if path == self.file:
            return True
        if module.startswith(_OURS) or not path.is_relative_to(self._folder):
            return False
        return not any(part in _INSTALLED for part in path.parts)

    def place(self, frame: FrameType, line: int) -> CodeLine | None:
        """Return where a frame stands; None for a frame that is not the user's."""
        filename = frame.f_code.co_filename
        if not self.owns(filename, str(frame.f_globals.get("__name__", ""))):
            return None
        return self.at(filename, line, frame.f_code.co_name)

    def at(self, filename: str, line: int, function: str = "<module>") -> CodeLine:
        """Return a line of one of the user's files."""
        path = Path(filename)
        shown = path.relative_to(self._folder) if path.is_relative_to(self._folder) else path
        return CodeLine(str(shown), line, function, linecache.getline(filename, line).strip())

    def innermost(self, frame: FrameType | None) -> CodeLine | None:
        """Return the user's line that a stack is in, or that called what it is in."""
        while frame is not None:
            if (place := self.place(frame, frame.f_lineno)) is not None:
                return place
            frame = frame.f_back
        return None

    def raised(self, trace: TracebackType | None) -> CodeLine | None:
        """Return the innermost of the user's lines that an exception came through."""
        line = None
        while trace is not None:
            line = self.place(trace.tb_frame, trace.tb_lineno) or line
            trace = trace.tb_next
        return line


def explained(error: BaseException, home: Home) -> str:
    """Say in one line where in the user's file it was, what, and the code that did it."""
    if isinstance(error, Mistake):
        return str(error)
    what = _what(error)
    if isinstance(error, SyntaxError) and error.filename and home.owns(error.filename):
        place: CodeLine | None = home.at(error.filename, error.lineno or 1)
        what = f"{type(error).__name__}: {error.msg}"
    else:
        place = home.raised(error.__traceback__)
    if place is None:
        return f"{home.file.name}: {what}"
    code = f" ({place.code})" if place.code else ""
    return f"{place}: {what}{code}"


def _what(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + " …"
    summary = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        summary += "; install it into the environment that runs this worker"
    return summary


def users_traceback(error: BaseException, home: Home) -> str:
    """Return the traceback from the user's first frame on, for those who ask with -v."""
    trace = error.__traceback__
    while trace is not None and home.place(trace.tb_frame, trace.tb_lineno) is None:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
