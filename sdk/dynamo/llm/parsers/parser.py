"""One answer, read while it comes: content, thoughts and calls of tools told apart. A state machine without I/O.

Text is held back only while it may still be part of a marker, of the white space around one, or of a call: a call is
said whole or not at all. What looked like one and isn't is content, as the model wrote it.
"""

from __future__ import annotations

from dynamo.llm.parsers.blocks import Block
from dynamo.llm.parsers.events import Call, Content, Event, Parser, Thought, Tools
from dynamo.llm.parsers.markers import Markers, leads
from dynamo.llm.parsers.thoughts import ThoughtFormat
from dynamo.llm.parsers.tool_formats import ToolFormat

_NOTHING: Markers = Markers(())


class AnswerParser:
    """Reads one answer of any family whose thoughts and calls stand between markers.

    A thought opens only where nothing but white space stands before it, or between it and the last thought or call;
    elsewhere its marker is text that somebody asked for.
    """

    def __init__(
        self, thoughts: ThoughtFormat | None, tools: ToolFormat | None, known: Tools, *, in_thought: bool = False
    ) -> None:
        self._thoughts, self._tools, self._known = thoughts, tools, known
        self._openers = () if thoughts is None else thoughts.opens
        self._closers = _NOTHING if thoughts is None else Markers(thoughts.closes + _also(thoughts, tools))
        self._markers = _NOTHING if tools is None else tools.markers
        self._bare = None if tools is None else tools.bare
        self._held = self._gap = ""
        self._block: Block | None = None
        self._fresh, self._after = True, ""
        """Nothing but white space since the start (""), a "thought" or a "call"."""
        self._begun = False
        """Something of the thought has been said."""
        self._may_open = in_thought
        """A thought that is open may begin with its own marker, if the prompt has none."""
        self._plain = False
        """Nothing but content can come any more."""
        self._state = self._thought if in_thought else self._answer
        self._said: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        if self._plain:
            return [Content(text)]
        self._held += text
        said: list[Event] = []
        self._said = said
        while self._state():
            pass
        return said

    def finish(self) -> list[Event]:
        said: list[Event] = []
        self._said = said
        if self._block is not None:
            self._close(len(self._held))
        if self._state == self._thought:
            self._say_thought(self._held.rstrip() if self._begun else self._held.strip())
        else:
            if self._fresh and self._after:
                self._begin(self._held.lstrip())
                self._held = self._held if self._held.strip() else ""
            self._say(self._held)
        self._held = ""
        return said

    def _answer(self) -> bool:
        """Outside of thoughts and calls; True where another state, or the same one, is to go on."""
        if self._fresh:
            text = self._held.lstrip()
            if not text:
                return False
            if (goes_on := self._opening(text)) is not None:
                return goes_on
            self._begin(text)
        held = self._held
        if self._tools is None:
            self._plain, self._held = True, ""
            self._say(held)
            return False
        found = self._markers.find(held)
        end = len(held) - self._markers.begun(held) if found is None else found.start()
        text = held[:end].rstrip()
        self._say(text)
        if found is None:
            self._held = held[len(text) :]
            return False
        self._open(held[found.start() :], held[len(text) : end], self._tools.blocks[found[0]](len(found[0])))
        return True

    def _opening(self, text: str) -> bool | None:
        """Look at what an answer, or its next part, begins with; None: at nothing but text."""
        opener, waits = leads(text, self._openers)
        if opener is not None:
            self._held, self._begun, self._state = text[len(opener) :], False, self._thought
            return True
        if self._tools is not None and self._after == "call":
            tail, more = leads(text, self._tools.tails)
            if tail is not None:
                self._held = text[len(tail) :]
                return True
            waits = waits or more
        if waits:
            return False
        if self._bare is not None and text.startswith(self._bare[0]):
            self._open(text, "" if self._after else self._held[: -len(text)], self._bare[1]())
            return True
        return None

    def _begin(self, text: str) -> None:
        """Text follows: drop the white space that belongs to what stood before it."""
        if self._after == "thought" and self._thoughts is not None:
            self._held = self._held.lstrip(self._thoughts.gap)
        elif self._after:
            self._held = text
        self._fresh = False

    def _open(self, text: str, gap: str, block: Block) -> None:
        self._held, self._gap, self._block, self._state = text, gap, block, self._call

    def _call(self) -> bool:
        """In a block that may be a call."""
        assert self._block is not None
        if (end := self._block.end(self._held)) is None:
            return False
        self._close(end)
        return True

    def _close(self, end: int) -> None:
        assert self._tools is not None
        text, self._held, self._block, self._state = self._held[:end], self._held[end:], None, self._answer
        calls = self._tools.read(text, self._known)
        if calls is None:
            self._say(self._gap + text)
            self._fresh = False
        else:
            self._said += calls
            self._fresh, self._after = True, "call"

    def _thought(self) -> bool:
        """Inside a thought."""
        held = self._held if self._begun else self._held.lstrip()
        if self._may_open and held:
            opener, waits = leads(held, self._openers)
            if waits:
                return False
            self._may_open, held = False, held[len(opener or "") :].lstrip()
        self._held = held
        found = self._closers.find(held)
        end = len(held) - self._closers.begun(held) if found is None else found.start()
        text = held[:end].rstrip()
        self._say_thought(text)
        if found is None:
            self._held = held[len(text) :]
            return False
        assert self._thoughts is not None
        self._held = held[found.end() if found[0] in self._thoughts.closes else found.start() :]
        self._fresh, self._after, self._state = True, "thought", self._answer
        return True

    def _say(self, text: str) -> None:
        if text:
            self._said.append(Content(text))

    def _say_thought(self, text: str) -> None:
        if text:
            self._begun = True
            self._said.append(Thought(text))


def _also(thoughts: ThoughtFormat, tools: ToolFormat | None) -> tuple[str, ...]:
    return () if tools is None else tuple(marker for marker in thoughts.ends_too if marker in tools.blocks)


class FirstCalls:
    """Another parser's events, with the first call only: `parallel_tool_calls: false`."""

    def __init__(self, parser: Parser) -> None:
        self._parser, self._called = parser, False

    def feed(self, text: str) -> list[Event]:
        return self._kept(self._parser.feed(text))

    def finish(self) -> list[Event]:
        return self._kept(self._parser.finish())

    def _kept(self, events: list[Event]) -> list[Event]:
        kept: list[Event] = []
        for event in events:
            if isinstance(event, Call):
                if self._called:
                    continue
                self._called = True
            kept.append(event)
        return kept
