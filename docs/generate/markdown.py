"""Markdown as every generated page writes it: lines of at most 120 characters, cells of at most 160."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

LINE: Final = 120
CELL: Final = 160
COLUMNS: Final = 5


def prose(text: str, *, indent: str = "") -> str:
    """Return a paragraph in lines of at most `LINE` characters; lines after the first begin with `indent`."""
    return textwrap.fill(
        " ".join(text.split()), LINE, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def code(text: object) -> str:
    """Return a text as code; nothing for an empty one."""
    return f"`{text}`" if text not in ("", None) else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; raises `ValueError` for one that readers can't read: too many columns, or a cell too long."""
    if len(head) > COLUMNS:
        raise ValueError(f"{len(head)} columns, but at most {COLUMNS} can be read: {head}")
    lines = [head, ["---"] * len(head), *([cell(text) for text in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def cell(text: str) -> str:
    """Return a cell; raises `ValueError` for one that should be a section."""
    made = " ".join(text.split()).replace("|", "\\|")
    if len(made) > CELL:
        raise ValueError(f"a cell of {len(made)} characters, but at most {CELL} can be read: {made}")
    return made


def anchor(title: str) -> str:
    """Return the name that a title of a page has in links."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def link(title: str, page: str = "") -> str:
    """Return a link to a title that is code."""
    return f"[`{title}`]({page}#{anchor(title)})"


def page(parts: Iterable[str]) -> str:
    """Return the parts of a page, one empty line between them."""
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def write(folder: Path, pages: Iterable[tuple[str, str]]) -> None:
    """Write pages by name into a folder."""
    for name, text in pages:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
