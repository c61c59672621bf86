"""Tools for templates that know nothing of them: told in the system's words, calls and answers as text. Pure.

The wording is that of Hermes, which many models have seen; the parser `hermes` reads what they write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

_HEAD: Final = "You may call one or more functions. Their signatures, as JSON, are within <tools></tools>:\n<tools>\n"
_FOOT: Final = (
    "\n</tools>\nFor each call answer with a JSON object within <tool_call></tool_call>:\n"
    '<tool_call>\n{"name": "the function\'s name", "arguments": {"argument": "value"}}\n</tool_call>'
)


def with_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the messages with the tools in the first one, the system's."""
    described = _HEAD + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + _FOOT
    said = [dict(message) for message in messages]
    if said and said[0].get("role") in ("system", "developer"):
        content = said[0].get("content") or ""
        part = {"type": "text", "text": f"\n\n{described}"}
        said[0]["content"] = [*content, part] if isinstance(content, list) else f"{content}\n\n{described}"
        return said
    return [{"role": "system", "content": described}, *said]


def as_text(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose calls, or whose answer of a tool, are text; others as they are."""
    if calls := message.get("tool_calls"):
        parts = [message.get("content") or "", *(_call(call) for call in calls if isinstance(call, Mapping))]
        return {**message, "content": "\n".join(part for part in parts if part)}
    if message.get("role") == "tool":
        return {**message, "role": "user", "content": f"<tool_response>\n{message.get('content')}\n</tool_response>"}
    return message


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    said = {"name": function.get("name"), "arguments": function.get("arguments")}
    return f"<tool_call>\n{json.dumps(said, ensure_ascii=False)}\n</tool_call>"
