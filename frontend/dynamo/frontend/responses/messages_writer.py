"""A generation's events as the Messages API says them: content blocks, their events in Anthropic's order.

Without I/O. A token costs one JSON string between bytes that are made once per block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from dynamo.frontend.anthropic.errors import MessagesError
from dynamo.frontend.anthropic.requests import named
from dynamo.frontend.errors import ApiError
from dynamo.frontend.openai.chunks import Identity
from dynamo.frontend.responses.generation_events import CallArguments, CallBegun, Ended, Event, Usage
from dynamo.llm.parsers.events import Content, Thought

_encode = msgspec.json.encode
Block = dict[str, Any]
_STARTS: Final[dict[str, Block]] = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}
_DELTAS: Final = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"),
                  "tool_use": ("input_json_delta", "partial_json")}  # fmt: skip
_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_TAIL: Final = b"}}\n\n"


def signature(thought: str) -> str:
    """Return a thinking block's signature; clients send it back, and nobody looks at it."""
    return f"dynamo1.{hashlib.blake2b(thought.encode(), digest_size=16).hexdigest()}"


def tool_use_id(call_id: str) -> str:
    """Return a call's id as Anthropic's API has them; a model's own stays as it is."""
    return call_id.replace("call_", "toolu_", 1) if call_id.startswith("call_") else call_id


class MessagesWriter:
    """Writer of one message. `emit` takes a stream's bytes; None: only the message is wanted."""

    def __init__(self, who: Identity, emit: Callable[[bytes], None] | None, *, caches: bool = False) -> None:
        """Begin. `caches`: the request asks for what it has to be kept in a cache."""
        self._emit, self._caches = emit, caches
        self._blocks: list[Block] = []
        self._kind = ""
        """Of the block that is open; "": none is."""
        self._open_block: Block = {}
        self._pieces: list[str] = []
        self._prefix = b""
        """All that stands before a delta's JSON string, while a block is open."""
        self._ended = Ended("stop")
        self._message: dict[str, Any] = {
            "id": who.id, "type": "message", "role": "assistant", "model": who.model, "content": self._blocks,
            "stop_reason": None, "stop_sequence": None,
        }  # fmt: skip

    def begin(self, usage: Usage) -> None:
        if self._emit is not None:
            self._event("message_start", message={**self._message, "usage": self._usage(usage)})
            self._event("ping")

    def ping(self) -> None:
        """Say that the answer is still awaited."""
        self._event("ping")

    def text(self, text: str) -> None:
        if self._kind != "text":
            self._open("text", {})
        self._pieces.append(text)
        if (emit := self._emit) is not None:
            emit(self._prefix + _encode(text) + _TAIL)

    def scored(self, text: str, logprobs: list[Any]) -> None:
        """Write the text; this API has no log probabilities."""
        if text:
            self.text(text)

    def say(self, event: Event) -> None:
        if isinstance(event, Content):
            self.text(event.text)
        elif isinstance(event, Thought):
            if self._kind != "thinking":
                self._open("thinking", {})
            self._grow(event.text)
        elif isinstance(event, CallBegun):
            self._open("tool_use", {"id": tool_use_id(event.id), "name": event.name, "input": {}})
        elif isinstance(event, CallArguments):
            self._grow(event.text)
        elif isinstance(event, Ended):
            self._ended = event
        elif isinstance(event, Usage):
            self._end(event)

    def whole(self) -> bytes:
        return _encode(self._message)

    def failure(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + MessagesError.of(error).body() + b"\n\n"

    def named(self, error: ApiError) -> ApiError:
        return MessagesError.of(named(error))

    def _open(self, kind: str, own: Block) -> None:
        self._close()
        self._kind, self._pieces, index = kind, [], len(self._blocks)
        self._open_block = {"type": kind, **_STARTS.get(kind, own)}
        delta, field = _DELTAS[kind]
        head = {"type": "content_block_delta", "index": index, "delta": {"type": delta}}
        self._prefix = b"event: content_block_delta\ndata: " + _encode(head)[:-2] + f',"{field}":'.encode()
        self._event("content_block_start", index=index, content_block=self._open_block)

    def _grow(self, text: str) -> None:
        self._pieces.append(text)
        if self._emit is not None:
            self._emit(self._prefix + _encode(text) + _TAIL)

    def _close(self) -> None:
        """End the block that is open."""
        if not self._kind:
            return
        kind, block, text, index = self._kind, self._open_block, "".join(self._pieces), len(self._blocks)
        if kind == "tool_use":
            block["input"] = _object(text)
        else:
            block[kind] = text
        if kind == "thinking":
            block["signature"] = signature(text)
            delta = {"type": "signature_delta", "signature": block["signature"]}
            self._event("content_block_delta", index=index, delta=delta)
        self._event("content_block_stop", index=index)
        self._blocks.append(block)
        self._kind = ""

    def _end(self, usage: Usage) -> None:
        self._close()
        reason, stop = _REASONS[self._ended.reason], self._ended.stop
        if reason == "end_turn" and isinstance(stop, str):
            reason, self._message["stop_sequence"] = "stop_sequence", stop
        self._message |= {"stop_reason": reason, "usage": self._usage(usage)}
        if self._emit is not None:
            delta = {"stop_reason": reason, "stop_sequence": self._message["stop_sequence"]}
            self._event("message_delta", delta=delta, usage=self._message["usage"])
            self._event("message_stop")

    def _usage(self, usage: Usage) -> dict[str, Any]:
        """Return the tokens as this API counts them: those read from a cache, and those that one now has, apart."""
        computed = usage.prompt - usage.cached
        created = computed if self._caches and usage.knows_cached else 0
        return {
            "input_tokens": computed - created, "cache_creation_input_tokens": created,
            "cache_read_input_tokens": usage.cached, "output_tokens": usage.produced,
            "output_tokens_details": {"thinking_tokens": usage.reasoning},
        }  # fmt: skip

    def _event(self, kind: str, **fields: Any) -> None:
        if self._emit is not None:
            self._emit(f"event: {kind}\ndata: ".encode() + _encode({"type": kind, **fields}) + b"\n\n")


def _object(arguments: str) -> Any:
    """Return a call's arguments; they are JSON unless the answer was cut off in them."""
    try:
        msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return msgspec.Raw(arguments.encode())
