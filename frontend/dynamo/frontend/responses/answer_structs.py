"""Answers as `/openapi.json` describes them, so that generated clients have types. Nothing is made of these structs:
answers are written as bytes, and a test holds them against this."""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct

from dynamo.frontend.anthropic.answer_structs import MessageAnswer, MessageEvent, MessageTokenCount
from dynamo.frontend.openai.responses_structs import InputTokenCount, ResponseAnswer, ResponseEvent


class CachedTokens(Struct):
    """Part of a prompt that came from a cache."""

    cached_tokens: int


class ReasoningTokens(Struct):
    """Part of an answer that is thoughts."""

    reasoning_tokens: int


class Usage(Struct):
    """Tokens of a request and of its answer."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None
    completion_tokens_details: ReasoningTokens | None = None


class AnsweredFunction(Struct):
    """A function and its arguments, as JSON in a text."""

    name: str
    arguments: str


class AnsweredCall(Struct):
    """One call of a tool."""

    id: str
    type: str
    function: AnsweredFunction | None = None


class AnsweredMessage(Struct):
    """What an assistant has said."""

    role: Literal["assistant"]
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Instead of `reasoning_content`, with `--reasoning-field-name reasoning`."""
    tool_calls: list[AnsweredCall] | None = None


class PromptLogprob(Struct):
    """Log probability of a token at a place of the prompt."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class ChatChoice(Struct):
    """One answer of a chat."""

    index: int
    message: AnsweredMessage
    finish_reason: str
    logprobs: dict[str, Any] | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletion(Struct):
    """A whole answer of a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    """vLLM's: per token of the prompt an object by token id."""
    prompt_token_ids: list[int] | None = None


class TextChoice(Struct):
    """One continuation of a prompt."""

    index: int
    text: str
    finish_reason: str
    logprobs: dict[str, Any] | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class Completion(Struct):
    """Continuations of prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


class EmbeddingEntry(Struct):
    """One vector: numbers, or their bytes in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(Struct):
    """Vectors in the order of their texts."""

    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: Usage


class RankedText(Struct):
    """Text of a document."""

    text: str


class Ranked(Struct):
    """One document's place."""

    index: int
    relevance_score: float
    document: RankedText | None = None


class Ranking(Struct):
    """Documents, the nearest first."""

    id: str
    model: str
    results: list[Ranked]
    usage: Usage


class Score(Struct):
    """Nearness of one pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreList(Struct):
    """Nearness of each pair."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: Usage


class Model(Struct):
    """A model that can be asked."""

    id: str
    object: str
    created: int
    owned_by: str
    context_window: int | None = None
    max_model_len: int | None = None
    types: list[str] | None = None
    input_modalities: list[str] | None = None


class ModelList(Struct):
    """Models that can be asked. Clients that send Anthropic's version get its form, which isn't this."""

    object: str
    data: list[Model]


class ModelReadiness(Struct):
    """Readiness of one model."""

    model: str
    ready: bool
    namespaces: dict[str, Any]


class Tokens(Struct):
    """Tokens of a prompt."""

    count: int
    tokens: list[int]
    max_model_len: int | None = None
    token_strs: list[str] | None = None


class Detokenized(Struct):
    """Text of tokens."""

    prompt: str


class Version(Struct):
    """Version of this server."""

    version: str


class Liveness(Struct):
    """A process that runs."""

    status: str
    message: str


class Conversation(Struct):
    """A conversation that is kept."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, Any]


class ChunkFunction(Struct):
    """A function that is called, or the next piece of its arguments."""

    name: str | None = None
    arguments: str | None = None


class ChunkCall(Struct):
    """A call that begins, or grows."""

    index: int
    id: str | None = None
    type: str | None = None
    function: ChunkFunction | None = None


class ChunkDelta(Struct):
    """What has come of a message since the chunk before."""

    role: str | None = None
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Instead of `reasoning_content`, with `--reasoning-field-name reasoning`."""
    tool_calls: list[ChunkCall] | None = None


class ChunkChoice(Struct):
    """One answer's part of a chunk."""

    index: int
    delta: ChunkDelta
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatChunk(Struct):
    """Data of an event of a chat; the last event is `[DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_token_ids: list[int] | None = None
    """Of a choice's first chunk, where they are asked for."""


class TextChunkChoice(Struct):
    """One continuation's part of a chunk."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionChunk(Struct):
    """Data of an event of continuations; the last event is `[DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChunkChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


class Deleted(Struct):
    """What is no longer kept."""

    id: str
    object: str
    deleted: bool


class ItemList(Struct):
    """A page of items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    has_more: bool
    first_id: str | None = None
    last_id: str | None = None


ANSWERS: Final[dict[tuple[str, str], type[Struct]]] = {
    ("post", "/v1/chat/completions"): ChatCompletion,
    ("post", "/v1/completions"): Completion,
    ("post", "/v1/embeddings"): EmbeddingList,
    ("post", "/v1/rerank"): Ranking,
    ("post", "/v1/score"): ScoreList,
    ("post", "/tokenize"): Tokens,
    ("post", "/detokenize"): Detokenized,
    ("get", "/v1/models"): ModelList,
    ("get", "/v1/models/{model_id}"): Model,
    ("get", "/v1/models/{model_id}/ready"): ModelReadiness,
    ("post", "/v1/conversations"): Conversation,
    ("get", "/v1/conversations/{conversation_id}"): Conversation,
    ("post", "/v1/conversations/{conversation_id}"): Conversation,
    ("delete", "/v1/conversations/{conversation_id}/items/{item_id}"): Conversation,
    ("delete", "/v1/conversations/{conversation_id}"): Deleted,
    ("get", "/v1/conversations/{conversation_id}/items"): ItemList,
    ("post", "/v1/conversations/{conversation_id}/items"): ItemList,
    ("post", "/v1/responses"): ResponseAnswer,
    ("get", "/v1/responses/{response_id}"): ResponseAnswer,
    ("delete", "/v1/responses/{response_id}"): Deleted,
    ("post", "/v1/responses/{response_id}/cancel"): ResponseAnswer,
    ("get", "/v1/responses/{response_id}/input_items"): ItemList,
    ("post", "/v1/responses/input_tokens"): InputTokenCount,
    ("post", "/v1/messages"): MessageAnswer,
    ("post", "/v1/messages/count_tokens"): MessageTokenCount,
    ("get", "/version"): Version,
    ("get", "/live"): Liveness,
}
"""By method and path; of the others an object is said."""
STREAMS: Final[dict[str, type[Struct]]] = {
    "/v1/chat/completions": ChatChunk,
    "/v1/completions": CompletionChunk,
    "/v1/responses": ResponseEvent,
    "/v1/messages": MessageEvent,
}
"""What the data of their events is, by path."""
