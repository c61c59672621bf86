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
    """The last line that our processes end with, else the last one: libraries like to have a word after it."""
    said = [line.strip() for line in lines if line.strip()]
    return next((line for line in reversed(said) if line.startswith(FATAL)), said[-1] if said else "")


def gist(line: str, most: int) -> str:
    """A line without its time, level and logger, or the message of a JSON line; at most so many characters."""
    text = _HEAD.sub("", " ".join(line.split()))
    if text.startswith("{"):
        text = _message(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def _message(text: str) -> str:
    try:
        found = json.loads(text)
    except ValueError:  # half a line, or something else that begins so
        return text
    message = found.get("message") if isinstance(found, dict) else None
    return message if isinstance(message, str) and message else text
