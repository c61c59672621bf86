"""Answers of the Messages API as `/openapi.json` describes them. Nothing is made of these structs."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class MessagesErrorDetails(Struct):
    """What went wrong."""

    type: str
    message: str


class MessagesErrorReply(Struct):
    """Every answer that is an error."""

    type: Literal["error"]
    error: MessagesErrorDetails
    request_id: str | None = None


class MessageBlock(Struct):
    """A text, a thought or a call of a tool, by its `type`."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class MessageUsage(Struct):
    """Tokens of messages and of their answer."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class MessageAnswer(Struct):
    """An answer of the Messages API."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageBlock]
    usage: MessageUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None


class MessageEvent(Struct):
    """Data of an event of messages; its `type` says what else it has."""

    type: str


class MessageTokenCount(Struct):
    """Tokens of messages."""

    input_tokens: int
