"""Finds in the logs of a run what each part complained about last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from dynamo.cli.local.log_files import Severity, parse_lines, severity
from dynamo.operator.cluster.termination_message import chosen, gist

_TAIL_BYTES: Final = 1 << 16
_LINES: Final = 30
_CHARACTERS: Final = 300
_MOST_PARTS: Final = 64


def last_error(path: Path) -> str:
    """Return the line at a log's end that most likely says why its part failed; empty where none does."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    lines = deque((line.text for line in parse_lines(text.splitlines(), path.stem)), maxlen=_LINES)
    errors = [line for line in lines if severity(line) is Severity.ERROR]
    return gist(chosen(errors), _CHARACTERS) if errors else ""


def last_errors(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each part of a pipeline's folder that complained, workers first."""
    paths = sorted((folder / "logs").glob("*.log"), key=lambda path: (path.stem in ("etcd", "nats", "frontend"), path))
    for path in islice(paths, _MOST_PARTS):
        if said := last_error(path):
            yield path.stem, said
