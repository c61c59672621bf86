"""gpt-oss's answers: messages in channels, each with a header. A state machine without I/O.

`<|channel|>analysis<|message|>…<|end|>` is a thought, `final` the answer, and `commentary to=functions.NAME` a call
of a tool, ended by `<|call|>`. An answer begins behind the prompt's `<|start|>assistant`, so mostly with a channel.
"""

from __future__ import annotations

import re
from typing import Final

from dynamo.llm.parsers.events import Call, Content, Event, Thought
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
_BEGINNINGS: Final = ("<|start|>", "<|channel|>", _MESSAGE, "assistant", "to=", "analysis", "commentary", "final")


class HarmonyParser:
    """Reads one answer. Without `thoughts`, they are content; without `tools`, calls are, as the model wrote them."""

    def __init__(self, *, thoughts: bool, tools: bool) -> None:
        self._thoughts, self._tools = thoughts, tools
        self._held = self._header = ""
        self._kind: type[Content | Thought | Call] = Content
        self._first = True
        self._seen = 0
        """Characters of a call in which no end can begin."""
        self._state = self._in_header
        self._said: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        self._held += text
        said: list[Event] = []
        self._said = said
        while self._state():
            pass
        return said

    def finish(self) -> list[Event]:
        said: list[Event] = []
        self._said = said
        held, self._held = self._held, ""
        if self._state == self._in_header:
            self._say(Content, held if self._first or held.strip() else "")
        elif self._kind is Call:
            self._call(held, "")
        else:
            self._say(self._kind, held)
        return said

    def _in_header(self) -> bool:
        """Before `<|message|>`."""
        held = self._held
        if self._first and not self._may_be_header(held):
            self._kind, self._state = Content, self._in_body  # a model that doesn't keep to the format
            return True
        header, found, body = held.partition(_MESSAGE)
        if not found:
            return False
        self._header, self._held, self._first, self._state = header, body, False, self._in_body
        self._kind = self._kind_of(header)
        return True

    def _may_be_header(self, text: str) -> bool:
        text = text.lstrip()
        return not text or text.startswith(_BEGINNINGS) or any(one.startswith(text) for one in _BEGINNINGS)

    def _kind_of(self, header: str) -> type[Content | Thought | Call]:
        if _FUNCTION.search(header):
            return Call
        channel = _CHANNEL.search(header)
        return Thought if self._thoughts and channel is not None and channel[1] == "analysis" else Content

    def _in_body(self) -> bool:
        """In a message."""
        held = self._held
        found = _BODY.find(held, self._seen)
        if found is None:
            end = len(held) - _BODY.begun(held)
            if self._kind is Call:
                self._seen = end
                return False
            self._say(self._kind, held[:end])
            self._held = held[end:]
            return False
        if self._kind is Call:
            self._call(held[: found.start()], found[0])
        else:
            self._say(self._kind, held[: found.start()])
        self._held = held[found.start() if found[0] in _KEPT else found.end() :]
        self._first, self._seen, self._state = False, 0, self._in_header
        return True

    def _call(self, body: str, end: str) -> None:
        """Say a whole call, or its text where it is none."""
        recipient = _RECIPIENT.search(self._header)
        arguments = arguments_of(body) if self._tools else None
        if recipient is None or arguments is None or not writable(recipient[1]):
            self._say(Content, f"{self._header}{_MESSAGE}{body}{'' if end in _KEPT else end}")
        else:
            self._said.append(Call(recipient[1], arguments))

    def _say(self, kind: type[Content | Thought | Call], text: str) -> None:
        if text:
            self._said.append(Thought(text) if kind is Thought else Content(text))
