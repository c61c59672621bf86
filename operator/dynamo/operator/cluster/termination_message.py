"""The line of a log that says why a process ended, and what of it is worth showing. Pure.

The operator reads the end of a container's log (its termination message), `dynamo up` what its processes wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

_HEAD: Final = re.compile(r"^\d\d:\d\d:\d\d (?:[A-Z]+ )?[\w.]+: ")
"""How our own processes begin a readable line."""
FATAL: Final = "Error: "
"""How they begin the one that says why they end."""


def chosen(lines: Sequence[str]) -> str:
    """Return the last line that our processes end with, else the last line: libraries log after it."""
    texts = [line.strip() for line in lines if line.strip()]
    return next((line for line in reversed(texts) if line.startswith(FATAL)), texts[-1] if texts else "")


def gist(line: str, most: int) -> str:
    """Return a line without time, level and logger, or a JSON line's message; at most so many characters."""
    text = _HEAD.sub("", " ".join(line.split()))
    if text.startswith("{"):
        text = _message(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def _message(text: str) -> str:
    try:
        record = json.loads(text)
    except ValueError:  # half a line, or something else that begins so
        return text
    message = record.get("message") if isinstance(record, dict) else None
    return message if isinstance(message, str) and message else text
