"""Answers whose text is parsed: tool calls as `tool_calls`, thoughts as `reasoning_content`, the rest as it is.

Only requests to models with parsers, or that force a tool, have one; all others keep to `response.py`, whose way per
token knows nothing of this. A call leaves whole: one chunk names it, one has its arguments.
"""

from __future__ import annotations

from typing import Any

from dynamo.frontend.generation.choice import Choice
from dynamo.frontend.openai.constraints import Parsing
from dynamo.frontend.responses.json_response import JsonResponse
from dynamo.frontend.responses.response import ChatChunks, SseResponse
from dynamo.llm.parsers.events import Call, Content, Event, Thought
from dynamo.runtime.errors import InvalidArgument


def _already() -> None:
    """The first token has been noted."""


def _explained(error: Exception, parsing: Parsing) -> Exception:
    """Say what was asked for, where an engine can't keep to a schema: it knows nothing of tools."""
    if parsing.forced and isinstance(error, InvalidArgument) and error.message.startswith("guided decoding"):
        return InvalidArgument(f"tool_choice: it needs {error.message}; use auto")
    return error


def _ended(choice: Choice, calls: int) -> None:
    if calls and choice.finish_reason in (None, "stop"):
        choice.finish_reason = "tool_calls"


class ParsedStream(SseResponse):
    """Server-sent events."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self.options.parsing is not None, "else it is an SseResponse"
        assert isinstance(self._form, ChatChunks), "only chats are parsed"
        self._chunk = self._form.delta
        self._parsing = self.options.parsing
        self._parsers = [self._parsing.make() for _ in range(self.options.choices)]
        self._calls = [0] * self.options.choices

    def text(self, choice: Choice, text: str) -> None:
        self._heard()
        for event in self._parsers[choice.index].feed(text):
            self._say(choice, event)

    def tokens(
        self, choice: Choice, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> None:
        """All tokens have their log probabilities, with the content that they make or none."""
        self._heard()
        events = self._parsers[choice.index].feed(text)
        for event in events:
            if isinstance(event, Thought):
                self._say(choice, event)
        content = "".join(event.text for event in events if isinstance(event, Content))
        super().tokens(choice, content, ids, offsets, extras)
        for event in events:
            if isinstance(event, Call):
                self._say(choice, event)

    def finished(self, choice: Choice) -> None:
        for event in self._parsers[choice.index].finish():
            self._say(choice, event)
        _ended(choice, self._calls[choice.index])
        super().finished(choice)

    def failed(self, choice: Choice, error: Exception) -> None:
        super().failed(choice, _explained(error, self._parsing))

    def _heard(self) -> None:
        """The engine has begun, though what it said may have to wait."""
        self._first_token()
        self._first_token = _already

    def _say(self, choice: Choice, event: Event) -> None:
        index = choice.index
        if isinstance(event, Content):
            super().text(choice, event.text)
        elif isinstance(event, Thought):
            self._delta(index, {"reasoning_content": event.text})
        else:
            at, self._calls[index] = self._calls[index], self._calls[index] + 1
            named = {"name": event.name, "arguments": ""}
            head = {"index": at, "id": event.id or self._parsing.new_id(), "type": "function", "function": named}
            self._delta(index, {"tool_calls": [head]})
            self._delta(index, {"tool_calls": [{"index": at, "function": {"arguments": event.arguments}}]})

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
        self._parsing = self.options.parsing
        self._parsers = [self._parsing.make() for _ in range(self.options.choices)]
        self._thoughts: list[list[str]] = [[] for _ in self._parsers]
        self._calls: list[list[dict[str, Any]]] = [[] for _ in self._parsers]

    def text(self, choice: Choice, text: str) -> None:
        super().text(choice, "")  # notes the time
        self._take(choice.index, self._parsers[choice.index].feed(text))

    def finished(self, choice: Choice) -> None:
        self._take(choice.index, self._parsers[choice.index].finish())
        _ended(choice, len(self._calls[choice.index]))
        super().finished(choice)

    def failed(self, choice: Choice, error: Exception) -> None:
        super().failed(choice, _explained(error, self._parsing))

    def _take(self, index: int, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Content):
                self._texts[index].append(event.text)
            elif isinstance(event, Thought):
                self._thoughts[index].append(event.text)
            else:
                function = {"name": event.name, "arguments": event.arguments}
                made = {"id": event.id or self._parsing.new_id(), "type": "function", "function": function}
                self._calls[index].append(made)

    def _choice(self, choice: Choice) -> dict[str, Any]:
        body = super()._choice(choice)
        message, thoughts, calls = body["message"], self._thoughts[choice.index], self._calls[choice.index]
        if thoughts:
            message["reasoning_content"] = "".join(thoughts)
        if calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = calls
        return body
