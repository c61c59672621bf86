"""Why llama.cpp refuses a model: its exception says nothing of that, only what it writes to stderr."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

_REASON: Final = re.compile(r"error loading model: *(?P<why>\S.*)")
_ERROR: Final = re.compile(r"^[\d.]+ E +(?P<why>\S.*)")
_STDERR: Final = 2
_MOST_BYTES: Final = 1 << 20
_MOST_CHARACTERS: Final = 300


def load_again(load: Callable[[], Any], error: Exception) -> Any:
    """Load once more, with stderr caught; raises an error with llama.cpp's own reason in the place of `error`'s text.

    The first load writes where it always does: what it says before a crash must not be lost.
    """
    with tempfile.TemporaryFile() as said:
        try:
            with _caught(said):
                return load()
        except Exception as second:
            said.seek(0)
            text = said.read(_MOST_BYTES).decode(errors="replace")
            raise RuntimeError(reason_in(text) or str(error)) from second


def reason_in(text: str) -> str:
    """Return why a model isn't loaded, by llama.cpp's lines; empty where none tells."""
    lines = text.splitlines()
    reason = next((match["why"] for line in lines if (match := _REASON.search(line))), "")
    last = next((match["why"] for line in reversed(lines) if (match := _ERROR.match(line))), "")
    if reason.startswith("unknown model architecture"):
        reason += ": pip install -U xllamacpp, or take another model or engine"
    return (reason or last)[:_MOST_CHARACTERS]


@contextlib.contextmanager
def _caught(into: IO[bytes]) -> Iterator[None]:
    """Send what this process writes to stderr into a file for a moment."""
    kept = os.dup(_STDERR)
    try:
        os.dup2(into.fileno(), _STDERR)
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
