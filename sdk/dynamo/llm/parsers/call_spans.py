"""Where a tool call ends in a text that comes in pieces: one object per call, which looks at each character once.

Each has `end(text, at)`. The first piece has what opened the call at `at`; of the others all from `at` on is new. The
answer is the index in that piece behind the call, or None while it can't be told. An index before the call is whole
says that it is none; it is negative where that lies in a piece before.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

LONGEST_NAME: Final = 256
"""Characters that a tool's name has at most; what has more is text."""
LONGEST_CODE: Final = 16_384
"""Characters outside of strings that a list of calls in Python has at most: parsing them takes some 10 ms."""
_LONGEST_SPACE: Final = 128


class Block(Protocol):
    """Finds the end of one call."""

    def end(self, text: str, at: int, /) -> int | None: ...


class Until:
    """Ends with the first `closer`."""

    def __init__(self, start: int, closer: str) -> None:
        self._skip, self._closer = start, closer
        self._carry = ""
        """The end of what was seen, in which a closer may have begun."""

    def end(self, text: str, at: int) -> int | None:
        carried, text, at = _carried(self._carry, text, at + self._skip)
        self._skip = 0
        end = text.find(self._closer, at)
        if end >= 0:
            return end + len(self._closer) - carried
        self._carry = text[max(at, len(text) - len(self._closer) + 1) :]
        return None


def _carried(carry: str, text: str, at: int) -> tuple[int, str, int]:
    """Put what was kept before a new piece: by how much its indexes move, the text, and where to begin."""
    return (len(carry) - at, carry + text[at:], 0) if carry else (0, text, at)


_IN_STRING: Final = r'\\.|"'


class JsonUntil:
    """Ends with the first `closer` that stands in no JSON string.

    A string has no line break of its own, so a closer in a line of its own ends a broken one, too.
    """

    def __init__(self, start: int, closer: str) -> None:
        self._skip, self._inside, self._closer = start, False, closer
        self._carry = ""
        escaped = re.escape(closer)
        self._outside = re.compile(f'"|{escaped}')
        self._string = re.compile(rf"{_IN_STRING}|\n[^\S\n]*+{escaped}", re.DOTALL)

    def end(self, text: str, at: int) -> int | None:
        carried, text, at = _carried(self._carry, text, at + self._skip)
        self._skip = 0
        while match := (self._string if self._inside else self._outside).search(text, at):
            at = match.end()
            if match[0].endswith(self._closer):
                return at - carried
            if match[0] == '"':
                self._inside = not self._inside
        self._carry = self._rest(text, at)
        return None

    def _rest(self, text: str, at: int) -> str:
        """Return what a marker or an escape may have begun in; of the space that indents a closer, nothing."""
        if not self._inside:
            return text[max(at, len(text) - len(self._closer) + 1) :]
        line = text.rfind("\n", at)
        if line >= 0 and self._closer.startswith(begun := text[line:].lstrip()):
            return "\n" + begun
        return "\\" if text.endswith("\\", at) else ""


class JsonValue:
    """Ends with the JSON object or list that follows at once, or behind a `header` in the same line."""

    _PARTS: Final = re.compile(r'["{}\[\]]')
    _STRING: Final = re.compile(_IN_STRING, re.DOTALL)
    _TEXT: Final = re.compile(r"\S")
    _HEADER_END: Final = re.compile(r"[{\n]")

    def __init__(self, start: int, *, header: bool = False) -> None:
        self._skip, self._header, self._in_header = start, header, False
        self._depth, self._inside = 0, False
        self._carry = ""

    def end(self, text: str, at: int) -> int | None:
        carried, text, at = _carried(self._carry, text, at + self._skip)
        self._skip = 0
        if not self._depth:
            if (first := self._first(text, at)) is None:
                return None
            if text[first] not in "{[":
                return first - carried
            at, self._depth = first + 1, 1
        while match := (self._STRING if self._inside else self._PARTS).search(text, at):
            at = match.end()
            if match[0] == '"':
                self._inside = not self._inside
            elif not self._inside:
                self._depth += 1 if match[0] in "{[" else -1
                if not self._depth:
                    return at - carried
        self._carry = "\\" if self._inside and text.endswith("\\", at) else ""
        return None

    def _first(self, text: str, at: int) -> int | None:
        """Return where the value begins, or what can't be one."""
        if not self._in_header:
            match = self._TEXT.search(text, at)
            if match is None or not self._header or match[0] in "{[":
                return None if match is None else match.start()
            at, self._in_header = match.start(), True
        match = self._HEADER_END.search(text, at)
        return None if match is None else match.start()


class PythonList:
    """Ends with the Python list of calls that the text begins with."""

    _SPACE: Final = rf"\s{{0,{_LONGEST_SPACE}}}+"
    _NAME: Final = rf"[A-Za-z_][\w.]{{0,{LONGEST_NAME - 1}}}+"
    _FIRST: Final = re.compile(rf"\[{_SPACE}{_NAME}{_SPACE}\(")
    _BEGUN: Final = re.compile(rf"\[{_SPACE}(?:{_NAME}{_SPACE})?")
    _PARTS: Final = re.compile(r"""["'(){}\[\]]""")
    _STRING: Final = {quote: re.compile(rf"\\.|{quote}", re.DOTALL) for quote in "\"'"}

    def __init__(self) -> None:
        self._depth, self._code = 0, 0
        self._quote = self._carry = ""

    def end(self, text: str, at: int) -> int | None:
        carried, text, at = _carried(self._carry, text, at)
        self._carry = ""
        if not self._depth:
            if self._FIRST.match(text, at) is None:
                return self._begun(text, at, carried)
            at, self._depth = at + 1, 1
        while match := (self._STRING[self._quote] if self._quote else self._PARTS).search(text, at):
            if (left := self._left(match.end() - at)) is not None:
                return at + left - carried
            at, part = match.end(), match[0]
            if self._quote:
                self._quote = "" if part == self._quote else self._quote
            elif part in "\"'":
                self._quote = part
            else:
                self._depth += 1 if part in "([{" else -1
                if not self._depth:
                    return at - carried
        if (left := self._left(len(text) - at)) is not None:
            return at + left - carried
        self._carry = "\\" if self._quote and text.endswith("\\", at) else ""
        return None

    def _begun(self, text: str, at: int, carried: int) -> int | None:
        """Return where the list begins; the beginning is short, so it is looked at again with each piece."""
        if self._BEGUN.fullmatch(text, at):
            self._carry = text[at:]
            return None
        return at + 1 - carried

    def _left(self, more: int) -> int | None:
        """Count characters of code; the number of those that there was room for where that is too few."""
        if self._quote:
            return None
        if self._code + more > LONGEST_CODE:
            return LONGEST_CODE - self._code
        self._code += more
        return None
