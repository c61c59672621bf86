"""The bodies that clients may send, field by field: what each is, and how large it may be, next to its type.

`requests.py` reads requests with these, `openapi.py` describes them. Counts and lengths are msgspec's own; `size` says
how many bytes of JSON a field of any form may have, which `body.py` looks at before a large body is decoded. A
test sends each field too large in every form: one that is added without a bound fails it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from dynamo.frontend.openai.nvext import MAX_NAME, Nvext
from dynamo.llm.processing.embeddings import MOST_DIMENSIONS
from dynamo.llm.processing.request_options import LONGEST_STOP, MOST_STOPS

SIZE: Final = "size"
KB: Final = 1 << 10
WHOLE_BODY: Final = 0
"""As `size`: as large as the body may be."""
MAX_VALUES: Final = 1 << 20
"""Members of objects and arrays in a body: as many token ids as any context has."""
MAX_CHOICES: Final = 128
MAX_MESSAGES: Final = 10_000
MAX_TOOLS: Final = 512
MAX_GUIDED_CHOICES: Final = 4096
MAX_GRAMMAR: Final = 64 * KB
LARGEST_BIAS: Final = 100
LONGEST_METADATA: Final = 512
"""Characters of a value, as OpenAI has it."""


def size(most: int) -> Meta:
    """Bound the bytes of JSON that a field may have."""
    return Meta(extra={SIZE: most})


Unit: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Truncation: TypeAlias = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seed: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME)]
Word: TypeAlias = Annotated[str, Meta(max_length=64)]
StopString: TypeAlias = Annotated[str, Meta(max_length=LONGEST_STOP)]
TokenKey: TypeAlias = Annotated[str, Meta(max_length=10)]
TokenIds: TypeAlias = Annotated[list[TokenId], Meta(max_length=MAX_VALUES)]
Prompt: TypeAlias = Annotated[Any, size(WHOLE_BODY)]
Text: TypeAlias = Annotated[str, size(WHOLE_BODY)]
Schema: TypeAlias = Annotated[Any, size(256 * KB)]
Options: TypeAlias = Annotated[dict[str, Any], Meta(max_length=256, extra={SIZE: 64 * KB})]
MetadataValue: TypeAlias = Annotated[str, Meta(max_length=LONGEST_METADATA)]
Metadata: TypeAlias = Annotated[dict[Word, MetadataValue], Meta(max_length=16, extra={SIZE: 64 * KB})]
Tier: TypeAlias = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Tools: TypeAlias = Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS, extra={SIZE: 1024 * KB})]


class StreamOptions(Struct):
    """Options of a stream: what it carries beside its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model is to think."""
Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool", "function"]


class Message(Struct):
    """One turn of a conversation."""

    role: Role
    content: str | Annotated[list[dict[str, Any]], Meta(max_length=MAX_MESSAGES)] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Name | None = None


class Sampling(Struct, kw_only=True):
    """Fields that chats and completions share."""

    model: Name
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Unit | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Seed | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MOST_STOPS)] | None = None
    logit_bias: (
        Annotated[dict[TokenKey, Annotated[float, Meta(ge=-LARGEST_BIAS, le=LARGEST_BIAS)]], Meta(max_length=1024)]
        | None
    ) = None
    user: Name | None = None
    metadata: Metadata | None = None
    service_tier: Tier | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Unit | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    bad_words: Annotated[list[Annotated[str, Meta(max_length=LONGEST_STOP)]], Meta(max_length=MOST_STOPS)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=1024)] | None = None
    truncate_prompt_tokens: Truncation | None = None
    cache_salt: Name | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    guided_json: Schema = None
    guided_regex: Annotated[Any, size(2 * MAX_GRAMMAR)] = None
    guided_choice: Schema = None
    guided_grammar: Annotated[Any, size(2 * MAX_GRAMMAR)] = None
    guided_backend: Word | None = None
    guided_whitespace_pattern: Name | None = None
    guided_structural_tag: Annotated[Any, size(MAX_GRAMMAR)] = None
    structured_outputs: Annotated[dict[str, Any], Meta(max_length=16, extra={SIZE: 272 * KB})] | None = None
    """vLLM's object of constraints."""
    response_format: Annotated[dict[str, Any], Meta(max_length=256, extra={SIZE: 272 * KB})] | None = None
    nvext: Annotated[Nvext, size(512 * KB)] | None = None


class ChatRequest(Sampling, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES, extra={SIZE: WHOLE_BODY})]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Tools | None = None
    tool_choice: Name | Annotated[dict[str, Any], Meta(max_length=16, extra={SIZE: 64 * KB})] | None = None
    parallel_tool_calls: bool | None = None
    chat_template: Annotated[str, Meta(max_length=MAX_GRAMMAR)] | None = None
    chat_template_kwargs: Options | None = None
    chat_template_args: Options | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """The last message is the beginning of the answer."""
    documents: Annotated[list[dict[str, Any]], Meta(max_length=1024, extra={SIZE: 1024 * KB})] | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    store: bool | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    functions: Tools | None = None
    function_call: Name | Annotated[dict[str, Any], Meta(max_length=16, extra={SIZE: 64 * KB})] | None = None
    modalities: Annotated[list[Word], Meta(max_length=16)] | None = None
    audio: Options | None = None


class CompletionRequest(Sampling, kw_only=True):
    """POST /v1/completions."""

    prompt: Prompt
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """0: nothing is answered; with `echo` and `logprobs` the prompt is scored."""
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: Annotated[str, Meta(max_length=MAX_GRAMMAR)] | None = None


class EmbeddingsRequest(Struct, kw_only=True):
    """POST /v1/embeddings."""

    model: Name
    input: Annotated[str | Annotated[list[str | TokenId | TokenIds], Meta(max_length=MAX_VALUES)], size(WHOLE_BODY)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=MOST_DIMENSIONS)] | None = None
    truncate_prompt_tokens: Truncation | None = None
    user: Name | None = None
    nvext: Annotated[Nvext, size(512 * KB)] | None = None


Texts: TypeAlias = Annotated[list[Annotated[str, Meta(max_length=MAX_VALUES)]], Meta(min_length=1, max_length=512)]


class RerankRequest(Struct, kw_only=True):
    """POST /v1/rerank: documents are texts, or objects with a `text`."""

    model: Name
    query: Text
    documents: Annotated[list[str | dict[str, Any]], Meta(min_length=1, max_length=512, extra={SIZE: WHOLE_BODY})]
    top_n: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
    user: Name | None = None


class ScoreRequest(Struct, kw_only=True):
    """POST /v1/score: each text of `text_2` with the one of `text_1`, or with the one at its place there."""

    model: Name
    text_1: Annotated[str | Texts, size(WHOLE_BODY)]
    text_2: Annotated[str | Texts, size(WHOLE_BODY)]
    user: Name | None = None


class TokenizeRequest(Struct, kw_only=True):
    """POST /tokenize: a prompt, or messages; of the only model where none is named."""

    model: Name | None = None
    prompt: Text | None = None
    messages: Annotated[list[dict[str, Any]], Meta(max_length=MAX_MESSAGES, extra={SIZE: WHOLE_BODY})] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    tools: Tools | None = None
    chat_template_kwargs: Options | None = None
    reasoning_effort: Effort | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """POST /detokenize, by the only model where none is named."""

    model: Name | None = None
    tokens: Annotated[TokenIds, size(WHOLE_BODY)]
