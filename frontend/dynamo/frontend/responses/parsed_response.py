"""Chat answers whose text is parsed, written from a generation's events: tool calls as `tool_calls`, thoughts as
`reasoning_content` or as the frontend's settings name it, the rest as it is.

Only requests to models with parsers, or that force a tool, have one; all others keep to `response.py`, whose way per
token knows nothing of this. A call's name leaves in one chunk, its arguments in those that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynamo.frontend.generation.choice import Choice
from dynamo.frontend.openai.chunks import ChatChunks
from dynamo.frontend.openai.constraints import Parsing
from dynamo.frontend.openai.custom_tools import CUSTOM, INPUT, input_of
from dynamo.frontend.responses.generation_events import (
    TOOL_CALLS,
    CallArguments,
    CallBegun,
    Ended,
    Event,
    EventReader,
    ScoredContent,
)
from dynamo.frontend.responses.json_response import JsonResponse
from dynamo.frontend.responses.response import SseResponse
from dynamo.llm.parsers.events import Content, Thought
from dynamo.runtime.errors import InvalidArgument


def _already() -> None:
    """Do nothing: the first token has been noted."""


def explained(error: Exception, parsing: Parsing | None) -> Exception:
    """Say what was asked for, where an engine can't keep to a schema: it knows nothing of tools."""
    forced = parsing is not None and parsing.forced
    if forced and isinstance(error, InvalidArgument) and error.message.startswith("guided decoding"):
        return InvalidArgument(f"tool_choice: it needs {error.message}; use auto")
    return error


def _function_call(event: CallBegun | CallArguments) -> dict[str, str]:
    """Return a part of a call as it was told before there were tools."""
    return {"name": event.name, "arguments": ""} if isinstance(event, CallBegun) else {"arguments": event.text}


def _as_custom(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call of a function as one of the custom tool that it stands for."""
    function = call["function"]
    own = {"name": function["name"], INPUT: input_of(function["arguments"])}
    return {"id": call["id"], "type": CUSTOM, CUSTOM: own}


def _reasoning(parsing: Parsing | None, readers: Sequence[EventReader]) -> int | None:
    """Return the tokens of all choices' thoughts; None where only calls are parsed, which tells no thoughts apart."""
    return sum(reader.reasoning for reader in readers) if parsing is not None and parsing.thinks else None


def _reason(event: Ended, *, legacy: bool) -> str:
    return "function_call" if legacy and event.reason == TOOL_CALLS else event.reason


class ParsedStream(SseResponse):
    """Server-sent events."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self.options.parsing is not None, "else it is an SseResponse"
        assert isinstance(self._form, ChatChunks), "only chats are parsed"
        self._chunk = self._form.delta
        self._readers = [EventReader(self.options.parsing) for _ in range(self.options.choices)]
        self._legacy = self.options.parsing.legacy
        self._customs = self.options.parsing.customs
        self._inputs: dict[int, tuple[int, list[str]]] = {}
        """Of choices whose last call is one of a custom tool: which, and what its function's arguments are so far."""

    def text(self, choice: Choice, text: str) -> None:
        self._heard()
        for event in self._readers[choice.index].read(choice, text):
            self._say(choice, event)

    def tokens(
        self, choice: Choice, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> None:
        self._heard()
        for event in self._readers[choice.index].read_scored(choice, text, ids, offsets, extras):
            self._say(choice, event)

    def finished(self, choice: Choice) -> None:
        for event in self._readers[choice.index].end(choice):
            self._say(choice, event)
        super().finished(choice)

    def failed(self, choice: Choice, error: Exception) -> None:
        super().failed(choice, explained(error, self.options.parsing))

    def reasoning(self) -> int | None:
        return _reasoning(self.options.parsing, self._readers)

    def _heard(self) -> None:
        """Note that the engine has begun, though what it said may have to wait."""
        self._first_token()
        self._first_token = _already

    def _say(self, choice: Choice, event: Event) -> None:
        index = choice.index
        if isinstance(event, Content):
            super().text(choice, event.text)
        elif isinstance(event, ScoredContent):
            super().tokens(choice, event.text, event.ids, event.offsets, event.extras)
        elif isinstance(event, Thought):
            if self.options.thoughts:
                self._delta(index, {self.options.reasoning_field: event.text})
        elif isinstance(event, CallBegun | CallArguments) and self._legacy:
            self._delta(index, {"function_call": _function_call(event)})
        elif isinstance(event, CallBegun):
            self._begin_call(index, event)
        elif isinstance(event, CallArguments) and index in self._inputs:
            self._inputs[index][1].append(event.text)
        elif isinstance(event, CallArguments):
            self._delta(index, {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]})
        elif isinstance(event, Ended):
            self._end_input(index)
            choice.finish_reason = _reason(event, legacy=self._legacy)

    def _begin_call(self, index: int, event: CallBegun) -> None:
        self._end_input(index)
        head: dict[str, Any] = {"index": event.index, "id": event.id}
        if event.name in self._customs:
            self._inputs[index] = event.index, []
            head |= {"type": CUSTOM, CUSTOM: {"name": event.name, INPUT: ""}}
        else:
            head |= {"type": "function", "function": {"name": event.name, "arguments": ""}}
        self._delta(index, {"tool_calls": [head]})

    def _end_input(self, index: int) -> None:
        """Say the input of a custom tool's call, which is read out of the arguments once they are whole."""
        if (call := self._inputs.pop(index, None)) is not None:
            self._delta(index, {"tool_calls": [{"index": call[0], CUSTOM: {INPUT: input_of("".join(call[1]))}}]})

    def _delta(self, index: int, delta: dict[str, Any]) -> None:
        if self._seen[index]:
            self._output.append(self._chunk(index, delta))
        else:
            self._open(index)
            first = self._chunk(index, {"role": "assistant", "content": None, **delta})
            self._output.append(self._early(first, index))
        self._writer.touch(self._output)


class ParsedWhole(JsonResponse):
    """One JSON body."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self.options.parsing is not None, "else it is a JsonResponse"
        self._readers = [EventReader(self.options.parsing) for _ in range(self.options.choices)]
        self._legacy = self.options.parsing.legacy
        self._customs = self.options.parsing.customs
        self._thoughts: list[list[str]] = [[] for _ in self._readers]
        self._calls: list[list[dict[str, Any]]] = [[] for _ in self._readers]

    def text(self, choice: Choice, text: str) -> None:
        super().text(choice, "")  # notes the time
        for event in self._readers[choice.index].read(choice, text):
            self._take(choice, event)

    def finished(self, choice: Choice) -> None:
        for event in self._readers[choice.index].end(choice):
            self._take(choice, event)
        super().finished(choice)

    def failed(self, choice: Choice, error: Exception) -> None:
        super().failed(choice, explained(error, self.options.parsing))

    def reasoning(self) -> int | None:
        return _reasoning(self.options.parsing, self._readers)

    def _take(self, choice: Choice, event: Event) -> None:
        index = choice.index
        if isinstance(event, Content):
            self._texts[index].append(event.text)
        elif isinstance(event, Thought):
            self._thoughts[index].append(event.text)
        elif isinstance(event, CallBegun):
            function = {"name": event.name, "arguments": ""}
            self._calls[index].append({"id": event.id, "type": "function", "function": function})
        elif isinstance(event, CallArguments):
            self._calls[index][event.index]["function"]["arguments"] += event.text
        elif isinstance(event, Ended):
            choice.finish_reason = _reason(event, legacy=self._legacy)

    def _choice(self, choice: Choice) -> dict[str, Any]:
        body = super()._choice(choice)
        message, thoughts, calls = body["message"], self._thoughts[choice.index], self._calls[choice.index]
        if thoughts and self.options.thoughts:
            message[self.options.reasoning_field] = "".join(thoughts)
        if calls:
            message["content"] = message["content"] or None
            told = [_as_custom(call) if call["function"]["name"] in self._customs else call for call in calls]
            message |= {"function_call": calls[0]["function"]} if self._legacy else {"tool_calls": told}
        return body
