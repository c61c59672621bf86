"""Calls that are said while the model writes them: the name once it is there, then the arguments as they grow.

What has been said can't be taken back. So a call begins only where its name and the first sign of its arguments, an
object, stand as they should; all else waits for the end of its block and is read whole (`tool_formats.py`). Arguments
leave as the model wrote them, but for line breaks in texts, which JSON wants escaped. A call that breaks off has
arguments that break off. Where the text was cut makes no difference to what is said.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from dynamo.llm.parsers.events import CallStart, CallText, Content, Event, Tools
from dynamo.llm.parsers.json_calls import calls_of, loads, writable

LONGEST_HEAD: Final = 768
"""Characters before a call's arguments; where more stand, its block is read whole."""
_LONGEST_GAP: Final = 128
"""White space behind a line break in a text that may stand before the end of a block."""
_GAP: Final = re.compile(r"\n[ \t\r]*")


class ObjectScan:
    """Scan of one JSON object, from its brace to the one that ends it.

    `closer`: what ends the block around it, on a line of its own even inside of a text.
    """

    _PARTS: Final = re.compile(r'["{}\[\]]')
    _STRING: Final = re.compile(r'\\.|["\x00-\x1f]', re.DOTALL)

    def __init__(self, closer: str = "", depth: int = 0) -> None:
        self._closer, self._depth, self._inside = closer, depth, False
        self.over = False

    def take(self, text: str, at: int) -> tuple[str, int]:
        """Return what is certain of the text from `at` on, and where the rest begins, which is to come again."""
        said: list[str] = []
        begin = at
        while match := (self._STRING if self._inside else self._PARTS).search(text, at):
            sign, at = match[0], match.end()
            if sign == '"':
                self._inside = not self._inside
            elif self._inside:
                if sign[0] == "\\":
                    continue
                said.append(text[begin : match.start()])
                if self._may_end(text, match.start()):
                    return "".join(said), match.start()
                said.append(json.dumps(sign)[1:-1])
                begin = at
            else:
                self._depth += 1 if sign in "{[" else -1
                if self._depth <= 0:
                    self.over = True
                    break
        else:
            at = len(text) - (self._inside and text.endswith("\\", at))
        said.append(text[begin:at])
        return "".join(said), at

    def _may_end(self, text: str, at: int) -> bool:
        """Tell whether the block may end behind a line break in a text."""
        match = _GAP.match(text, at, at + _LONGEST_GAP)
        if match is None or not self._closer:
            return False
        return self._closer.startswith(text[match.end() : match.end() + len(self._closer)])


@dataclass(frozen=True)
class StreamForm:
    """Form of one family's calls."""

    head: re.Pattern[str]
    """What stands between two calls, or before the first, up to the brace of the arguments: `name`, a JSON text in an
    object that goes on behind them, or `plain`; `id`, if any; `mark` where something says that this is a call."""
    closer: str = ""
    tail: re.Pattern[str] = re.compile(r"[\s\]]*")
    """What may stand behind the last call."""

    def stream(self, known: Tools) -> CallStream:
        """Return what reads one block."""
        return CallStream(self, known)


class CallStream:
    """Stream of the calls of one block of text."""

    def __init__(self, form: StreamForm, known: Tools) -> None:
        self._form, self._known = form, known
        self._held, self._at = "", 0
        self._scan: ObjectScan | None = None
        self._inner = self._said = self._marked = False
        """In an object around the arguments; those are read now; no known name is needed."""
        self._stuck: list[str] | None = None
        """All that comes, since it can only be read whole."""
        self.begun = False
        """A call has been said: the block can't be content any more."""

    def feed(self, text: str) -> list[Event]:
        """Return what is certain of this much more text."""
        if self._stuck is not None:
            self._stuck.append(text)
            return []
        self._held, self._at = self._held[self._at :] + text, 0
        events: list[Event] = []
        while self._stuck is None and (self._head(events) if self._scan is None else self._object(self._scan, events)):
            pass
        return events

    def finish(self) -> list[Event]:
        """Return the rest of a block in which a call has begun."""
        rest = self._held[self._at :] + "".join(self._stuck or ())
        if self._scan is not None or self._form.tail.fullmatch(plain := without_end(rest, self._form.closer)):
            return []
        listed = plain.strip().lstrip(",;").removesuffix("]")
        calls = calls_of(f"[{listed}]")
        return [*calls] if calls else [Content(rest)]

    def _head(self, events: list[Event]) -> bool:
        match = self._form.head.match(self._held, self._at, self._at + LONGEST_HEAD)
        if match is None:
            if len(self._held) - self._at >= LONGEST_HEAD:
                self._stuck, self._held, self._at = [self._held[self._at :]], "", 0
            return False
        groups = match.groupdict()
        self._marked = self._marked or groups.get("mark") is not None
        name = _name(groups.get("name"), groups.get("plain"))
        if not (writable(name) and (self._marked or name in self._known)):
            self._stuck, self._held, self._at = [self._held[self._at :]], "", 0
            return False
        events.append(CallStart(name, groups.get("id")))
        self.begun, self._said, self._inner = True, True, groups.get("name") is not None
        self._scan, self._at = ObjectScan(self._form.closer), match.end()
        return True

    def _object(self, scan: ObjectScan, events: list[Event]) -> bool:
        text, self._at = scan.take(self._held, self._at)
        if text and self._said:
            events.append(CallText(text))
        if not scan.over:
            return False
        inner = self._said and self._inner
        self._scan, self._said = ObjectScan(self._form.closer, depth=1) if inner else None, False
        return True


def without_end(text: str, closer: str) -> str:
    """Return a text without the closer at its end, or what an answer that was cut has of it."""
    for length in range(min(len(closer), len(text)), 0, -1):
        if text.endswith(closer[:length]):
            return text[:-length]
    return text


def _name(quoted: str | None, plain: str | None) -> str:
    if quoted is None:
        return (plain or "").strip()
    try:
        return str(loads(f'"{quoted}"'))
    except ValueError:
        return ""


OBJECT: Final = re.compile(r'\s*+\{\s*+["}]')
"""What arguments begin with."""
_ARGUMENTS: Final = r'(?=\{\s*+["}])'
_OTHER: Final = r'(?:"(?:type|id|index)"\s*+:\s*+(?:"[^"\\]{0,128}+"|\d{1,9}+)\s*+,\s*+)?+'
_KEY: Final = r'"(?:arguments|parameters)"\s*+:\s*+'
_CALL: Final = (
    rf'\{{\s*+{_OTHER}"name"\s*+:\s*+"(?P<name>(?:[^"\\\x00-\x1f]|\\.){{1,512}}+)"\s*+,\s*+{_KEY}{_ARGUMENTS}'
)


def in_json(*openers: str, closer: str = "", between: str = ",") -> StreamForm:
    """Make the form of JSON objects, or a list of them, behind one of the openers."""
    opened = f"(?P<mark>{'|'.join(map(re.escape, openers))})?+"
    head = re.compile(rf"{opened}\s*+[\[{between}]?+\s*+{_CALL}", re.DOTALL)
    return StreamForm(head, closer)


def named(head: str, tail: str) -> StreamForm:
    """Make the form of names and arguments between markers, as regular expressions."""
    return StreamForm(re.compile(head + _ARGUMENTS, re.DOTALL), tail=re.compile(tail, re.DOTALL))


def in_mistral() -> StreamForm:
    """Make Mistral's form: a list of objects, or a name and its arguments."""
    plain = rf"(?P<plain>[\w.\-/]{{1,256}}+)\s*+(?:\[CALL_ID\](?P<id>\w{{1,64}}+))?+\s*+(?:\[ARGS\])?+\s*+{_ARGUMENTS}"
    head = rf"(?P<mark>\[TOOL_CALLS\])?+\s*+(?:[\[,]?+\s*+{_CALL}|{plain})"
    return StreamForm(re.compile(head, re.DOTALL))


def of_forced() -> StreamForm:
    """Make the form of the answer to `tool_choice: required`: it is a call, whatever the tool is called.

    One that is cut before its arguments is no text that the model wanted to say.
    """
    head = re.compile(rf"(?P<mark>)\s*+[\[,]?+\s*+{_CALL}", re.DOTALL)
    return StreamForm(head, tail=re.compile(r"[\s\]]*+(?:,\s*+(?:\{[^{}]*+)?+)?+"))
