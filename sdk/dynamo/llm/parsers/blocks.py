"""Where a tool call ends in a text that grows: one object per call, which looks at each character once.

Each has `end(text)`, where `text` begins with what opened the call and is longer each time: the index behind the
call, or None while that can't be told. An index before the call is whole says that it is none.
"""

from __future__ import annotations

import re
from typing import Final, Protocol


class Block(Protocol):
    """See the module."""

    def end(self, text: str, /) -> int | None: ...


class Until:
    """Ends with the first `closer`."""

    def __init__(self, start: int, closer: str) -> None:
        self._at, self._closer = start, closer

    def end(self, text: str) -> int | None:
        found = text.find(self._closer, self._at)
        if found < 0:
            self._at = max(self._at, len(text) - len(self._closer) + 1)
            return None
        return found + len(self._closer)


_IN_STRING: Final = r'\\.|"'


class JsonUntil:
    """Ends with the first `closer` that stands in no JSON string.

    A string has no line break of its own, so a closer in a line of its own ends a broken one, too.
    """

    def __init__(self, start: int, closer: str) -> None:
        self._at, self._inside, self._closer = start, False, closer
        escaped = re.escape(closer)
        self._outside = re.compile(f'"|{escaped}')
        self._string = re.compile(rf"{_IN_STRING}|\n\s*{escaped}", re.DOTALL)

    def end(self, text: str) -> int | None:
        while found := (self._string if self._inside else self._outside).search(text, self._at):
            self._at = found.end()
            if found[0].endswith(self._closer):
                return self._at
            if found[0] == '"':
                self._inside = not self._inside
        self._at = max(self._at, self._seen(text))
        return None

    def _seen(self, text: str) -> int:
        """How far nothing can be found any more, whatever comes."""
        if not self._inside:
            return len(text) - len(self._closer) + 1
        line = text.rfind("\n", self._at)
        if line >= 0 and self._closer.startswith(text[line:].lstrip()):
            return line
        return len(text) - text.endswith("\\")


class JsonValue:
    """Ends with the JSON object or list that follows at once, or behind a `header` in the same line."""

    _PARTS: Final = re.compile(r'["{}\[\]]')
    _STRING: Final = re.compile(_IN_STRING, re.DOTALL)
    _TEXT: Final = re.compile(r"\S")
    _HEADER_END: Final = re.compile(r"[{\n]")

    def __init__(self, start: int, *, header: bool = False) -> None:
        self._at, self._header = start, header
        self._depth, self._inside = 0, False

    def end(self, text: str) -> int | None:
        if not self._depth:
            if (first := self._first(text)) is None:
                return None
            if text[first] not in "{[":
                return first
            self._at, self._depth = first + 1, 1
        while found := (self._STRING if self._inside else self._PARTS).search(text, self._at):
            self._at = found.end()
            if found[0] == '"':
                self._inside = not self._inside
            elif not self._inside:
                self._depth += 1 if found[0] in "{[" else -1
                if not self._depth:
                    return self._at
        self._at = max(self._at, len(text) - (self._inside and text.endswith("\\")))
        return None

    def _first(self, text: str) -> int | None:
        """Where the value begins, or what can't be one."""
        found = self._TEXT.search(text, self._at)
        if found is not None and self._header and found[0] not in "{[":
            found = self._HEADER_END.search(text, found.start())
        return None if found is None else found.start()


class PythonList:
    """Ends with the Python list of calls that the text begins with."""

    _FIRST: Final = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")
    _BEGUN: Final = re.compile(r"\[\s*(?:[A-Za-z_][\w.]*\s*)?")
    _PARTS: Final = re.compile(r"""["'(){}\[\]]""")
    _STRING: Final = {quote: re.compile(rf"\\.|{quote}", re.DOTALL) for quote in "\"'"}

    def __init__(self) -> None:
        self._at = self._depth = 0
        self._quote = ""

    def end(self, text: str) -> int | None:
        if not self._depth:
            if self._FIRST.match(text) is None:
                return None if self._BEGUN.fullmatch(text) else 1
            self._at = self._depth = 1
        while found := (self._STRING[self._quote] if self._quote else self._PARTS).search(text, self._at):
            self._at, part = found.end(), found[0]
            if self._quote:
                self._quote = "" if part == self._quote else self._quote
            elif part in "\"'":
                self._quote = part
            else:
                self._depth += 1 if part in "([{" else -1
                if not self._depth:
                    return self._at
        self._at = max(self._at, len(text) - bool(self._quote and text.endswith("\\")))
        return None
