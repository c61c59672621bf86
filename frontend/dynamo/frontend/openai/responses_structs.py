"""Bodies of the Responses API: their fields and how large each may be, as in `request_structs.py`, and its answers."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from dynamo.frontend.openai.nvext import Nvext
from dynamo.frontend.openai.request_structs import (
    KB,
    MAX_MESSAGES,
    SIZE,
    WHOLE_BODY,
    Count,
    Metadata,
    Name,
    Options,
    Penalty,
    Seed,
    StopString,
    Text,
    Tier,
    Tools,
    Unit,
    Word,
    size,
)
from dynamo.llm.processing.request_options import MOST_STOPS

MOST_ITEMS: Final = 20
"""Items that one request may add to a conversation, as OpenAI has it."""


class ReasoningOptions(Struct):
    """Amount that the model should think, and what is told of it."""

    effort: Word | None = None
    summary: Word | None = None
    generate_summary: Word | None = None


class TextOptions(Struct):
    """The form of the text."""

    format: Annotated[dict[str, Any], Meta(max_length=256, extra={SIZE: 272 * KB})] | None = None
    verbosity: Word | None = None


class ResponseStreamOptions(Struct):
    """Options for what a stream carries beside its events."""

    include_obfuscation: bool | None = None


class ConversationRef(Struct):
    """A conversation by its id."""

    id: Name


class ConversationItems(Struct):
    """POST /v1/conversations/ID/items."""

    items: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MOST_ITEMS), size(WHOLE_BODY)]


class ConversationRequest(Struct):
    """POST /v1/conversations."""

    items: Annotated[list[dict[str, Any]], Meta(max_length=MOST_ITEMS), size(WHOLE_BODY)] | None = None
    metadata: Metadata | None = None


class ConversationChange(Struct):
    """POST /v1/conversations/ID."""

    metadata: Metadata


class ResponsesRequest(Struct, kw_only=True):
    """POST /v1/responses."""

    model: Name
    input: Annotated[str | Annotated[list[dict[str, Any]], Meta(max_length=MAX_MESSAGES)] | None, size(WHOLE_BODY)] = (
        None
    )
    instructions: Text | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Unit | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Tools | None = None
    tool_choice: Name | Annotated[dict[str, Any], Meta(max_length=16, extra={SIZE: 64 * KB})] | None = None
    parallel_tool_calls: bool | None = None
    text: Annotated[TextOptions, size(288 * KB)] | None = None
    reasoning: ReasoningOptions | None = None
    include: Annotated[list[Word], Meta(max_length=16)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    previous_response_id: Name | None = None
    background: bool | None = None
    conversation: Name | ConversationRef | None = None
    prompt: Options | None = None
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Word | None = None
    service_tier: Tier | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Unit | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    seed: Seed | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MOST_STOPS)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: Options | None = None
    nvext: Annotated[Nvext, size(512 * KB)] | None = None


class OutputPart(Struct):
    """Part of what an item says."""

    type: str
    text: str | None = None


class OutputItem(Struct):
    """A message, a thought or a call of a tool, by its `type`."""

    id: str
    type: str
    status: str | None = None
    role: str | None = None
    content: list[OutputPart] | None = None
    summary: list[OutputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None


class InputTokensDetails(Struct):
    """Part of an input that came from a cache, and that was written into one."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Struct):
    """Part of an output that is thoughts."""

    reasoning_tokens: int


class ResponseUsage(Struct):
    """Tokens of a response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails


class ResponseAnswer(Struct):
    """A response of the Responses API."""

    id: str
    object: Literal["response"]
    created_at: int
    status: str
    model: str
    output: list[OutputItem]
    completed_at: int | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    usage: ResponseUsage | None = None
    background: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    service_tier: str | None = None
    instructions: str | list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] | None = None
    safety_identifier: str | None = None
    temperature: float | None = None
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: str | None = None
    user: str | None = None


class ResponseEvent(Struct):
    """Data of an event of a response; its `type` says what else it has."""

    type: str
    sequence_number: int


class InputTokenCount(Struct):
    """Tokens of a response's input."""

    object: Literal["response.input_tokens"]
    input_tokens: int
