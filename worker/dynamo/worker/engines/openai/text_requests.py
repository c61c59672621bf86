"""Requests in text, for servers that name no token ids, and the text of their answers. Pure.

The body goes on as the client sent it, but for what is ours. The server parses tool calls and thoughts itself; a text
engine hands on text, so both are written out again in the form that the frontend's parsers read (`TOOL_PARSER`,
`REASONING_PARSER`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dynamo.llm.protocols import (
    CACHED_TOKENS,
    COMPLETION_TOKENS,
    EOS,
    LENGTH,
    PROMPT_TOKENS,
    STOP,
    TextRequest,
)
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.worker.engines.openai.content_parts import messages_for
from dynamo.worker.engines.openai.dialects import Call, fault

TOOL_PARSER: Final = "hermes"
REASONING_PARSER: Final = "qwen3"
_PATHS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_OURS: Final = ("nvext", "user", "best_of", "metadata", "store", "mm_processor_kwargs", "media_io_kwargs")
"""Fields that say something to the frontend, or of the client, and nothing to an engine; and those of vLLM by which a
client would have images made larger than its frontend let them be."""
_REASONS: Final = {"length": LENGTH, "stop": EOS, "tool_calls": EOS, "function_call": EOS, "content_filter": STOP}


def call(request: TextRequest, model: str, *, images: bool = False) -> Call:
    """Return what the server is asked; `InvalidArgument` for what can't be passed on. `images`: it takes some."""
    path = _PATHS.get(request.kind)
    if path is None:
        raise InvalidArgument(f"engine openai answers chat and completions, not {request.kind!r}")
    if request.body.get("logprobs"):
        raise InvalidArgument("logprobs: in text, engine openai has none; name the model's tokenizer by --model-path")
    body = {name: value for name, value in request.body.items() if name not in _OURS and value is not None}
    if "messages" in body:
        body["messages"] = messages_for(body["messages"], request.images or () if images else None)
    body |= {"model": model, "n": 1, "stream": True, "stream_options": {"include_usage": True}}
    return Call(path, body)


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int = 0
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_EVENT: Final = msgspec.json.Decoder(_Event)


class TextPiece(msgspec.Struct):
    """Addition of one event: text, and counts where the server told them."""

    text: str = ""
    counts: dict[str, int] | None = None


class TextReader:
    """Reads the events of one answer into text."""

    def __init__(self) -> None:
        self.finish: str | None = None
        self._thinks = False
        self._call: int | None = None

    def read(self, event: bytes) -> TextPiece:
        """Return what an event adds; raises what the server says went wrong."""
        chunk = _EVENT.decode(event)
        if chunk.error is not None:
            raise fault(msgspec.json.decode(event)) or EngineError("the server: it does not say what went wrong")
        counts = None if chunk.usage is None else _counts(chunk.usage)
        if not chunk.choices:
            return TextPiece("", counts)
        choice = chunk.choices[0]
        text = choice.text or ""
        if choice.delta is not None:
            text += self._of_message(choice.delta)
        if choice.finish_reason is not None:
            self.finish = _REASONS.get(choice.finish_reason, STOP)
            text += self.close()
        return TextPiece(text, counts)

    def _of_message(self, message: _Message) -> str:
        text = ""
        if thought := message.reasoning_content or message.reasoning:
            text += thought if self._thinks else f"<think>{thought}"
            self._thinks = True
        if message.content:
            text += self._after_thoughts() + message.content
        for tool in message.tool_calls or ():
            text += self._of_call(tool)
        return text

    def _of_call(self, tool: _ToolCall) -> str:
        text, function = "", tool.function or _Function()
        if tool.index != self._call:
            text = self._after_thoughts() + self._after_call()
            self._call = tool.index
            name = msgspec.json.encode(function.name or "").decode()
            text += f'<tool_call>\n{{"name": {name}, "arguments": '
        return text + (function.arguments or "")

    def _after_thoughts(self) -> str:
        text, self._thinks = "</think>" if self._thinks else "", False
        return text

    def _after_call(self) -> str:
        text, self._call = "" if self._call is None else "}\n</tool_call>\n", None
        return text

    def close(self) -> str:
        """Return what ends a thought or a call that is open."""
        return self._after_thoughts() + self._after_call()


def _counts(usage: _Usage) -> dict[str, int]:
    details = usage.prompt_tokens_details
    counts = {
        PROMPT_TOKENS: usage.prompt_tokens, COMPLETION_TOKENS: usage.completion_tokens,
        CACHED_TOKENS: details.cached_tokens if details is not None else None,
    }  # fmt: skip
    return {name: count for name, count in counts.items() if count is not None and count >= 0}
