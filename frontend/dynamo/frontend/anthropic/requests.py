"""Requests of the Messages API: checked, and read as the chat that they ask for. Pure; `routes/messages.py` calls it.

What both APIs have is checked by the chat's own rules, and named in this API's words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from dynamo.frontend.anthropic.content import add_messages, system_of
from dynamo.frontend.anthropic.errors import THREAD_NOT_FOUND, THREAD_UNSUPPORTED
from dynamo.frontend.anthropic.request_structs import MessagesRequest, Prompt
from dynamo.frontend.anthropic.tools import functions_of
from dynamo.frontend.errors import ApiError, bad_request, shown
from dynamo.frontend.openai import requests as openai
from dynamo.frontend.openai.chat_builder import ChatBuilder, renamed
from dynamo.frontend.openai.request_structs import ChatRequest

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_THINKING: Final = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}
_SAME: Final = ("model", "stream", "temperature", "top_p", "max_tokens", "nvext")
_NAMED: Final = {"response_format": "output_config.format", "stop": "stop_sequences"}
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
Asked = TypeVar("Asked", bound=Prompt)


class MessagesAsked(msgspec.Struct):
    """One request, understood."""

    body: dict[str, Any]
    """Of the chat that it asks for."""
    chat: ChatRequest
    problem: ApiError | None
    """Of its conversation; to be raised once its model is known."""


def read_messages(body: dict[str, Any]) -> MessagesAsked:
    """Return a request whose every known field is right."""
    request: MessagesRequest = openai.convert(body, MessagesRequest)
    prompt, problem = prompt_of(request)
    if request.messages[-1]["role"] == "assistant":
        text = "messages: the last one is the assistant's, and answers can't be begun for it; end with a user's."
        problem = bad_request(text, "messages", "unsupported_value")
    asked = {name: body[name] for name in _SAME if body.get(name) is not None} | prompt
    if request.thread is not None:
        raise no_thread(request.thread)
    if request.stop_sequences:
        asked["stop"] = request.stop_sequences
    if request.top_k:
        asked["top_k"] = request.top_k
    user = (request.metadata or {}).get("user_id")
    if isinstance(user, str):
        asked["user"] = user[:512]
    try:
        return MessagesAsked(asked, openai.read_chat(asked), problem)
    except ApiError as error:
        raise named(error) from None


def no_thread(thread: Mapping[str, Any]) -> ApiError:
    """Return the answer to a conversation that the server should hold: clients send all of it then, by themselves."""
    return bad_request(
        "thread: conversations aren't held by this server; send all messages without it.", "thread",
        THREAD_NOT_FOUND if thread.get("type") == "continue" else THREAD_UNSUPPORTED,
    )  # fmt: skip


def read_prompt(body: dict[str, Any], kind: type[Asked]) -> tuple[dict[str, Any], ApiError | None]:
    """Return the chat whose tokens are to be counted, and what is wrong with it as a whole."""
    return prompt_of(openai.convert(body, kind))


def named(error: ApiError) -> ApiError:
    """Return an error about a chat's field as one about this API's."""
    return renamed(error, _NAMED)


def prompt_of(request: Prompt) -> tuple[dict[str, Any], ApiError | None]:
    """Return what a chat's prompt is made of: messages, tools, what templates know of. And what is wrong with it."""
    chat = ChatBuilder()
    if system := system_of(request.system):
        chat.system(system)
    add_messages(chat, request.messages)
    asked: dict[str, Any] = {"messages": chat.messages("messages"), **_tools(request), **_form(request)}
    variables: dict[str, Any] = {}
    if request.thinking is not None:
        if request.thinking.type not in _THINKING:
            text = f"thinking.type: expected {', '.join(_THINKING)}, got {shown(request.thinking.type)}."
            raise bad_request(text, "thinking.type", "unsupported_value")
        variables["enable_thinking"] = _THINKING[request.thinking.type]
    if request.output_config is not None and (effort := request.output_config.effort) is not None:
        if effort not in EFFORTS:
            text = f"output_config.effort: expected {', '.join(EFFORTS)}, got {shown(effort)}."
            raise bad_request(text, "output_config.effort", "unsupported_value")
        variables["reasoning_effort"] = effort
    return asked | ({"chat_template_kwargs": variables} if variables else {}), chat.problem


def _tools(request: Prompt) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    if request.tools:
        asked |= {"tools": functions} if (functions := functions_of(request.tools)) else {}
    if (choice := request.tool_choice) is None:
        return asked
    kind = choice.get("type")
    if kind == "tool" and isinstance(name := choice.get("name"), str) and name:
        asked["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif isinstance(kind, str) and kind in _CHOICES:
        asked["tool_choice"] = _CHOICES[kind]
    else:
        text = "tool_choice: expected type auto, any, none, or tool with a name."
        raise bad_request(text, "tool_choice", "unsupported_value")
    if choice.get("disable_parallel_tool_use") is True:
        asked["parallel_tool_calls"] = False
    return asked


def _form(request: Prompt) -> dict[str, Any]:
    shape = None if request.output_config is None else request.output_config.format
    if shape is None:
        return {}
    if shape.get("type") != "json_schema" or not isinstance(shape.get("schema"), Mapping):
        text = "output_config.format: expected type json_schema with a schema."
        raise bad_request(text, "output_config.format", "unsupported_value")
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": shape["schema"]}}}
