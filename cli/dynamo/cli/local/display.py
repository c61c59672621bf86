"""What `dynamo up` shows: one status line per part while it starts, then logs with their part's name.

Two displays of the same calls: a live table on a terminal, plain lines elsewhere.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from dynamo.cli.local.log_files import Severity
from dynamo.cli.local.process_lifecycle import State
from dynamo.runtime.process.printable import visible

_REMIND_EVERY = 5.0
_COLOURS = ("cyan", "green", "magenta", "blue", "yellow")


class Row(Protocol):
    """Part of a run, as a display needs to know it."""

    label: str

    @property
    def state(self) -> State: ...
    @property
    def seconds(self) -> float: ...
    @property
    def note(self) -> str: ...
    @property
    def doing(self) -> str: ...


class Display(Protocol):
    """Display in which a run speaks to its user."""

    def parts(self, rows: Sequence[Row]) -> None:
        """Show the parts' states, again and again; nothing is shown once all have settled."""

    def changed(self, row: Row) -> None:
        """Show that a part came into a new state."""

    def log(self, label: str, text: str, severity: Severity) -> None:
        """Show a line that a part wrote."""

    def say(self, text: str) -> None:
        """Show a line of our own."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def words(row: Row) -> str:
    """Say one part's state, without the reason."""
    after = f" after {row.seconds:.1f} s" if row.state is State.READY else ""
    return f"{_WORDS.get(row.state, row.state.value)}{after}"


class Reasons:
    """The reasons that were shown of each part: what ends for one reason twice says it once."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def sentence(self, row: Row) -> str:
        """Say one part's state in words, with a reason that is new."""
        if not row.note:
            return words(row)
        again = self._shown.get(row.label) == row.note
        self._shown[row.label] = row.note
        return f"{words(row)}: {'the same again' if again else visible(row.note)}"


_WORDS = {State.BACKING_OFF: "stopped, starts again", State.FAILED: "will not start", State.STOPPED: "stopped"}


class PlainDisplay:
    """Lines, one per change: for pipes, files and CI."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._told: dict[str, int] = {}
        self._reasons = Reasons()

    def parts(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.state is not State.STARTING:
                self._told.pop(row.label, None)
                continue
            due = int(row.seconds // _REMIND_EVERY)
            if due > self._told.get(row.label, 0):
                self._told[row.label] = due
                doing = f": {visible(row.doing)}" if row.doing else ""
                self.say(f"{row.label}: still starting ({row.seconds:.0f} s){doing}")

    def changed(self, row: Row) -> None:
        if row.state is not State.STOPPING:  # the run says what it stops
            self.say(f"{row.label}: {self._reasons.sentence(row)}")

    def log(self, label: str, text: str, severity: Severity) -> None:
        self.say(f"{label} | {visible(text, tabs=True)}")

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # whoever read us is gone; what serves goes on
            self._out.write(text + "\n")
            self._out.flush()

    def close(self) -> None:
        """Do nothing: there is nothing to restore."""


class OwnLinesDisplay(PlainDisplay):
    """Plain lines without those of the parts, which have bounded logs of their own: for a file that nobody turns."""

    def log(self, label: str, text: str, severity: Severity) -> None:
        """Show nothing."""


class LiveDisplay:
    """A table that moves, with lines scrolling above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live: Live | None = None
        self._spinner = Spinner("dots")
        self._labels: dict[str, str] = {}
        self._reasons = Reasons()

    def parts(self, rows: Sequence[Row]) -> None:
        if all(row.state in (State.READY, State.FAILED, State.STOPPED) for row in rows):
            self._end()
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self._table(rows), refresh=True)

    def _table(self, rows: Sequence[Row]) -> RenderableType:
        moving = [row for row in rows if row.state not in (State.READY, State.STOPPED, State.FAILED)]
        table = Table.grid(padding=(0, 1))
        for row in moving:
            doing = f": {visible(row.doing)}" if row.doing else ""
            text = Text(f"{words(row)} ({row.seconds:.0f} s){doing}", overflow="ellipsis", no_wrap=True)
            table.add_row(self._spinner, row.label, text)
        return Group(table)

    def changed(self, row: Row) -> None:
        if row.state in (State.READY, State.FAILED, State.BACKING_OFF, State.STOPPED):
            mark, style = {State.READY: ("+", "green"), State.STOPPED: ("-", "dim")}.get(row.state, ("!", "red"))
            self._print(Text.assemble((mark, style), " ", row.label, " ", self._reasons.sentence(row)))

    def log(self, label: str, text: str, severity: Severity) -> None:
        style = self._labels.setdefault(label, _COLOURS[len(self._labels) % len(_COLOURS)])
        body = {Severity.ERROR: "red", Severity.WARNING: "yellow"}.get(severity, "")
        self._print(Text.assemble((f"{label} | ", style), (visible(text, tabs=True), body)))

    def say(self, text: str) -> None:
        self._print(Text(text))

    def _print(self, text: Text) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone; what serves goes on
            self._console.print(text, soft_wrap=True)

    def _end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def close(self) -> None:
        self._end()


def make_display(out: TextIO) -> Display:
    """Return the live display on a terminal that can, else the plain one."""
    console = Console(file=out, highlight=False)
    return LiveDisplay(console) if console.is_terminal and not console.is_dumb_terminal else PlainDisplay(out)
