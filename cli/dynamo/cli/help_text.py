"""Help that was laid out by hand, folded to 80 columns. Pure."""

from __future__ import annotations

import re
import textwrap
from typing import Final

WIDTH: Final = 76
"""Of a line; click indents it by two more."""
_COLUMNS: Final = re.compile(r"(?P<left>\s*\S.*?\s{2,})(?P<right>\S.*)")
_WIDEST_LEFT: Final = 44


def folded(text: str, width: int = WIDTH) -> str:
    """Return the text with long lines folded: an explanation stays in its column, or goes below its command."""
    return "\n".join(line for whole in text.split("\n") for line in _lines(whole, width))


def _lines(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    if (columns := _COLUMNS.fullmatch(line)) is None:
        return textwrap.wrap(
            line, width, initial_indent="", subsequent_indent=indent and indent + "  ", break_on_hyphens=False
        )
    left, right = columns["left"], columns["right"]
    if len(left) <= _WIDEST_LEFT:
        return _wrapped(left, right, " " * len(left), width)
    return [left.rstrip(), *_wrapped(indent + "      ", right, indent + "      ", width)]


def _wrapped(first: str, text: str, others: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
