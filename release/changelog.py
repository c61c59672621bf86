"""CHANGELOG.md: what has a version, and what hasn't yet. Pure."""

from __future__ import annotations

import datetime
import re
from typing import Final

_UNRELEASED: Final = "## [Unreleased]\n"
_HEADING: Final = re.compile(r"^## \[(.+?)\].*\n", re.MULTILINE)


def cut(text: str, version: str, day: datetime.date) -> str:
    """Return the text with what was unreleased under a heading of its version; ValueError where nothing was."""
    if not _section(text, "Unreleased").strip():
        raise ValueError("CHANGELOG.md has nothing under [Unreleased]")
    return text.replace(_UNRELEASED, f"{_UNRELEASED}\n## [{version}] - {day.isoformat()}\n", 1)


def notes_of(text: str, version: str) -> str:
    """Return what a version brings, else what is unreleased: the text of a release's page."""
    return _section(text, version) or _section(text, "Unreleased")


def _section(text: str, name: str) -> str:
    """Return what stands under a heading, without it; empty where there is none."""
    headings = [*_HEADING.finditer(text)]
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        if heading[1] == name:
            return text[heading.end() : following.start() if following else len(text)].strip("\n") + "\n"
    return ""
