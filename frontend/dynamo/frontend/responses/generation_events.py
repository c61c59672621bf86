"""What a generation is to those who write it down: one stream of typed events per choice, the same for every API.

`EventReader` makes the events of what a worker's tokens say; chat completions, Responses and Messages are writers of
them. Text of a request that nothing parses is one `Content` per delta: its writers take the text as it comes, without
an object for each token, which would make chat's 1.8 times as slow. Equality of both ways is tested over all writers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from dynamo.frontend.openai.constraints import Parsing
from dynamo.llm.parsers import events as parsed
from dynamo.llm.parsers.events import Content, Thought

TOOL_CALLS = "tool_calls"
"""Why a choice ended that called tools and said nothing of its own end."""


class ScoredContent(msgspec.Struct, frozen=True):
    """Text for the reader, and all tokens that a delta had, for their log probabilities."""

    text: str
    ids: list[int]
    offsets: list[int]
    extras: dict[str, Any] | None


class CallBegun(msgspec.Struct, frozen=True):
    """A call of a tool; its arguments follow."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """A call's arguments grow by this much JSON text."""

    index: int
    text: str


class Ended(msgspec.Struct, frozen=True):
    """A choice is over."""

    reason: str
    """`stop`, `length` or `tool_calls`."""
    stop: str | int | None = None
    """The stop string, or the token, that ended it."""


class Usage(msgspec.Struct, frozen=True):
    """Usage of a whole answer: the last event."""

    prompt: int
    produced: int
    cached: int
    reasoning: int = 0
    """Of those produced, the tokens of thoughts."""
    knows_cached: bool = False
    """The engine has said how many came from a cache."""


def usage_dict(prompt: int, completion: int, cached: int, reasoning: int | None = None) -> dict[str, Any]:
    """Return usage as chats and completions say it; `reasoning` is left out where nothing tells thoughts apart."""
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return usage if reasoning is None else {**usage, "completion_tokens_details": {"reasoning_tokens": reasoning}}


Event: TypeAlias = Content | ScoredContent | Thought | CallBegun | CallArguments | Ended | Usage


class Counted(Protocol):
    """The part of a choice that its events are made of."""

    finish_reason: str | None

    @property
    def tokens(self) -> int: ...

    @property
    def stop_reason(self) -> str | int | None: ...


class EventReader:
    """Reader of one choice, whose events it makes. `parsing`: how its text is parsed; None: all of it is content."""

    def __init__(self, parsing: Parsing | None) -> None:
        self._parser = None if parsing is None else parsing.make()
        self._new_id: Callable[[], str] = str if parsing is None else parsing.new_id
        self._calls = 0
        self.reasoning = 0
        """Tokens of thoughts so far."""
        self._counted = 0

    @property
    def plain(self) -> bool:
        """Tell whether all text is content, as it comes."""
        return self._parser is None

    def read(self, choice: Counted, text: str) -> Sequence[Event]:
        """Return what is certain after this much more text."""
        if self._parser is None:
            return (Content(text),) if text else ()
        return self._made(choice, self._parser.feed(text))

    def read_scored(
        self, choice: Counted, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> Sequence[Event]:
        """Read as `read` does, but for log probabilities: all tokens are content's, with the text they make."""
        if self._parser is None:
            return (ScoredContent(text, ids, offsets, extras),)
        events = self._made(choice, self._parser.feed(text))
        content = "".join(event.text for event in events if isinstance(event, Content))
        thoughts: list[Event] = [event for event in events if isinstance(event, Thought)]
        calls = [event for event in events if isinstance(event, CallBegun | CallArguments)]
        return [*thoughts, ScoredContent(content, ids, offsets, extras), *calls]

    def end(self, choice: Counted) -> list[Event]:
        """Return the rest, and the end."""
        events = [] if self._parser is None else self._made(choice, self._parser.finish())
        reason = choice.finish_reason or "stop"
        if self._calls and reason == "stop":
            reason = TOOL_CALLS
        return [*events, Ended(reason, choice.stop_reason)]

    def _made(self, choice: Counted, said: list[parsed.Event]) -> list[Event]:
        events: list[Event] = []
        for event in said:
            if isinstance(event, parsed.Call):
                index, self._calls = self._calls, self._calls + 1
                events.append(CallBegun(index, event.id or self._new_id(), event.name))
                events.append(CallArguments(index, event.arguments))
            elif isinstance(event, parsed.CallStart):
                self._calls += 1
                events.append(CallBegun(self._calls - 1, event.id or self._new_id(), event.name))
            elif isinstance(event, parsed.CallText):
                events.append(CallArguments(self._calls - 1, event.text))
            else:
                events.append(event)
        if events:
            tokens = choice.tokens
            if isinstance(events[-1], Thought):
                self.reasoning += tokens - self._counted
            self._counted = tokens
        return events
