"""How far a batch is: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

EVERY: Final = 5.0


def bar_text(done: int, entries: int, since: int, seconds: float) -> str:
    """Return `done` of `entries`, `since` of them in the last `seconds`."""
    rate = since / seconds if seconds > 0 else 0.0
    left = f", about {(entries - done) / rate:.0f} s left" if rate else ""
    return f"batch: {done} of {entries} lines ({rate:.1f}/s{left})"


@contextlib.contextmanager
def progress(done: int, entries: int) -> Iterator[Callable[[], None]]:
    """Show how far it is; yields what to call at each line that is done."""
    if sys.stderr.isatty():
        with _bar(done, entries) as advance:
            yield advance
        return
    began = said = time.monotonic()
    count = 0

    def step() -> None:
        nonlocal count, said
        count += 1
        now = time.monotonic()
        if now - said >= EVERY:
            said = now
            print(bar_text(done + count, entries, count, now - began), file=sys.stderr, flush=True)

    yield step


@contextlib.contextmanager
def _bar(done: int, entries: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("batch"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=entries, completed=done)
        yield lambda: bar.advance(task)
