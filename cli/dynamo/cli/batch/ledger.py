"""A batch's output and what is known to be in it: nothing is lost or doubled, whenever the process ends.

Beside `output.jsonl` lies `output.jsonl.progress`: a first line that says what the batch is, then one line for each
line of the output, written after it: `NUMBER END TOKENS_IN TOKENS_OUT FAILED`, END being where that line ends. What the
output has beyond the last such line was being written when the process died: it is cut off, and asked again. The file
is locked while a run writes, and deleted when all is done.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from dynamo.cli.batch.input_lines import lines
from dynamo.cli.batch.output_lines import Outcome, Totals

SUFFIX: Final = ".progress"
_VERSION: Final = 1


class BatchError(Exception):
    """The batch can't be run; the message says why and what to do."""


@dataclass(frozen=True)
class Task:
    """Identity of a batch: a run goes on with another one's output only where these are alike."""

    input: str
    """SHA-256 of the file."""
    entries: int
    """Lines that are not blank."""
    ordered: bool
    answerer: str
    """The engine, the model and the defaults of requests, as they were given."""


def survey(file: Path, ordered: bool, answerer: str) -> Task:
    """Read `file` once."""
    digest, count = hashlib.sha256(), 0
    with file.open("rb") as data:
        while piece := data.read(1 << 20):
            digest.update(piece)
        data.seek(0)
        for _ in lines(data):
            count += 1
    return Task(digest.hexdigest(), count, ordered, answerer)


@dataclass
class Ledger:
    """An open output. `earlier` are the statistics of runs before this one."""

    path: Path
    done: set[int]
    earlier: Totals
    _output: int
    _progress: int
    _end: int = field(default=0)

    def add(self, outcome: Outcome) -> None:
        """Append one line; raises `BatchError` where the disk does not take it."""
        line = json.dumps(outcome.line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        self._end += len(line)
        record = (outcome.number, self._end, outcome.tokens_in, outcome.tokens_out, int(bool(outcome.failed)))
        try:
            _write(self._output, line)
            _write(self._progress, b"%d %d %d %d %d\n" % record)
        except OSError as error:
            raise BatchError(
                f"{self.path} can't be written: {error.strerror}; the same command goes on where this run ended"
            ) from error
        self.done.add(outcome.number)

    def finish(self) -> None:
        """Delete the progress file: all is there, nothing is left to resume."""
        os.fsync(self._output)
        progress_of(self.path).unlink(missing_ok=True)


@contextlib.contextmanager
def open_ledger(path: Path, task: Task, *, restart: bool) -> Iterator[Ledger]:
    """Open the output for this run alone, with what an earlier one has left. Raises `BatchError`."""
    with contextlib.ExitStack() as stack:
        try:
            ledger = _opened(stack, path, task, restart)
        except OSError as error:
            raise BatchError(f"{error.filename or path} can't be opened: {error.strerror}") from error
        yield ledger


def _opened(stack: contextlib.ExitStack, path: Path, task: Task, restart: bool) -> Ledger:
    progress = _locked(stack, path)
    kept = None if restart else _header(progress, task, path)
    if kept is None:
        _set_aside(path)
        os.ftruncate(progress, 0)
    output = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    stack.callback(os.close, output)
    if kept is not None:
        return _resumed(path, output, progress, kept)
    _write(progress, json.dumps({"version": _VERSION, **asdict(task)}).encode() + b"\n")
    return Ledger(path, set(), Totals(), output, progress)


def progress_of(path: Path) -> Path:
    """Return the file beside the output."""
    return path.with_name(path.name + SUFFIX)


def _locked(stack: contextlib.ExitStack, path: Path) -> int:
    """Return the progress file, open and locked by us.

    A run that ends at this moment may have deleted what we opened.
    """
    name = progress_of(path)
    while True:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BatchError(f"another run is writing {path}: wait for it, or give --batch-output") from error
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), name.stat()):
                return descriptor


def _header(progress: int, task: Task, path: Path) -> bytes | None:
    """Return the progress file where it belongs to this batch; None where there is none yet."""
    with os.fdopen(os.dup(progress), "rb") as file:
        file.seek(0)
        kept = file.read()
    first, newline, _ = kept.partition(b"\n")
    if not newline:
        return None
    try:
        header = json.loads(first)
    except ValueError:
        header = None
    if header != {"version": _VERSION, **asdict(task)}:
        what = _difference(header, task) if isinstance(header, dict) else "it can't be read"
        raise BatchError(
            f"{progress_of(path)} is of a run that was interrupted, and of another batch ({what}): run that one again "
            "to its end, or start over with --batch-restart"
        )
    return kept


def _difference(header: dict[str, object], task: Task) -> str:
    names = {"input": "the input has changed", "ordered": "--batch-ordered differs"}
    for name, value in asdict(task).items():
        if header.get(name) != value:
            return names.get(name, f"{name} was {header.get(name)!r}, is {value!r}")
    return "another version wrote it"


def _set_aside(path: Path) -> None:
    """Move an output that is complete to `.bak`: it is not overwritten at once."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size:
            os.replace(path, path.with_name(path.name + ".bak"))


def _resumed(path: Path, output: int, progress: int, kept: bytes) -> Ledger:
    """Cut both files to what is whole in both."""
    done: set[int] = set()
    totals = Totals()
    header = kept.index(b"\n") + 1
    end, good = 0, header
    size = os.fstat(output).st_size
    for record in kept[header:].splitlines(keepends=True):
        fields = _fields(record)
        if fields is None or not end < fields[1] <= size or not _is_line(output, end, fields[1]):
            break
        number, end, tokens_in, tokens_out, failed = fields
        good += len(record)
        done.add(number)
        totals.entries += 1
        totals.tokens_in += tokens_in
        totals.tokens_out += tokens_out
        totals.failed += failed
    os.ftruncate(output, end)
    os.ftruncate(progress, good)
    return Ledger(path, done, totals, output, progress, end)


def _fields(record: bytes) -> tuple[int, int, int, int, int] | None:
    if not record.endswith(b"\n"):
        return None
    try:
        number, end, tokens_in, tokens_out, failed = map(int, record.split())
    except ValueError:
        return None
    return number, end, tokens_in, tokens_out, failed


def _is_line(output: int, start: int, end: int) -> bool:
    """Tell whether it is a whole line: a crash of the machine may keep a file's length and lose its content."""
    return os.pread(output, 1, start) == b"{" and os.pread(output, 2, end - 2) == b"}\n"


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
