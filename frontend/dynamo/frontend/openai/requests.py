"""OpenAI requests: reading and checking them, with errors that name the field.

Called once per request by `routes/generate.py`. The body is decoded to a plain dict
(which the preprocessor gets) and checked against a struct, which says types and ranges
once; what a type can't say is in the `_check_…` functions. Unknown fields are reported
to the caller, who logs or refuses them. `/openapi.json` is made of the same structs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dynamo.frontend.errors import ApiError, bad_request
from dynamo.frontend.guided import check_guided
from dynamo.frontend.nvext import Nvext
from dynamo.frontend.tool_choice import check_tool_choice
from dynamo.llm.embeddings import MOST_DIMENSIONS, Input, read_inputs
from dynamo.runtime.errors import InvalidArgument

Unit: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seed: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
MAX_CHOICES: Final = 128
MAX_PROMPTS: Final = 2048
DEFAULT_COMPLETION_TOKENS: Final = 16


class StreamOptions(Struct):
    """What a stream carries beside its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Message(Struct):
    """One turn of a conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class _Sampling(Struct, kw_only=True):
    """What both routes share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Unit | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Unit | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    nvext: Nvext | None = None


class ChatRequest(_Sampling, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template_args: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None


class CompletionRequest(_Sampling, kw_only=True):
    """POST /v1/completions."""

    prompt: Any
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    suffix: str | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class EmbeddingsRequest(Struct, kw_only=True):
    """POST /v1/embeddings."""

    model: str
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=MOST_DIMENSIONS)] | None = None
    user: str | None = None
    nvext: Nvext | None = None


class TokenizeRequest(Struct, kw_only=True):
    """POST /tokenize: a prompt, or messages."""

    model: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """POST /detokenize."""

    model: str
    tokens: list[TokenId]


_EXPECTED = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")
NVEXT_FIELDS: Final = frozenset({"ignore_eos", "top_k", "min_p", "repetition_penalty", "min_tokens"})
"""What older clients put into `nvext`; the top level wins."""
_NVEXT_KNOWN: Final = frozenset(Nvext.__struct_fields__)


def decode(raw: bytes) -> dict[str, Any]:
    """The body as a dict, or a 400 that says where it is no JSON."""
    try:
        body = msgspec.json.decode(raw)
    except RecursionError:
        raise bad_request("The request body is nested too deeply.", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _unreadable(raw) from None
    if not isinstance(body, dict):
        raise bad_request("The request body must be a JSON object.", code="invalid_json")
    return body


def _unreadable(raw: bytes) -> ApiError:
    """Why `raw` can't be decoded, found by the slower parser."""
    try:
        body = json.loads(raw)
    except UnicodeDecodeError:
        return bad_request("The request body is not valid UTF-8.", code="invalid_json")
    except RecursionError:
        return bad_request("The request body is nested too deeply.", code="invalid_json")
    except ValueError as error:
        return bad_request(f"The request body is not valid JSON: {error}.", code="invalid_json")
    for path, text in _strings(body):
        if any("\ud800" <= c <= "\udfff" for c in text):
            message = f"{path}: the text holds half of a surrogate pair (\\ud800..\\udfff)."
            return bad_request(message, code="invalid_string")
    return bad_request("The request body is not valid JSON: a number in it is not allowed.", code="invalid_json")


def _strings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every string in a decoded body, with where it stands."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}.{key}".lstrip("."), key
            yield from _strings(item, f"{path}.{key}".lstrip("."))


def read_chat(body: dict[str, Any]) -> ChatRequest:
    """A chat request whose every known field is right."""
    _hoist(body)
    request: ChatRequest = convert(body, ChatRequest)
    _check_sampling(request)
    check_guided(body)
    _check_chat(request)
    return request


def read_completion(body: dict[str, Any]) -> CompletionRequest:
    """A completion request whose every known field is right."""
    _hoist(body)
    request: CompletionRequest = convert(body, CompletionRequest)
    _check_sampling(request)
    check_guided(body)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise bad_request("best_of: only the value of n is supported.", "best_of", "unsupported_value")
    if request.suffix:
        raise bad_request("suffix: inserting text is not supported.", "suffix", "unsupported_parameter")
    if request.prompt_logprobs is not None:
        hint = "prompt_logprobs: not supported; use echo with logprobs."
        raise bad_request(hint, "prompt_logprobs", "unsupported_parameter")
    wanted = len(prompts(request.prompt)) * (request.n or 1)
    if wanted > MAX_PROMPTS:
        raise bad_request(f"n: at most {MAX_PROMPTS} answers per request, got {wanted}.", "n")
    return request


def read_embeddings(body: dict[str, Any]) -> tuple[EmbeddingsRequest, list[Input]]:
    """A request for vectors whose every known field is right, and its inputs one by one."""
    request: EmbeddingsRequest = convert(body, EmbeddingsRequest)
    try:
        return request, read_inputs(request.input)
    except InvalidArgument as error:
        raise bad_request(f"{error.message}.", "input") from None


def convert(body: dict[str, Any], kind: type[Any]) -> Any:
    """`body` as a struct, or a 400 that names the field."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None


def _invalid(text: str) -> ApiError:
    match = _EXPECTED.match(text)
    what, path = (match["what"], match["path"] or "") if match else (text, "")
    path = path.removeprefix("$").removeprefix(".")
    if missing := _MISSING.search(what):
        param = f"{path}.{missing[1]}".lstrip(".")
        return bad_request(f"{param}: this field is required.", param, "missing_required_parameter")
    what = what.replace("`", "").replace(" | null", "").replace("object", "an object")
    wrong_type = ", got " in what
    return bad_request(f"{path or 'body'}: {what[:1].lower()}{what[1:]}.", path or None,
                       "invalid_type" if wrong_type else "invalid_value")  # fmt: skip


def _hoist(body: dict[str, Any]) -> None:
    """Move what `nvext` says of sampling to the top level."""
    nvext = body.get("nvext")
    if isinstance(nvext, dict):
        for name in NVEXT_FIELDS & nvext.keys():
            if body.get(name) is None:
                body[name] = nvext[name]


def _check_sampling(request: _Sampling) -> None:
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options: only allowed when stream is true.", "stream_options")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if "" in stops:
        raise bad_request("stop: a stop string may not be empty.", "stop")
    if len(stops) > 64:
        raise bad_request(f"stop: at most 64 strings, got {len(stops)}.", "stop")
    limit = getattr(request, "max_completion_tokens", None) or request.max_tokens
    if request.min_tokens is not None and limit is not None and request.min_tokens > limit:
        raise bad_request(f"min_tokens: {request.min_tokens} is more than max_tokens ({limit}).", "min_tokens")
    for key in request.logit_bias or ():
        if not key.isdecimal():
            raise bad_request(f"logit_bias: {key!r} is not a token id.", "logit_bias")


def _check_chat(request: ChatRequest) -> None:
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("top_logprobs: needs logprobs to be true.", "top_logprobs")
    for index, message in enumerate(request.messages):
        if isinstance(message.content, list):
            _check_parts(message.content, f"messages[{index}].content")
    check_tool_choice(request.tool_choice)
    if request.functions:
        raise bad_request("functions: replaced by tools.", "functions", "unsupported_parameter")
    if request.modalities and request.modalities != ["text"]:
        raise bad_request("modalities: only text is supported.", "modalities", "unsupported_value")


def _check_parts(parts: list[dict[str, Any]], path: str) -> None:
    for index, part in enumerate(parts):
        where, kind = f"{path}[{index}]", part.get("type")
        if kind not in ("text", "input_text", "refusal"):
            text = f"{where}: content of type {kind!r} is not supported; use text."
            raise bad_request(text, where, "unsupported_value")
        if not isinstance(part.get("refusal" if kind == "refusal" else "text"), str):
            raise bad_request(f"{where}: a text part needs a text.", where, "invalid_type")


def answers(request: ChatRequest | CompletionRequest) -> int:
    """How many answers a checked request asks for."""
    prompt = "" if isinstance(request, ChatRequest) else request.prompt
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return (request.n or 1) * (len(prompt) if several else 1)


def prompts(prompt: Any) -> list[str | list[int]]:
    """The prompts of a completion request: a string, strings, token ids, or lists of them."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        kind = "an empty list" if prompt == [] else type(prompt).__name__
        raise bad_request(f"prompt: expected a string, token ids or a list of them, got {kind}.", "prompt")
    if len(prompt) > MAX_PROMPTS and not isinstance(prompt[0], int):
        raise bad_request(f"prompt: at most {MAX_PROMPTS} prompts, got {len(prompt)}.", "prompt")
    if _are_ids(prompt):
        return [prompt]
    for index, item in enumerate(prompt):
        if not isinstance(item, str) and not (isinstance(item, list) and item and _are_ids(item)):
            text = f"prompt: expected strings or lists of token ids, but item {index} is neither."
            raise bad_request(text, "prompt", "invalid_type")
    return prompt


def _are_ids(items: list[Any]) -> bool:
    return all(type(item) is int and 0 <= item < 2**31 for item in items)


def name_field(error: ApiError, chat: bool) -> ApiError:
    """Name the field that a lower layer refused: the one that its sentence starts with, else the prompt."""
    return named(error, ChatRequest, "messages") if chat else named(error, CompletionRequest, "prompt")


def named(error: ApiError, kind: type[Struct], default: str) -> ApiError:
    """As `name_field`, for any kind of request."""
    if error.status == 400 and error.param is None and error.code in ("invalid_value", "context_length_exceeded"):
        word = error.message.partition(" ")[0].rstrip(":")
        error.param = word if word in kind.__struct_fields__ else default
    return error


def unknown_fields(body: dict[str, Any], kind: type[Struct]) -> list[str]:
    """Fields of `body` that nothing here knows."""
    unknown = sorted(body.keys() - _KNOWN[kind])
    nvext = body.get("nvext")
    if isinstance(nvext, dict):
        unknown += [f"nvext.{name}" for name in sorted(nvext.keys() - _NVEXT_KNOWN)]
    return unknown


def refuse_unknown(unknown: Iterable[str], kind: type[Struct]) -> ApiError:
    """The 400 of strict mode."""
    names = list(unknown)
    hints = []
    for name in names:
        near = get_close_matches(name, _KNOWN[kind], n=1)
        hints.append(f"{name} (did you mean {near[0]}?)" if near else name)
    return bad_request(f"Unknown field(s): {', '.join(hints)}.", names[0], "unknown_parameter")


_KNOWN: Final[dict[type[Struct], frozenset[str]]] = {
    kind: frozenset(kind.__struct_fields__) for kind in (ChatRequest, CompletionRequest, EmbeddingsRequest,
                                                         TokenizeRequest, DetokenizeRequest)
}  # fmt: skip
