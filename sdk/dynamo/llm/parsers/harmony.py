"""gpt-oss's answers: messages in channels, each with a header. A state machine without I/O.

`<|channel|>analysis<|message|>…<|end|>` is a thought, `final` the answer, and `commentary to=functions.NAME` a call
of a tool, ended by `<|call|>`. An answer begins behind the prompt's `<|start|>assistant`, so mostly with a channel.
"""

from __future__ import annotations

import re
from typing import Final

from dynamo.llm.parsers.call_streams import OBJECT, ObjectScan
from dynamo.llm.parsers.events import Call, CallStart, CallText, Content, Event, Thought
from dynamo.llm.parsers.json_calls import arguments_of, writable
from dynamo.llm.parsers.markers import Markers

TOKENS: Final = (
    "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>",
)  # fmt: skip
"""All of them special tokens, which text doesn't show otherwise."""
_MESSAGE: Final = "<|message|>"
_BODY: Final = Markers(("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"))
_KEPT: Final = ("<|start|>", "<|channel|>")
"""These begin the next header, though the message had no end."""
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w*)")
_RECIPIENT: Final = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_FUNCTION: Final = re.compile(r"to=functions\.")
LONGEST_HEADER: Final = 1024
"""Characters before `<|message|>`; where more stand, they are text."""
_BEGINNINGS: Final = ("<|start|>", "<|channel|>", _MESSAGE, "assistant", "to=", "analysis", "commentary", "final")


class HarmonyParser:
    """Reads one answer. Without `thoughts`, they are content; without `tools`, calls are, as the model wrote them."""

    def __init__(self, *, thoughts: bool, tools: bool) -> None:
        self._thoughts, self._tools = thoughts, tools
        self._held, self._at = "", 0
        """What is undecided, from an index on: there is little of it."""
        self._header = ""
        self._body: list[str] = []
        """Of a call, what hasn't been said of it."""
        self._scan: ObjectScan | None = None
        """Of a call's arguments, once they have begun."""
        self._kind: type[Content | Thought | Call] = Content
        self._first = True
        self._state = self._in_header
        self._events: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        self._held, self._at = self._held[self._at :] + text, 0
        events: list[Event] = []
        self._events = events
        while self._state():
            pass
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        self._events = events
        held, self._held, self._at = self._held[self._at :], "", 0
        if self._state == self._in_header:
            self._say(Content, held if self._first or held.strip() else "")
        elif self._kind is Call:
            self._grow(held)
            self._call("")
        else:
            self._say(self._kind, held)
        return events

    def _in_header(self) -> bool:
        """Go on before `<|message|>`."""
        held, at = self._held, self._at
        if self._first and not self._may_be_header(held[at : at + LONGEST_HEADER]):
            self._kind, self._state = Content, self._in_body  # a model that doesn't keep to the format
            return True
        longest = at + LONGEST_HEADER
        mark = held.find(_MESSAGE, at, longest + len(_MESSAGE))
        if mark < 0:
            if len(held) < longest + len(_MESSAGE):
                return False
            self._kind, self._first, self._state = Content, False, self._in_body
            self._say(Content, held[at:longest])
            self._at = longest
            return True
        self._header, self._at, self._first, self._state = held[at:mark], mark + len(_MESSAGE), False, self._in_body
        self._kind = self._kind_of(self._header)
        return True

    def _may_be_header(self, text: str) -> bool:
        text = text.lstrip()
        return not text or text.startswith(_BEGINNINGS) or any(beginning.startswith(text) for beginning in _BEGINNINGS)

    def _kind_of(self, header: str) -> type[Content | Thought | Call]:
        if _FUNCTION.search(header):
            return Call
        channel = _CHANNEL.search(header)
        return Thought if self._thoughts and channel is not None and channel[1] == "analysis" else Content

    def _in_body(self) -> bool:
        """Go on in a message."""
        held, at = self._held, self._at
        match = _BODY.find(held, at)
        end = len(held) - _BODY.begun(held, at) if match is None else match.start()
        if self._kind is Call:
            self._grow(held[at:end])
        else:
            self._say(self._kind, held[at:end])
        self._at = end
        if match is None:
            return False
        if self._kind is Call:
            self._call(match[0])
        self._at = match.start() if match[0] in _KEPT else match.end()
        self._first, self._body, self._scan, self._state = False, [], None, self._in_header
        return True

    def _grow(self, text: str) -> None:
        """Take more of a call: its arguments are said as they come where they begin as an object."""
        if self._scan is None and sum(map(len, self._body)) < LONGEST_HEADER:
            text, self._body = "".join(self._body) + text, []
            recipient = _RECIPIENT.search(self._header)
            begun = OBJECT.match(text, 0, LONGEST_HEADER)
            if begun and recipient is not None and self._tools and writable(recipient[1]):
                self._scan, text = ObjectScan(), text.lstrip()
                self._events.append(CallStart(recipient[1]))
        if self._scan is not None and not self._scan.over:
            said, at = self._scan.take(text := "".join(self._body) + text, 0)
            self._body, text = [], text[at:]
            if said:
                self._events.append(CallText(said))
        self._body.append(text)

    def _call(self, end: str) -> None:
        """Say a whole call, or its text where it is none; of one that has been said, what stands behind it."""
        body = "".join(self._body)
        if self._scan is not None:
            if self._scan.over and body.strip():
                self._say(Content, body)
            return
        recipient = _RECIPIENT.search(self._header)
        arguments = arguments_of(body) if self._tools else None
        if recipient is None or arguments is None or not writable(recipient[1]):
            self._say(Content, f"{self._header}{_MESSAGE}{body}{'' if end in _KEPT else end}")
        else:
            self._events.append(Call(recipient[1], arguments))

    def _say(self, kind: type[Content | Thought | Call], text: str) -> None:
        if text:
            self._events.append(Thought(text) if kind is Thought else Content(text))
