"""Grammars in llama.cpp's form (GBNF), told as Lark for llguidance: llama.cpp's own parser never sees a client's text.

That parser recurses once per parenthesis and kills its process. What it makes is no better: an ambiguous grammar of
sixty bytes (`root ::= "a" root "b" | "a" root "c"`) doubles llama.cpp's stacks with each token, on the thread that
serves everybody. llguidance parses with bounds. Pure; `checks.py` asks it, in a process of its own.

A rule that doesn't come back to itself becomes a terminal, which is matched as one piece and as far as it goes; the
others become rules.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from dynamo.runtime.errors import InvalidArgument

MOST_LEVELS: Final = 200
"""Parentheses within each other, and rules that a rule needs one within the other."""
MOST_CIRCULAR: Final = 400
"""Rules that come back to themselves: how deep one goes into the other isn't told before they are compiled."""
MOST_REPEATS: Final = 2000
"""llama.cpp's own bound for one `{n,m}`."""
MOST_PARTS: Final = 50_000
"""Parts of the rules once repetitions are written out."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_SPACE: Final = re.compile(r"(?:[ \t]+|#[^\r\n]*)+")
_LINES: Final = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)+")
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([\"\\\[\]nrt]))")
_PLAIN: Final = {"n": "\n", "r": "\r", "t": "\t"}
_TOKEN: Final = re.compile(r"<\[[0-9]{1,9}\]>")
_BRACES: Final = re.compile(r"\{\s*([0-9]{1,9})\s*(,\s*([0-9]{1,9})?\s*)?\}")
_MARKS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class _Part(NamedTuple):
    """A piece of a rule, as Lark has it."""

    text: str
    size: int
    """Parts that it stands for."""


class _Rule(NamedTuple):
    text: str
    size: int
    needs: frozenset[str]
    tokens: bool
    """It names token ids, which no terminal can."""


def to_lark(text: str) -> str:
    """Write the grammar in Lark's words; `InvalidArgument` says what is wrong with it, and where."""
    rules = _Reader(text).rules()
    if "root" not in rules:
        raise InvalidArgument("the grammar has no rule 'root'")
    for name, rule in rules.items():
        if missing := sorted(rule.needs - rules.keys()):
            raise InvalidArgument(f"the grammar's rule {name[:100]!r} needs {missing[0][:100]!r}, which isn't there")
    terminals = _terminals(rules)
    names = {name: f"T{at}" if name in terminals else f"r{at}" for at, name in enumerate(rules)}
    lines = [f"start: {names['root']}"]
    lines += [f"{names[name]}: {_named(rule.text, names)}" for name, rule in rules.items()]
    return "\n".join(lines)


def _named(text: str, names: dict[str, str]) -> str:
    return re.sub(r"\0([^\0]*)\0", lambda match: names[match[1]], text)


def _terminals(rules: dict[str, _Rule]) -> set[str]:
    """Return rules that don't come back to themselves.

    Raises where the chain of those that a rule needs is too long.
    """
    levels: dict[str, int] = {}
    waiting = {name: rule for name, rule in rules.items() if not rule.tokens}
    while True:
        ready = [name for name, rule in waiting.items() if rule.needs <= levels.keys()]
        if not ready:
            break
        for name in ready:
            needs = waiting.pop(name).needs
            levels[name] = 1 + max((levels[need] for need in needs), default=0)
            if levels[name] > MOST_LEVELS:
                raise InvalidArgument(f"the grammar's rules need each other over more than {MOST_LEVELS} levels")
    if len(waiting) > MOST_CIRCULAR:
        raise InvalidArgument(f"more than {MOST_CIRCULAR} rules of the grammar come back to themselves")
    return set(levels)


class _Reader:
    """Reads one text, from its start to its end."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._size = text, 0, 0
        self._needs: set[str] = set()
        self._tokens = False

    def rules(self) -> dict[str, _Rule]:
        rules: dict[str, _Rule] = {}
        self._skip(lines=True)
        while self._at < len(self._text):
            self._needs, self._tokens = set(), False
            name = self._name()
            self._skip()
            self._take("::=")
            self._skip(lines=True)
            body = self._choice(0)
            self._size += body.size
            if self._size > MOST_PARTS:
                raise self._wrong(f"more than {MOST_PARTS} parts, with repetitions written out")
            rules[name] = _Rule(body.text, body.size, frozenset(self._needs), self._tokens)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._wrong("a line that doesn't end here")
            self._skip(lines=True)
        return rules

    def _choice(self, level: int) -> _Part:
        ways = [self._sequence(level)]
        while self._peek() == "|":
            self._at += 1
            self._skip(lines=True)
            ways.append(self._sequence(level))
        return _Part(" | ".join(way.text for way in ways), sum(way.size for way in ways))

    def _sequence(self, level: int) -> _Part:
        parts: list[_Part] = []
        while (part := self._part(level)) is not None:
            self._skip(lines=level > 0)
            while (bounds := self._repeats()) is not None:
                part = self._repeated(part, *bounds)
                self._skip(lines=level > 0)
            parts.append(part)
        return _Part(" ".join(part.text for part in parts) or '""', 1 + sum(part.size for part in parts))

    def _part(self, level: int) -> _Part | None:
        """Read the next piece, without what repeats it; None where none begins."""
        mark = self._peek()
        if mark == '"':
            return self._literal()
        if mark == "[":
            return self._class()
        if mark == ".":
            self._at += 1
            return _Part("/(?s:.)/", 1)
        if mark == "(":
            return self._group(level + 1)
        if token := _TOKEN.match(self._text, self._at):
            self._at, self._tokens = token.end(), True
            return _Part(token[0], 1)
        if _NAME.match(self._text, self._at):
            name = self._name()
            self._needs.add(name)
            return _Part(f"\0{name}\0", 1)
        return None

    def _group(self, level: int) -> _Part:
        if level > MOST_LEVELS:
            raise self._wrong(f"more than {MOST_LEVELS} parentheses within each other")
        self._at += 1
        self._skip(lines=True)
        inner = self._choice(level)
        self._take(")")
        return _Part(f"({inner.text})", inner.size)

    def _repeats(self) -> tuple[int, int | None] | None:
        mark = self._peek()
        if mark in _MARKS:
            self._at += 1
            return _MARKS[mark]
        if mark != "{":
            return None
        braces = _BRACES.match(self._text, self._at)
        if braces is None:
            raise self._wrong("a repetition that is none of {n}, {n,} and {n,m}")
        self._at = braces.end()
        least = int(braces[1])
        most = least if braces[2] is None else None if braces[3] is None else int(braces[3])
        if least > MOST_REPEATS or (most is not None and most > MOST_REPEATS):
            raise self._wrong(f"a repetition over {MOST_REPEATS}")
        if most is not None and most < least:
            raise self._wrong("a repetition whose end is before its beginning")
        return least, most

    def _repeated(self, part: _Part, least: int, most: int | None) -> _Part:
        size = part.size * max(1, least if most is None else most)
        if size > MOST_PARTS:
            raise self._wrong(f"more than {MOST_PARTS} parts, with repetitions written out")
        if (least, most) == (1, 1):
            return part
        if most == 0:
            return _Part('""', 1)
        marks = {(0, None): "*", (1, None): "+", (0, 1): "?"}
        mark = marks.get((least, most)) or f"{{{least},{'' if most is None else most}}}"
        return _Part(f"({part.text}){mark}", size)

    def _literal(self) -> _Part:
        self._at += 1
        made: list[str] = []
        while self._peek() != '"':
            made.append(self._character())
        self._at += 1
        return _Part(json.dumps("".join(made)), 1)

    def _class(self) -> _Part:
        self._at += 1
        inverted = self._peek() == "^"
        self._at += inverted
        made: list[str] = []
        while self._peek() != "]":
            first = last = self._character()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._character()
            if last < first:
                raise self._wrong("a range whose end is before its beginning")
            made.append(f"\\x{{{ord(first):x}}}-\\x{{{ord(last):x}}}")
        self._at += 1
        if not made:
            raise self._wrong("an empty set of characters")
        return _Part(f"/[{'^' if inverted else ''}{''.join(made)}]/", 1)

    def _character(self) -> str:
        if self._at >= len(self._text):
            raise self._wrong("the end of the text, within a character or a string")
        if self._text[self._at] != "\\":
            self._at += 1
            return self._text[self._at - 1]
        escape = _ESCAPE.match(self._text, self._at)
        if escape is None:
            raise self._wrong("an escape that is unknown")
        self._at = escape.end()
        if escape[4] is not None:
            return _PLAIN.get(escape[4], escape[4])
        code = int(escape[1] or escape[2] or escape[3], 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise self._wrong("an escape that is no character")
        return chr(code)

    def _name(self) -> str:
        match = _NAME.match(self._text, self._at)
        if match is None:
            raise self._wrong("no name of a rule")
        self._at = match.end()
        return match[0]

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, *, lines: bool = False) -> None:
        match = (_LINES if lines else _SPACE).match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _take(self, what: str) -> None:
        if not self._text.startswith(what, self._at):
            raise self._wrong(f"no {what}")
        self._at += len(what)

    def _wrong(self, what: str) -> InvalidArgument:
        line = self._text.count("\n", 0, self._at) + 1
        near = self._text[self._at : self._at + 20]
        return InvalidArgument(f"the grammar has {what}, in line {line} at {near!r}")
