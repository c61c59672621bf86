"""Text of strangers, made fit for a log line and a terminal: bounded, on one line, without control characters. Pure.

`logs.py` writes with it; `dynamo logs` and `dynamo up` show with it what other programs wrote.
"""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: line breaks, the beginning of a terminal's commands
    "\u2028\u2029"  # line breaks for some who read lines
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # turn what follows around
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"  # seen by nobody
)
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LARGEST_CHARACTER: Final = 4
"""Bytes of UTF-8."""


def visible(text: str, *, tabs: bool = False) -> str:
    """Write control characters as `\\n`, `\\x1b`, `\\u2028`; with `tabs` those stay as they are."""
    if _CONTROL.search(text) is None:
        return text
    return _CONTROL.sub(lambda match: match[0] if tabs and match[0] == "\t" else _escape(match[0]), text)


def _escape(character: str) -> str:
    number = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def visible_json(text: str) -> str:
    """Write the same within JSON that is written already, so that it reads back as it was."""
    return _CONTROL.sub(lambda match: _json_escape(match[0]), text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def one_line(text: str, most: int) -> str:
    """Cut a text to `most` bytes on one line, and say how much was left out."""
    shown = visible(text[:most])
    if len(text) <= most and len(shown) * _LARGEST_CHARACTER <= most:
        return shown
    raw = shown.encode("utf-8", "replace")
    if len(text) <= most and len(raw) <= most:
        return shown
    return f"{raw[:most].decode('utf-8', 'ignore')}… (of {len(text)} characters)"


def indented(text: str, most: int) -> str:
    """Indent the lines of a traceback, so that none looks like a log line; the middle is left out where it is long."""
    if len(text) > most:
        text = f"{text[: most // 2]}\n… ({len(text) - most} characters are left out)\n{text[-(most // 2) :]}"
    return "\n".join(f"  {visible(line)}" for line in text.split("\n"))
