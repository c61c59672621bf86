"""Tools of the Responses API, as function tools that any model can call, and their calls as clients expect them. Pure.

Some tools are the client's to run but not functions by name: text in a form of its own (`custom`), a shell, patches.
Each is a function to the model; its calls, and their outputs, are items of a kind of their own. Tools that OpenAI's
servers run, and that agents offer without being asked (web search, pictures), are left out: a model calls only what it
is told of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request, shown
from dynamo.frontend.openai.custom_tools import custom_tool
from dynamo.frontend.openai.request_structs import MAX_TOOLS

Fields = dict[str, Any]
LEFT_OUT: Final = ("web_search", "image_generation")
"""Beginnings of the types that are left out."""
_STRING: Final = {"type": "string"}
_STRINGS: Final = {"type": "array", "items": _STRING}
_NUMBER: Final = {"type": "integer"}


class ToolKind(msgspec.Struct, frozen=True):
    """A tool that is no function to its client."""

    name: str
    """Of the function; "": the tool has one of its own."""
    call: str
    """Type of its calls' items; their outputs' has `_output` behind it."""
    field: str
    """Of a call's item: where what the model said stands."""
    described: str
    parameters: Fields
    said: Callable[[Fields], Any]
    """Of the function's arguments, the value of `field`."""
    arguments: Callable[[Any], Fields]
    """Of the value of `field`, the function's arguments."""
    stream: str = ""
    """Beginning of the events' types that carry the value; "": none do."""


def _object(required: tuple[str, ...], **properties: Any) -> Fields:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _as_object(value: Any) -> Fields:
    return dict(value) if isinstance(value, Mapping) else {}


CUSTOM: Final = ToolKind(
    "", "custom_tool_call", "input", "", _object(("input",), input=_STRING),
    lambda given: given["input"] if isinstance(given.get("input"), str) else "", lambda value: {"input": value},
    "response.custom_tool_call_input",
)  # fmt: skip
_LOCAL_SHELL: Final = ToolKind(
    "local_shell", "local_shell_call", "action", "Run a command on the user's machine.",
    _object(("command",), command=_STRINGS, working_directory=_STRING, timeout_ms=_NUMBER),
    lambda given: {"command": [], **given, "type": "exec", "env": {}},
    lambda value: {name: part for name, part in _as_object(value).items() if name not in ("type", "env")},
)  # fmt: skip
_SHELL: Final = ToolKind(
    "shell", "shell_call", "action", "Run commands in the user's shell.",
    _object(("commands",), commands=_STRINGS, timeout_ms=_NUMBER, max_output_length=_NUMBER),
    lambda given: {"commands": [], "timeout_ms": None, "max_output_length": None, **given}, _as_object,
)  # fmt: skip
_PATCH: Final = ToolKind(
    "apply_patch", "apply_patch_call", "operation", "Create, change or delete a file by a diff in the V4A format.",
    _object(("type", "path"), type={"enum": ["create_file", "update_file", "delete_file"]}, path=_STRING, diff=_STRING),
    lambda given: {"type": "update_file", "path": "", **given}, _as_object,
)  # fmt: skip
_KINDS: Final = {"custom": CUSTOM, "local_shell": _LOCAL_SHELL, "shell": _SHELL, "apply_patch": _PATCH}
CALLS: Final = {kind.call: kind for kind in _KINDS.values()}
"""Kinds by the type of their calls' items."""


class Member(msgspec.Struct, frozen=True):
    """A function of a group of tools, `namespace`: models see one name, clients two."""

    namespace: str
    name: str

    @property
    def whole(self) -> str:
        """Return the name that a model sees."""
        return f"{self.namespace}__{self.name}"


Kinds = dict[str, ToolKind | Member]


def read_tools(tools: list[Fields]) -> tuple[list[Fields], Kinds]:
    """Return the chat's tools, and which of them are no functions to the client, by name."""
    functions: list[Fields] = []
    kinds: Kinds = {}
    for index, tool in enumerate(tools):
        path, kind = f"tools[{index}]", tool.get("type")
        if kind == "function":
            functions.append(_function(tool, path))
        elif isinstance(kind, str) and kind in _KINDS:
            made = _made(_KINDS[kind], tool, path)
            kinds[made["function"]["name"]] = _KINDS[kind]
            functions.append(made)
        elif kind == "namespace":
            _add_members(tool, path, functions, kinds)
        elif not (isinstance(kind, str) and kind.startswith(LEFT_OUT)):
            raise _not_run(kind, path)
    return functions, kinds


def _add_members(group: Mapping[str, Any], path: str, functions: list[Fields], kinds: Kinds) -> None:
    """Add the functions of a group."""
    namespace, members = _name(group, path), group.get("tools")
    if not isinstance(members, list) or len(members) > MAX_TOOLS:
        raise bad_request(f"{path}.tools: expected a list of at most {MAX_TOOLS} tools.", f"{path}.tools")
    for index, tool in enumerate(members):
        where = f"{path}.tools[{index}]"
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            raise _not_run(tool.get("type") if isinstance(tool, Mapping) else None, where)
        made = _function(tool, where)
        member = Member(namespace, made["function"]["name"])
        made["function"]["name"] = member.whole
        kinds[member.whole] = member
        functions.append(made)


def _not_run(kind: Any, path: str) -> ApiError:
    text = f"{path}: tools of type {shown(kind)} are not run here; send function tools, and run them yourself."
    return bad_request(text, path, "unsupported_value")


def _function(tool: Mapping[str, Any], path: str) -> Fields:
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise bad_request(f"{path}.parameters: expected a JSON schema.", f"{path}.parameters", "invalid_type")
    fields = ("name", "description", "parameters", "strict")
    function = {field: value for field in fields if (value := tool.get(field)) is not None}
    return {"type": "function", "function": {**function, "name": _name(tool, path)}}


def _made(kind: ToolKind, tool: Mapping[str, Any], path: str) -> Fields:
    """Return the function tool that stands for another kind of tool."""
    if kind is CUSTOM:
        return custom_tool(_name(tool, path), tool.get("description"), tool.get("format"), f"{path}.format")
    described = tool.get("description")
    texts = [described if isinstance(described, str) else kind.described]
    made = {"name": kind.name, "description": "\n\n".join(filter(None, texts)), "parameters": kind.parameters}
    return {"type": "function", "function": made}


def _name(tool: Mapping[str, Any], path: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise bad_request(f"{path}.name: this field is required.", f"{path}.name", "missing_required_parameter")
    return name


def read_choice(choice: Any, tools: list[Fields]) -> tuple[Any, list[Fields]]:
    """Return the chat's `tool_choice`, and the tools that may be called."""
    if not isinstance(choice, Mapping):
        return choice, tools
    kind = choice.get("type")
    if kind == "function" or (isinstance(kind, str) and kind in _KINDS):
        name = choice.get("name") if kind in ("function", "custom") else _KINDS[kind].name
        if not isinstance(name, str) or not name:
            text = f'tool_choice.name: this field is required, as in {{"type": "{kind}", "name": "…"}}.'
            raise bad_request(text, "tool_choice.name", "missing_required_parameter")
        return {"type": "function", "function": {"name": name}}, tools
    allowed, mode = choice.get("tools"), choice.get("mode", "auto")
    if kind != "allowed_tools" or not isinstance(allowed, list) or mode not in ("auto", "required"):
        text = 'tool_choice: expected auto, none, required, {"type": "function", "name": "…"} or allowed_tools.'
        raise bad_request(text, "tool_choice", "unsupported_value")
    names = {_allowed(tool) for tool in allowed if isinstance(tool, Mapping)}
    return mode, [tool for tool in tools if tool["function"]["name"] in names]


def _allowed(tool: Mapping[str, Any]) -> str | None:
    kind, name = tool.get("type"), tool.get("name")
    if isinstance(kind, str) and kind in _KINDS and _KINDS[kind].name:
        return _KINDS[kind].name
    return name if isinstance(name, str) else None


def said_of(kind: ToolKind, arguments: str) -> Any:
    """Return what a call's item says, of the function's arguments as the model wrote them."""
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):  # cut off in the middle
        given = {}
    return kind.said(_as_object(given))
