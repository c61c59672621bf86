"""One answer, read while it comes: content, thoughts and calls of tools told apart. A state machine without I/O.

Text is held back only while it may still be part of a marker, of the white space around one, or of a call's name. A
call's arguments are said as they are written where its format allows it (`call_streams.py`), otherwise whole or not at
all. What looked like a call and isn't is content, as the model wrote it. Each character is looked at
a bounded number of times, wherever the text is cut: models run away, and clients make them.
"""

from __future__ import annotations

from dynamo.llm.parsers.call_spans import Block
from dynamo.llm.parsers.call_streams import CallStream
from dynamo.llm.parsers.events import Call, CallStart, Content, Event, Parser, Thought, Tools
from dynamo.llm.parsers.markers import LONGEST_SPACE, Markers, behind_space, leads, settled
from dynamo.llm.parsers.reasoning_formats import ThoughtFormat
from dynamo.llm.parsers.tool_formats import ToolFormat
from dynamo.llm.parsers.xml_calls import TagStream

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
        self._held, self._at = "", 0
        """What is undecided, from an index on: there is little of it outside of calls."""
        self._block: Block | None = None
        self._stream: CallStream | TagStream | None = None
        self._pieces: list[str] = []
        """Of a call that is open, and what says it while it is written."""
        self._gap = ""
        """The white space before it."""
        self._fresh, self._after = True, ""
        """Nothing but white space since the start (""), a "thought" or a "call"."""
        self._begun = False
        """Something of the thought has been said."""
        self._may_open = in_thought
        """A thought that is open may begin with its own marker, if the prompt has none."""
        self._plain = False
        """Nothing but content can come any more."""
        self._state = self._thought if in_thought else self._answer
        self._events: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        if self._plain:
            return [Content(text)]
        events: list[Event] = []
        self._events = events
        if self._block is None:
            self._held, self._at = self._held[self._at :] + text, 0
        elif not self._goes_on(self._block, text):
            return events
        while self._state():
            pass
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        self._events = events
        if self._block is not None:
            self._held, self._at, self._block = "".join(self._pieces), 0, None
            self._close(len(self._held), len(self._held))
        rest, self._held, self._at = self._held[self._at :], "", 0
        if self._state == self._thought:
            self._say_thought(rest.rstrip() if self._begun else rest.strip())
        else:
            if self._fresh and self._after:
                rest = rest.lstrip(self._thoughts.gap if self._after == "thought" and self._thoughts else None)
                rest = rest if rest.strip() else ""
            self._say(rest)
        return events

    def _answer(self) -> bool:
        """Read outside of thoughts and calls; True where another state, or the same one, is to go on."""
        if self._fresh and (goes_on := self._beginning()) is not None:
            return goes_on
        held, at = self._held, self._at
        if self._tools is None:
            self._plain, self._held, self._at = True, "", 0
            self._say(held[at:])
            return False
        match = self._markers.find(held, at)
        end = len(held) - self._markers.begun(held, at) if match is None else match.start()
        text = held[at:end]
        size = settled(text)
        self._say(text[:size])
        self._at = at + size
        if match is None:
            return False
        return self._open(end, text[size:], self._tools.blocks[match[0]](len(match[0])))

    def _beginning(self) -> bool | None:
        """Look at what an answer, or its next part, begins with; None: at nothing but text."""
        start, space = behind_space(self._held, self._at), self._held[self._at : self._at + LONGEST_SPACE]
        if self._after == "call":
            self._at = start
        elif start - self._at >= LONGEST_SPACE:
            gap = self._thoughts.gap if self._after == "thought" and self._thoughts else ""
            self._say(space.lstrip(gap))
            self._at, self._fresh = self._at + LONGEST_SPACE, False
            return None
        if start == len(self._held):
            return False
        if (goes_on := self._opening(start)) is None:
            self._begin()
        return goes_on

    def _opening(self, start: int) -> bool | None:
        """Look at the first text of an answer, or of its next part; None: it is nothing but text."""
        opener, waits = leads(self._held, self._openers, start)
        if opener is not None:
            self._at, self._begun, self._state = start + len(opener), False, self._thought
            return True
        if self._tools is not None and self._after == "call":
            tail, more = leads(self._held, self._tools.tails, start)
            if tail is not None:
                self._at = start + len(tail)
                return True
            waits = waits or more
        if waits:
            return False
        if self._bare is not None and self._held.startswith(self._bare[0], start):
            return self._open(start, "" if self._after else self._held[self._at : start], self._bare[1]())
        return None

    def _begin(self) -> None:
        """Begin text: drop the line breaks that belong to the thought before it."""
        if self._after == "thought" and self._thoughts is not None:
            while self._held[self._at] in self._thoughts.gap:
                self._at += 1
        self._fresh = False

    def _open(self, start: int, gap: str, block: Block) -> bool:
        """Begin with what may be a call; True where its end is there already."""
        self._gap, self._at = gap, start
        end = block.end(self._held, start)
        assert self._tools is not None
        self._stream = None if self._tools.stream is None else self._tools.stream.stream(self._known)
        if end is None:
            self._block, self._pieces = block, [self._held[start:]]
            self._held, self._at = "", 0
            self._say_calls(self._pieces[0])
            return False
        self._close(end)
        return True

    def _goes_on(self, block: Block, text: str) -> bool:
        """Add to what may be a call; True where it has ended."""
        self._pieces.append(text)
        end = block.end(text, 0)
        if end is None:
            self._say_calls(text)
            return False
        self._held, self._at, self._block = "".join(self._pieces), 0, None
        before = len(self._held) - len(text)
        self._close(before + end, before)
        return True

    def _say_calls(self, text: str) -> None:
        if self._stream is not None:
            self._events += self._stream.feed(text)

    def _close(self, end: int, fed: int = 0) -> None:
        """End a call, of which so many characters have been streamed."""
        assert self._tools is not None
        text, self._at, self._pieces, self._state = self._held[self._at : end], end, [], self._answer
        self._say_calls(text[fed:])
        if self._stream is not None and self._stream.begun:
            rest = self._stream.finish()
            self._events += rest
            self._fresh, self._after = not (rest and isinstance(rest[-1], Content)), "call"
            return
        calls = self._tools.read(text, self._known)
        if calls is None:
            self._say(self._gap + text)
            self._fresh = False
        else:
            self._events += calls
            self._fresh, self._after = True, "call"

    def _thought(self) -> bool:
        """Read inside a thought."""
        held = self._held
        if not self._begun:
            self._at = behind_space(held, self._at)
        if self._may_open and self._at < len(held):
            opener, waits = leads(held, self._openers, self._at)
            if waits:
                return False
            self._may_open, self._at = False, behind_space(held, self._at + len(opener or ""))
        at = self._at
        match = self._closers.find(held, at)
        end = len(held) - self._closers.begun(held, at) if match is None else match.start()
        text = held[at:end]
        size = settled(text)
        self._say_thought(text[:size])
        self._at = at + size
        if match is None:
            return False
        assert self._thoughts is not None
        self._at = match.end() if match[0] in self._thoughts.closes else match.start()
        self._fresh, self._after, self._state = True, "thought", self._answer
        return True

    def _say(self, text: str) -> None:
        if text:
            self._events.append(Content(text))

    def _say_thought(self, text: str) -> None:
        if text:
            self._begun = True
            self._events.append(Thought(text))


def _also(thoughts: ThoughtFormat, tools: ToolFormat | None) -> tuple[str, ...]:
    return () if tools is None else tuple(marker for marker in thoughts.ends_too if marker in tools.blocks)


class FirstCalls:
    """Another parser's events, with the first call only: `parallel_tool_calls: false`."""

    def __init__(self, parser: Parser) -> None:
        self._parser, self._called, self._drops = parser, False, False

    def feed(self, text: str) -> list[Event]:
        return self._kept(self._parser.feed(text))

    def finish(self) -> list[Event]:
        return self._kept(self._parser.finish())

    def _kept(self, events: list[Event]) -> list[Event]:
        kept: list[Event] = []
        for event in events:
            if isinstance(event, Call | CallStart):
                self._drops, self._called = self._called, True
            if not self._drops or isinstance(event, Content | Thought):
                kept.append(event)
        return kept
