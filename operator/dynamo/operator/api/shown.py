"""Texts as long as a refusal may quote them: `shown(value)`, `shown_path(path)`, `shown_message(message)`. Pure.

A file or an object may be megabytes of anything, and what is wrong with it is read in a terminal or in a status.
"""

from __future__ import annotations

import reprlib
from typing import Any, Final

VALUE_CHARACTERS: Final = 60
PATH_CHARACTERS: Final = 240
MESSAGE_CHARACTERS: Final = 800
TEXT_CHARACTERS: Final = 16_000
"""Of all problems with a file together."""
_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = VALUE_CHARACTERS


def shown(value: Any) -> str:
    """Return a value as a sentence quotes it: whole where it is short, else its beginning."""
    if isinstance(value, str):
        return _begun(repr(value[: VALUE_CHARACTERS + 1]), VALUE_CHARACTERS)
    try:
        return _begun(_SHORT.repr(value), VALUE_CHARACTERS)
    except ValueError:  # Python writes no integer of thousands of digits
        return "a number of thousands of digits"


def shown_text(text: str, most: int = VALUE_CHARACTERS) -> str:
    """Return a text without quotes around it, or its beginning; what no terminal should get is escaped."""
    return _begun(_printable(text[: most + 1]), most)


def shown_path(path: str) -> str:
    """Return a field's path; of a long path its beginning and its end, which say most."""
    half = PATH_CHARACTERS // 2
    text = _printable(path if len(path) <= PATH_CHARACTERS else path[:half] + path[-half:])
    return text if max(len(path), len(text)) <= PATH_CHARACTERS else f"{text[: half - 1]}…{text[-half:]}"


def shown_message(message: str) -> str:
    """Return a sentence, or its beginning."""
    return _begun(message, MESSAGE_CHARACTERS)


def _printable(text: str) -> str:
    """Return a text with line breaks and control characters as Python writes them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _begun(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
