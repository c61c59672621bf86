"""Logging of every deployable: readable lines on stderr, or JSON lines for collectors.

`DYN_LOG` filters by module as NVIDIA Dynamo's does: `info,dynamo.llm=debug` (`::` may
stand for `.`, so that `dynamo_runtime::…` of old scripts is no error).
`DYN_LOGGING_JSONL=1` writes one JSON object per line. `NO_COLOR` is honoured.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Final, TextIO

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.printable import indented, one_line, visible_json
from dynamo.runtime.process.tracing import CURRENT, trace_ids

TRACE: Final = 5
LEVELS: Final = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 10,
}
_ROOT: Final = "dynamo"
_COLORS: Final = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "31;1"}
_TRUE: Final = ("1", "true", "yes", "on")
LONGEST_MESSAGE: Final = 8 << 10
"""Bytes of a message."""
_LONGEST_TRACEBACK: Final = 32 << 10
_USERINFO: Final = re.compile(r"(?<=://)[^/@\s]*@")


def parse_filter(text: str) -> dict[str, int]:
    """Read `info,dynamo.llm=debug` as levels by logger name; `""` holds the one without a name."""
    levels: dict[str, int] = {}
    for part in (p.strip() for p in text.split(",")):
        if not part:
            continue
        name, given, level = part.rpartition("=")
        if level.strip().lower() not in LEVELS:
            raise InvalidArgument(f"DYN_LOG: {level.strip()!r} is no level; use one of {', '.join(LEVELS)}")
        levels[name.strip().replace("::", ".") if given else ""] = LEVELS[level.strip().lower()]
    return levels


def without_secrets(text: str) -> str:
    """Return a URL, or a text with URLs, without user names and passwords."""
    return _USERINFO.sub("", text)


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "target": record.name,
            "message": _cut(record.getMessage(), LONGEST_MESSAGE),
        }
        if (ids := trace_ids(CURRENT.get())) is not None:
            line["trace_id"], line["span_id"] = ids
        if record.exc_info:
            line["exception"] = _cut(self.formatException(record.exc_info), _LONGEST_TRACEBACK)
        return visible_json(json.dumps(line, ensure_ascii=False, default=str))


class Readable(logging.Formatter):
    """`10:02:51 WARNING runtime.registry: …`; the level only where it is not INFO.

    A record is one line, whatever a stranger wrote into its message; a traceback's lines are indented.
    """

    def __init__(self, color: bool) -> None:
        super().__init__()
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f" {record.levelname}"
        if level and self._color and (code := _COLORS.get(record.levelname)):
            level = f" \x1b[{code}m{record.levelname}\x1b[0m"
        where = record.name.removeprefix(f"{_ROOT}.")
        message = one_line(record.getMessage(), LONGEST_MESSAGE)
        line = f"{_time(record).astimezone():%H:%M:%S}{level} {where}: {message}"
        if (ids := trace_ids(CURRENT.get())) is not None:
            line += f" trace_id={ids[0]}"
        if record.exc_info:
            line += "\n" + indented(self.formatException(record.exc_info), _LONGEST_TRACEBACK)
        return line


def levels(verbosity: int, env: Mapping[str, str]) -> dict[str, int]:
    """Return levels by logger name: `-v`, `-vv` set the general ones, `DYN_LOG` those it names, the flag wins."""
    general = {
        0: {"": logging.WARNING, _ROOT: logging.INFO},
        1: {"": logging.INFO, _ROOT: logging.DEBUG},
    }.get(verbosity, {"": logging.DEBUG, _ROOT: TRACE})
    named = parse_filter(env.get("DYN_LOG", ""))
    if "" in named:
        everything = named.pop("")
        if verbosity <= 0:
            general = {"": everything, _ROOT: everything}
    return {**general, **named}


def configure_logging(
    verbosity: int = 0, *, env: Mapping[str, str] | None = None, stream: TextIO | None = None
) -> None:
    """Set up the process's logging; called once by each deployable."""
    env = os.environ if env is None else env
    stream = sys.stderr if stream is None else stream
    logging.addLevelName(TRACE, "TRACE")
    handler = logging.StreamHandler(stream)
    if env.get("DYN_LOGGING_JSONL", "").lower() in _TRUE:
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(Readable(_may_color(env, stream)))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    for name, level in levels(verbosity, env).items():
        logging.getLogger(name).setLevel(level)


def _may_color(env: Mapping[str, str], stream: TextIO) -> bool:
    off = env.get("NO_COLOR") or env.get("DYN_SDK_DISABLE_ANSI_LOGGING", "").lower() in _TRUE
    return not off and stream.isatty()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… (of {len(text)} characters)"


def _time(record: logging.LogRecord) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
