"""Older and newer words for tools, taken into the one form that all else reads: `tools` and `tool_choice`. Pure.

`functions` and `function_call`, in a request and in its messages, are what `tools` were before; `allowed_tools` leaves
some of the tools out. Custom tools are functions to the model (`custom_tools.py`); others are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dynamo.frontend.errors import bad_request, shown
from dynamo.frontend.openai.custom_tools import CUSTOM, CustomTool, in_messages, of_chat
from dynamo.frontend.openai.request_structs import MAX_TOOLS

_ALLOWED: Final = "allowed_tools"
_MODES: Final = ("auto", "required")
_LEGACY: Final = frozenset(("functions", "function_call"))
TOOL_WORDS: Final = _LEGACY | {"tools", "tool_choice"}
"""Fields of which one, at least, speaks of tools."""


def is_legacy(body: Mapping[str, Any]) -> bool:
    """Tell whether the client expects calls as `function_call`."""
    return bool(body.get("functions"))


def take_tools(body: dict[str, Any]) -> None:
    """Write what a body says of tools in the newest words; raises for what can't be served."""
    if not _LEGACY.isdisjoint(body):
        _take_functions(body)
    tools = body.get("tools")
    if isinstance(tools, list):
        for index, tool in enumerate(tools):
            kind = tool.get("type") if isinstance(tool, Mapping) else "function"
            if kind == CUSTOM:
                tools[index] = of_chat(tool, f"tools[{index}]")
            elif kind not in ("function", None):
                where = f"tools[{index}].type"
                text = f"{where}: {shown(kind)} is not served in chats; send a tool of type function or custom."
                raise bad_request(text, where, "unsupported_value")
        if any(isinstance(tool, CustomTool) for tool in tools) and isinstance(messages := body.get("messages"), list):
            body["messages"] = in_messages(messages)
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == CUSTOM:
        body["tool_choice"] = {"type": "function", "function": choice.get(CUSTOM)}
    if isinstance(choice, Mapping) and choice.get("type") == _ALLOWED:
        _take_allowed(body, choice)


def _take_functions(body: dict[str, Any]) -> None:
    functions, choice = body.get("functions"), body.get("function_call")
    if functions and (body.get("tools") or body.get("tool_choice") is not None):
        raise bad_request("functions: replaced by tools; send one of the two.", "functions")
    if choice is not None and not functions:
        raise bad_request("function_call: there are no functions to choose from.", "function_call")
    if not isinstance(functions, list) or not functions or len(functions) > MAX_TOOLS:
        return  # its type is checked elsewhere
    for index, function in enumerate(functions):
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            where = f"functions[{index}].name"
            raise bad_request(f"{where}: this field is required.", where, "missing_required_parameter")
    body["tools"] = [{"type": "function", "function": function} for function in functions]
    body["parallel_tool_calls"] = False
    body["tool_choice"] = _choice(choice)
    if isinstance(messages := body.get("messages"), list):
        body["messages"] = _messages(messages)


def _choice(choice: Any) -> Any:
    if choice in (None, "auto", "none"):
        return choice
    name = choice.get("name") if isinstance(choice, Mapping) else None
    if not isinstance(name, str) or not name:
        text = 'function_call: expected auto, none or {"name": "…"}.'
        raise bad_request(text, "function_call", "unsupported_value")
    return {"type": "function", "function": {"name": name}}


def _messages(messages: list[Any]) -> list[Any]:
    """Write `function_call` of assistants as `tool_calls`, and answers of functions as those of tools."""
    taken: list[Any] = []
    last = ""
    for index, message in enumerate(messages):
        call = message.get("function_call") if isinstance(message, Mapping) else None
        if isinstance(call, Mapping):
            last = f"call_{index}"
            message = {name: value for name, value in message.items() if name != "function_call"}
            message["tool_calls"] = [{"id": last, "type": "function", "function": dict(call)}]
        elif isinstance(message, Mapping) and message.get("role") == "function" and last:
            message = {**message, "role": "tool", "tool_call_id": last}
        taken.append(message)
    return taken


def _take_allowed(body: dict[str, Any], choice: Mapping[str, Any]) -> None:
    where = f"tool_choice.{_ALLOWED}"
    inner = choice.get(_ALLOWED, choice)  # Responses has its fields beside the type
    mode = inner.get("mode") if isinstance(inner, Mapping) else None
    names = list(map(_name, _listed(inner))) if isinstance(inner, Mapping) else []
    if mode not in _MODES or not names or None in names:
        text = f"{where}: expected a mode, auto or required, and tools, each with a function's name."
        raise bad_request(text, where)
    tools = {_name(tool): tool for tool in _listed(body)}
    if unknown := [name for name in names if name not in tools]:
        raise bad_request(f"{where}: {shown(unknown[0])} is none of the tools.", where)
    body["tools"], body["tool_choice"] = [tools[name] for name in dict.fromkeys(names)], mode


def _listed(holder: Mapping[str, Any]) -> list[Any]:
    """Return the tools that somebody lists; none where it is no list."""
    tools = holder.get("tools")
    return tools if isinstance(tools, list) else []


def _name(tool: Any) -> str | None:
    if not isinstance(tool, Mapping):
        return None
    function = tool.get("function", tool.get(CUSTOM, tool))
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) and name else None
