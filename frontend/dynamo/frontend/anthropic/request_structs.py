"""The bodies of `/v1/messages`: their fields, and how large each may be, as `openai/request_structs.py` has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from dynamo.frontend.openai.nvext import Nvext
from dynamo.frontend.openai.request_structs import (
    KB,
    MAX_MESSAGES,
    SIZE,
    WHOLE_BODY,
    Count,
    Name,
    Options,
    StopString,
    Tools,
    Unit,
    Word,
    size,
)
from dynamo.llm.processing.request_options import MOST_STOPS

Blocks: TypeAlias = Annotated[list[dict[str, Any]], Meta(max_length=MAX_MESSAGES)]


class Thinking(Struct):
    """Choice whether the model should think before it answers."""

    type: Word
    budget_tokens: Count | None = None
    display: Word | None = None


class OutputConfig(Struct):
    """The form of the answer, and how much work is put into it."""

    effort: Word | None = None
    format: Annotated[dict[str, Any], Meta(max_length=256, extra={SIZE: 272 * KB})] | None = None


class Prompt(Struct, kw_only=True):
    """Fields that `/v1/messages` and `/v1/messages/count_tokens` share."""

    model: Name
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_MESSAGES, extra={SIZE: WHOLE_BODY})]
    system: Annotated[str | Blocks | None, size(WHOLE_BODY)] = None
    tools: Tools | None = None
    tool_choice: Annotated[dict[str, Any], Meta(max_length=16, extra={SIZE: 64 * KB})] | None = None
    thinking: Thinking | None = None
    output_config: Annotated[OutputConfig, size(288 * KB)] | None = None
    cache_control: Options | None = None


class MessagesRequest(Prompt, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=MOST_STOPS)] | None = None
    temperature: Unit | None = None
    top_p: Unit | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: Options | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    thread: Options | None = None
    nvext: Annotated[Nvext, size(512 * KB)] | None = None


class CountTokensRequest(Prompt, kw_only=True):
    """POST /v1/messages/count_tokens."""
