"""A command's help taken apart: prose, and blocks of lines such as its examples.

Pure. `commands_page` writes docs/reference/cli.md of it; a test asks of every example whether the real parsers
understand it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

_BREAK: Final = re.compile(r"\n\s*\n")
_REMARK: Final = re.compile(r" {2,}(?=\S)")
_TYPED: Final = re.compile(r"(?:[A-Z_]+=\S+ )*(?:dynamo|python|curl|echo|eval|helm)\b")


@dataclass(frozen=True)
class Prose:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Block:
    """Indented lines under a title, which may be empty."""

    title: str
    lines: tuple[str, ...]

    @property
    def typed(self) -> bool:
        """Tell whether a shell is meant to read them."""
        return all(_TYPED.match(line) for line in self.lines)


def example(line: str) -> tuple[str, str]:
    """Split a line: `dynamo ps what runs` is a command and a remark on it."""
    command, *rest = _REMARK.split(line.strip(), maxsplit=1)
    return command, rest[0].removeprefix("# ") if rest else ""


def parts(text: str) -> Iterator[Prose | Block]:
    r"""Yield the help or the epilogue of a click command; after `\b` click leaves a paragraph's lines as they are."""
    for paragraph in _BREAK.split(inspect.cleandoc(text)):
        first, _, kept = paragraph.partition("\n")
        if first.strip() == "\b":
            yield from _kept(kept.splitlines())
        elif paragraph.strip():
            yield Prose(" ".join(paragraph.split()))


def _kept(lines: list[str]) -> Iterator[Prose | Block]:
    before: list[str] = []
    for indented, run in groupby(lines, key=lambda line: line.startswith("  ")):
        if not indented:
            before = list(run)
            continue
        *said, title = before or [""]
        if said:
            yield Prose(" ".join(said))
        yield Block(title.strip(), tuple(line[2:].rstrip() for line in run))
        before = []
    if before:
        yield Prose(" ".join(before))
