"""Requests of the Responses API: checked, and read as the chat that they ask for. Pure; `routes/responses.py` calls it.

What both APIs have is checked by the chat's own rules, and named in this API's words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import msgspec

from dynamo.frontend.errors import ApiError, bad_request, shown
from dynamo.frontend.openai import requests as openai
from dynamo.frontend.openai.chat_builder import ChatBuilder, renamed
from dynamo.frontend.openai.constraints import packed
from dynamo.frontend.openai.request_structs import ChatRequest, Effort
from dynamo.frontend.openai.responses_input import Item, add_items, items_of
from dynamo.frontend.openai.responses_structs import ReasoningOptions, ResponsesRequest, TextOptions
from dynamo.frontend.openai.responses_tools import Kinds, read_choice, read_tools

LOGPROBS: Final = "message.output_text.logprobs"
SEALED: Final = "reasoning.encrypted_content"
INCLUDES: Final = (
    LOGPROBS, SEALED, "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs",
)  # fmt: skip
"""What of another server's tools is asked for is never there, so it may be asked for."""
EFFORTS: Final = get_args(Effort)
SUMMARIES: Final = ("auto", "concise", "detailed")
VERBOSITIES: Final = ("low", "medium", "high")
_SAME: Final = (
    "model", "stream", "temperature", "top_p", "parallel_tool_calls", "metadata", "user", "top_k", "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "stop", "min_tokens", "ignore_eos", "nvext",
    "chat_template_kwargs",
)  # fmt: skip
_NAMED: Final = {
    "messages": "input", "response_format": "text.format", "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens", "logprobs": "include",
}  # fmt: skip
"""The chat's fields, as this API names them."""
_LIMIT: Final = re.compile(r"\bmax_(completion_)?tokens\b")
"""The chat's limit, wherever a message names it."""
_NESTED: Final = "response_format.json_schema."
_ELSEWHERE: Final = {
    "prompt": "send the prompt's text in instructions and input",
}  # fmt: skip


class ResponsesAsked(msgspec.Struct):
    """One request, understood."""

    request: ResponsesRequest
    body: dict[str, Any]
    """Of the chat that it asks for."""
    chat: ChatRequest
    items: list[Item]
    """Its own input."""
    problem: ApiError | None
    """Of its conversation; to be raised once its model is known."""
    echo: dict[str, Any]
    """What its answer repeats of it; what may be large is JSON already."""
    kinds: Kinds
    """Of tools that are no functions, by name."""


def read_responses(body: dict[str, Any], before: Sequence[Item] = ()) -> ResponsesAsked:
    """Return a request whose every known field is right. `before`: the items of the conversation that it goes on."""
    request: ResponsesRequest = openai.convert(body, ResponsesRequest)
    _refuse_others(request)
    if request.input is None:
        raise bad_request("input: this field is required.", "input", "missing_required_parameter")
    items = items_of(request.input)
    chat = ChatBuilder()
    if request.instructions:
        chat.system(request.instructions)
    add_items(chat, before, "previous_response_id" if request.conversation is None else "conversation")
    add_items(chat, items)
    messages = chat.messages("input")
    if not messages:
        raise bad_request("input: there is nothing to answer; send text, or at least one item.", "input")
    tools, kinds = read_tools(request.tools or [])
    asked = _chat(request, body, messages, tools)
    try:
        checked = openai.read_chat(asked)
    except ApiError as error:
        raise named(error) from None
    return ResponsesAsked(request, asked, checked, items, chat.problem, echo_of(request), kinds)


def named(error: ApiError) -> ApiError:
    """Return an error about a chat's field as one about this API's."""
    if error.param is not None and error.param.startswith(_NESTED):  # here a schema stands in the format itself
        error.param = error.param.replace(_NESTED, "text.format.")
        error.message = error.message.replace(_NESTED, "text.format.")
    error = renamed(error, _NAMED)
    error.message = _LIMIT.sub("max_output_tokens", error.message)
    return error


def conversation_of(given: Any) -> str | None:
    """Return the id that a request's `conversation` is; None: there is none that can be."""
    name = given.get("id") if isinstance(given, Mapping) else getattr(given, "id", given)
    return name if isinstance(name, str) and name else None


def _refuse_others(request: ResponsesRequest) -> None:
    if request.conversation is not None and request.previous_response_id is not None:
        text = "conversation, previous_response_id: only one of them can be gone on from."
        raise bad_request(text, "conversation", "invalid_value")
    if (request.previous_response_id or "").startswith("conv_"):
        text = "previous_response_id: that is a conversation's id; send it as conversation."
        raise bad_request(text, "previous_response_id", "invalid_value")
    for name, instead in _ELSEWHERE.items():
        if getattr(request, name):
            raise bad_request(f"{name}: not supported; {instead}.", name, "unsupported_parameter")
    for index, name in enumerate(request.include or ()):
        if name not in INCLUDES:
            text = f"include[{index}]: {shown(name)} is not known; use {LOGPROBS} or {SEALED}."
            raise bad_request(text, f"include[{index}]", "unsupported_value")
    _refuse_words(request)


def _refuse_words(request: ResponsesRequest) -> None:
    """Raise the 400 of a word that isn't among those that its field may be."""
    reasoning, text = request.reasoning or ReasoningOptions(), request.text or TextOptions()
    for name, given, words in (
        ("reasoning.effort", reasoning.effort, EFFORTS), ("reasoning.summary", reasoning.summary, SUMMARIES),
        ("reasoning.generate_summary", reasoning.generate_summary, SUMMARIES),
        ("text.verbosity", text.verbosity, VERBOSITIES),
    ):  # fmt: skip
        if given is not None and given not in words:
            raise bad_request(f"{name}: expected {', '.join(words)}, got {shown(given)}.", name, "unsupported_value")


def _chat(
    request: ResponsesRequest, body: Mapping[str, Any], messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the body of the chat."""
    asked = {name: body[name] for name in _SAME if body.get(name) is not None}
    asked["messages"] = messages
    if request.max_output_tokens is not None:
        asked["max_completion_tokens"] = request.max_output_tokens
    if request.top_logprobs or LOGPROBS in (request.include or ()):
        asked |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    choice, tools = read_choice(request.tool_choice, tools)
    if tools:
        asked["tools"] = tools
    if choice is not None:
        asked["tool_choice"] = choice
    if (shape := _format(request)) is not None:
        asked["response_format"] = shape
    if request.reasoning is not None and (effort := request.reasoning.effort) is not None:
        asked["reasoning_effort"] = effort
    return asked


def _format(request: ResponsesRequest) -> dict[str, Any] | None:
    shape = request.text.format if request.text else None
    if shape is None or shape.get("type") != "json_schema":
        return shape
    return {"type": "json_schema", "json_schema": {name: value for name, value in shape.items() if name != "type"}}


def echo_of(request: ResponsesRequest) -> dict[str, Any]:
    """Return what every object of the answer repeats."""
    asked, text = request, request.text
    reasoning = asked.reasoning
    form: dict[str, Any] = {"format": {"type": "text"} if text is None or text.format is None else text.format}
    if text is not None and text.verbosity is not None:
        form["verbosity"] = text.verbosity
    large = {
        "instructions": asked.instructions, "metadata": asked.metadata or {}, "text": form,
        "tool_choice": "auto" if asked.tool_choice is None else asked.tool_choice, "tools": asked.tools or [],
    }  # fmt: skip
    effort, summary = (None, None) if reasoning is None else (reasoning.effort, reasoning.summary)
    return {
        **{name: _encoded(name, value) for name, value in large.items()},
        "background": False, "frequency_penalty": _or(asked.frequency_penalty, 0.0),
        "max_output_tokens": asked.max_output_tokens, "max_tool_calls": asked.max_tool_calls,
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "presence_penalty": _or(asked.presence_penalty, 0.0),
        "previous_response_id": asked.previous_response_id, "prompt_cache_key": asked.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": summary}, "safety_identifier": asked.safety_identifier,
        "service_tier": "default", "store": False, "temperature": _or(asked.temperature, 1.0),
        "top_logprobs": asked.top_logprobs or 0, "top_p": _or(asked.top_p, 1.0),
        "truncation": asked.truncation or "disabled", "user": asked.user,
        **({} if (name := conversation_of(asked.conversation)) is None else {"conversation": {"id": name}}),
    }  # fmt: skip


def _encoded(name: str, value: Any) -> msgspec.Raw:
    packed(name, value)  # numbers of more than 64 bits become floats
    return msgspec.Raw(msgspec.json.encode(value))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
