"""One thing that NVIDIA Dynamo's pages print, and the test that does it here."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Final

FEB, MAR, MAY, JUL, JAN = "Feb 2025", "Mar 2025", "May 2025", "Jul 2025", "Jan 2026"
ALL: Final = (FEB, MAR, MAY, JUL, JAN)
PROGRAM: Final = "dynamo-run"

TO_THE_ENGINE: Final = "up to the engine"
ANOTHER_WAY: Final = "another way"
NOTHING_TO_DO: Final = "nothing to do"
_LINE: Final = re.compile(rf"(?:echo \S+ \| )?((?:[A-Z_]+=\S+ )*)({PROGRAM}(?: .*)?)")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; what is left empty, `page.py` asks the code for."""

    name: str
    """What tests call it."""
    pages: tuple[str, ...]
    what: str
    """A command, whose words in capitals stand for the reader's own, or what a page describes."""
    test: str
    """`FILE::FUNCTION`."""
    here: str = ""
    state: str = ""

    @property
    def is_line(self) -> bool:
        """Tell whether it is a line of `dynamo-run`, which the grammar can judge."""
        return _LINE.fullmatch(self.what) is not None

    @property
    def variables(self) -> dict[str, str]:
        """Return what the line sets before the program's name."""
        match = _LINE.fullmatch(self.what)
        return dict(word.split("=", 1) for word in match[1].split()) if match else {}

    def words(self, **own: str) -> list[str]:
        """Return what follows the program's name, with the reader's own words: `CHECKOUT="/models/m"`."""
        match = _LINE.fullmatch(self.what)
        return [_filled(word, own) for word in shlex.split(match[2])[1:]] if match else []


def _filled(word: str, own: dict[str, str]) -> str:
    for name, value in own.items():
        word = word.replace(name, value)
    return word
