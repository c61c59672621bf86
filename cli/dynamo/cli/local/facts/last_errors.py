"""Finds in the logs of a run what each part complained about last."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from dynamo.cli.local.log_files import LogLine, Severity, parse_lines, severity
from dynamo.operator.cluster.termination_message import chosen, gist

_TAIL_BYTES: Final = 1 << 16
_LINES: Final = 30
_CHARACTERS: Final = 300
_MOST_PARTS: Final = 64


def last_error(path: Path) -> str:
    """Return the line at a log's end that most likely says why its part failed; empty where none does."""
    errors = [line for line in _tail(path, _LINES) if severity(line) is Severity.ERROR]
    return gist(chosen(errors), _CHARACTERS) if errors else ""


def last_complaint(path: Path) -> str:
    """Return the last warning or error of a log: what a part that answers nobody did last."""
    said = [line for line in _tail(path, _LINES) if (severity(line) or Severity.INFO) > Severity.INFO]
    return gist(said[-1], _CHARACTERS) if said else ""


def last_matching(paths: Iterable[Path], pattern: re.Pattern[str]) -> re.Match[str] | None:
    """Return the youngest match of a pattern in the ends of some logs."""
    stamped = (line for path in islice(paths, _MOST_PARTS) for line in _lines(path))
    matches = ((line.at, match) for line in stamped if (match := pattern.search(line.text)))
    return max(matches, key=lambda pair: pair[0], default=(None, None))[1]


def _tail(path: Path, most: int) -> list[str]:
    return [line.text for line in deque(_lines(path), maxlen=most)]


def _lines(path: Path) -> Iterator[LogLine]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return
    yield from parse_lines(text.splitlines(), path.stem)


def last_errors(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each part of a pipeline's folder that complained, workers first."""
    paths = sorted((folder / "logs").glob("*.log"), key=lambda path: (path.stem in ("etcd", "nats", "frontend"), path))
    for path in islice(paths, _MOST_PARTS):
        if said := last_error(path):
            yield path.stem, said
