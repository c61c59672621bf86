"""Tools of type `custom`: text in a form of its own, as a function with one string to the model. Pure.

Chats and Responses have them. A grammar of theirs goes into the description, where a model reads it. Where the tool is
forced, an answer is held to it: a regular expression within the JSON of the arguments, a Lark grammar in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import bad_request, shown
from dynamo.frontend.openai.request_structs import MAX_GRAMMAR

CUSTOM: Final = "custom"
INPUT: Final = "input"
_STRING: Final = {"type": "string"}
_LARK: Final = "%llguidance"
_SYNTAXES: Final = ("lark", "regex")


class CustomTool(dict[str, Any]):
    """A function tool that stands for a custom one."""

    grammar: str = ""
    """In Lark's form, which its input keeps to."""


def custom_tool(name: str, described: Any, form: Any, where: str) -> CustomTool:
    """Return the function for a tool of that description and `format`; raises where the format is none."""
    texts = [described] if isinstance(described, str) else []
    schema: dict[str, Any] = dict(_STRING)
    grammar = ""
    if isinstance(form, Mapping) and form.get("type") == "grammar":
        syntax, definition = _grammar_of(form, where)
        texts.append(f"The input must match this {syntax} grammar:\n{definition}")
        if syntax == "regex":
            schema["pattern"] = f"^(?:{definition})$"
        else:
            grammar = definition if definition.startswith(_LARK) else f"{_LARK} {{}}\n{definition}"
    parameters = {"type": "object", "properties": {INPUT: schema}, "required": [INPUT], "additionalProperties": False}
    function = {"name": name, "description": "\n\n".join(texts), "parameters": parameters}
    tool = CustomTool(type="function", function=function)
    tool.grammar = grammar
    return tool


def _grammar_of(form: Mapping[str, Any], where: str) -> tuple[str, str]:
    inner = form.get("grammar")
    given = inner if isinstance(inner, Mapping) else form  # chats have one object more than Responses
    syntax, definition = given.get("syntax", "lark"), given.get("definition")
    if syntax not in _SYNTAXES or not isinstance(definition, str) or not 0 < len(definition) <= MAX_GRAMMAR:
        text = f"{where}: a grammar needs a syntax, lark or regex, and a definition of at most {MAX_GRAMMAR} bytes."
        raise bad_request(text, where)
    return str(syntax), definition


def of_chat(tool: Mapping[str, Any], where: str) -> CustomTool:
    """Return the function for a chat's custom tool."""
    own = tool.get(CUSTOM)
    if not isinstance(own, Mapping):
        raise bad_request(f"{where}.custom: this field is required.", f"{where}.custom", "missing_required_parameter")
    if not isinstance(name := own.get("name"), str) or not name:
        place = f"{where}.custom.name"
        raise bad_request(f"{place}: this field is required.", place, "missing_required_parameter")
    return custom_tool(name, own.get("description"), own.get("format"), f"{where}.custom.format")


def in_messages(messages: list[Any]) -> list[Any]:
    """Write calls of custom tools in messages as those of functions."""
    return [_message(message) if isinstance(message, Mapping) else message for message in messages]


def _message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not any(map(_is_custom, calls)):
        return message
    return {**message, "tool_calls": [_as_function(call) if _is_custom(call) else call for call in calls]}


def _is_custom(call: Any) -> bool:
    return isinstance(call, Mapping) and call.get("type") == CUSTOM and isinstance(call.get(CUSTOM), Mapping)


def _as_function(call: Mapping[str, Any]) -> dict[str, Any]:
    own = call[CUSTOM]
    if not isinstance(said := own.get(INPUT), str):
        raise bad_request(f"messages: a call of a custom tool has an input, a string, not {shown(said)}.", "messages")
    arguments = msgspec.json.encode({INPUT: said}).decode()
    return {"id": call.get("id"), "type": "function", "function": {"name": own.get("name"), "arguments": arguments}}


def input_of(arguments: str) -> str:
    """Return a call's input, of the function's arguments as the model wrote them."""
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):  # cut off in the middle
        return ""
    said = given.get(INPUT) if isinstance(given, dict) else None
    return said if isinstance(said, str) else ""


def customs(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the custom tools of a body, by name, with their grammars."""
    return {tool["function"]["name"]: tool.grammar for tool in body.get("tools") or () if isinstance(tool, CustomTool)}
