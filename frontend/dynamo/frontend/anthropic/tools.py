"""Tools of the Messages API, as the function tools of a chat. Pure.

Tools that Anthropic has given a name and a schema, and that the client runs, are functions with that schema. Those that
Anthropic's servers run and that agents offer without being asked are left out: a model calls only what it is told of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dynamo.frontend.errors import bad_request, shown
from dynamo.frontend.openai.constraints import NAME, NAME_FORM

LEFT_OUT: Final = ("web_search_", "web_fetch_", "tool_search_tool_")
"""Beginnings of the types that are left out."""
_STRING: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_EDITS: Final = ["view", "create", "str_replace", "insert"]
_BASH: Final = ("Run a command in a shell that stays open.", {
    "type": "object", "properties": {"command": _STRING, "restart": {"type": "boolean"}},
})  # fmt: skip
_EDITOR: Final = ("View, create and edit files.", {
    "type": "object",
    "properties": {
        "command": {"enum": _EDITS}, "path": _STRING, "file_text": _STRING, "old_str": _STRING, "new_str": _STRING,
        "insert_line": _NUMBER, "insert_text": _STRING, "view_range": {"type": "array", "items": _NUMBER},
    },
    "required": ["command", "path"],
})  # fmt: skip
_MEMORY: Final = ("View and change the files of a memory that outlives this conversation.", {
    "type": "object",
    "properties": {
        "command": {"enum": [*_EDITS, "delete", "rename"]}, "path": _STRING, "file_text": _STRING, "old_str": _STRING,
        "new_str": _STRING, "insert_line": _NUMBER, "insert_text": _STRING, "old_path": _STRING, "new_path": _STRING,
        "view_range": {"type": "array", "items": _NUMBER},
    },
    "required": ["command"],
})  # fmt: skip
_KNOWN: Final[dict[str, tuple[str, dict[str, Any]]]] = {"bash_": _BASH, "text_editor_": _EDITOR, "memory_": _MEMORY}
"""By the beginnings of their types; a date follows."""


def functions_of(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the chat's tools; a 400 names the one that can't be."""
    functions: list[dict[str, Any]] = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        function = _function(tool, f"tools[{index}]")
        if function is None:
            continue
        if (name := function["name"]) in names:
            text = f"tools[{index}].name: tool names must be unique, and another tool is called {shown(name)}."
            raise bad_request(text, f"tools[{index}].name")
        names.add(name)
        functions.append({"type": "function", "function": function})
    return functions


def _function(tool: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    kind, name, schema = tool.get("type"), tool.get("name"), tool.get("input_schema")
    described = tool.get("description")
    if isinstance(kind, str) and kind.startswith(LEFT_OUT):
        return None
    if isinstance(kind, str) and kind != "custom":
        known = next((known for beginning, known in _KNOWN.items() if kind.startswith(beginning)), None)
        described, schema = known or (None, None)
    if kind is not None and kind != "custom" and schema is None:
        text = f"{path}: tools of type {shown(kind)} are not run here; send tools with an input_schema."
        raise bad_request(text, path, "unsupported_value")
    if not isinstance(name, str) or not name:
        raise bad_request(f"{path}.name: this field is required.", f"{path}.name", "missing_required_parameter")
    if not NAME.fullmatch(name):
        raise bad_request(f"{path}.name: expected {NAME_FORM}, got {shown(name)}.", f"{path}.name")
    _check_schema(schema, f"{path}.input_schema")
    optional = {"description": described, "strict": tool.get("strict")}
    return {"name": name, "parameters": schema, **{field: v for field, v in optional.items() if v is not None}}


def _check_schema(schema: Any, path: str) -> None:
    """Raise where it is no schema of a tool's input, which is an object."""
    if not isinstance(schema, Mapping):
        text = f"{path}: this field is required, a JSON schema."
        raise bad_request(text, path, "missing_required_parameter")
    if (kind := schema.get("type")) is not None and kind != "object":
        raise bad_request(f"{path}.type: expected object, got {shown(kind)}.", f"{path}.type")
