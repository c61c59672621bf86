"""`Golden`: a text that changes only where somebody looks. A variant is kept as what is different from another one."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Final

_AROUND: Final = 2
"""Lines around a difference by which a reader finds its place."""
_HUNK: Final = re.compile(r"@@ -(\d+)(,0)?")


class Golden:
    """`NAME.yaml` of a folder, or, where it is a variant of another one, `NAME.diff`."""

    def __init__(self, folder: Path, name: str, of: str = "") -> None:
        self._base = folder / f"{of}.yaml" if of else None
        self._file = folder / (f"{name}.diff" if of else f"{name}.yaml")

    def holds(self, text: str) -> bool:
        """Tell whether the text is the kept one; with `GOLDEN` in the environment, keep this one first."""
        kept = text if self._base is None else self._difference(self._base, text)
        if os.environ.get("GOLDEN"):
            self._file.write_text(kept, encoding="utf-8")
        return self._file.read_text("utf-8") == kept and self.text() == text

    def text(self) -> str:
        """The kept text, whole."""
        kept = self._file.read_text("utf-8")
        return kept if self._base is None else patched(self._base.read_text("utf-8"), kept)

    def _difference(self, base: Path, text: str) -> str:
        before, after = base.read_text("utf-8").splitlines(True), text.splitlines(True)
        return "".join(difflib.unified_diff(before, after, base.name, self._file.stem, n=_AROUND))


def patched(text: str, difference: str) -> str:
    """Return the text with a difference, whose every line must fit."""
    lines, results, at = text.splitlines(True), list[str](), 0
    for line in difference.splitlines(True)[2:]:
        mark, content = line[0], line[1:]
        if mark == "@":
            hunk = _HUNK.match(line)
            assert hunk, line
            start = int(hunk[1]) - (0 if hunk[2] else 1)
            results += lines[at:start]
            at = start
        elif mark == "+":
            results.append(content)
        else:
            assert lines[at] == content, f"line {at + 1} is {lines[at]!r}, not {content!r}"
            results += [content] if mark == " " else []
            at += 1
    return "".join(results + lines[at:])
