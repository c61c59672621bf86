"""What `/openapi.json` says of the Messages API, beside the types of its structs."""

from __future__ import annotations

from typing import Any, Final

from dynamo.frontend.anthropic.answer_structs import MessagesErrorReply
from dynamo.frontend.anthropic.request_structs import CountTokensRequest, MessagesRequest
from dynamo.frontend.anthropic.requests import EFFORTS
from dynamo.frontend.openai.constraints import NAME
from dynamo.frontend.openai.request_structs import MAX_MESSAGES, MAX_TOOLS
from dynamo.frontend.openapi.description import STOPS, Described, Json

_NULL: Final[Json] = {"type": "null"}
_OBJECT: Final[Json] = {"type": "object"}
_NAME: Final[Json] = {"type": "string", "minLength": 1, "maxLength": 512}
_STRING: Final[Json] = {"type": "string"}


def _object(required: dict[str, Any], **optional: Any) -> Json:
    return {"type": "object", "required": [*required], "properties": {**required, **optional}}


def _content(*blocks: Json) -> Json:
    items = {"oneOf": [*blocks]} if len(blocks) > 1 else blocks[0]
    return {"anyOf": [_STRING, {"type": "array", "items": items, "minItems": 1}]}


_TEXT: Final[Json] = _object({"type": {"const": "text"}, "text": _STRING})
_SOURCE: Final[Json] = {"oneOf": [
    _object({"type": {"const": "base64"}, "media_type": _STRING, "data": _STRING}),
    _object({"type": {"const": "url"}, "url": _STRING}),
]}  # fmt: skip
_IMAGE: Final[Json] = _object({"type": {"const": "image"}, "source": _SOURCE})
_THINKING: Final[Json] = _object({"type": {"const": "thinking"}, "thinking": _STRING}, signature=_STRING)
_TOOL_USE: Final[Json] = _object({"type": {"const": "tool_use"}, "id": _NAME, "name": _NAME, "input": _OBJECT})
_TOOL_RESULT: Final[Json] = _object(
    {"type": {"const": "tool_result"}, "tool_use_id": _NAME}, content=_content(_TEXT, _IMAGE)
)
_MESSAGES: Final[Json] = {
    "description": "The last one is a user's.",
    "type": "array", "minItems": 1, "maxItems": MAX_MESSAGES,
    "items": {"anyOf": [
        _object({"role": {"const": "user"}, "content": _content(_TEXT, _IMAGE, _TOOL_RESULT)}),
        _object({"role": {"const": "assistant"}, "content": _content(_TEXT, _THINKING, _TOOL_USE)}),
    ]},
}  # fmt: skip
_TOOL_NAME: Final[Json] = {"type": "string", "pattern": f"^{NAME.pattern}$"}
_SCHEMA: Final[Json] = {"type": "object", "properties": {"type": {"const": "object"}}}
_TOOL: Final[Json] = _object(
    {"name": _TOOL_NAME, "input_schema": _SCHEMA}, type={"const": "custom"}, description=_STRING
)
_PROMPT: Final[dict[str, Json]] = {
    "messages": _MESSAGES,
    "system": {"anyOf": [_STRING, {"type": "array", "items": _TEXT}, _NULL]},
    # Names of tools must differ. A schema can't say that; that whole tools differ is the closest it comes.
    "tools": {"anyOf": [{"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS, "uniqueItems": True}, _NULL]},
    "tool_choice": {"anyOf": [
        _object({"type": {"enum": ["auto", "any", "none"]}}), _object({"type": {"const": "tool"}, "name": _NAME}),
        _NULL,
    ]},
}  # fmt: skip

DESCRIBED: Final = Described(
    bodies={
        "/v1/messages": (MessagesRequest, "Answer messages, whole or as server-sent events", "messages"),
        "/v1/messages/count_tokens": (CountTokensRequest, "", "tokens"),
    },
    narrower={
        "MessagesRequest": {
            **_PROMPT, "stop_sequences": {"anyOf": [STOPS, _NULL]}, "thread": _NULL,
        },
        "CountTokensRequest": _PROMPT,
        "Thinking": {"type": {"enum": ["enabled", "adaptive", "disabled"]}},
        "OutputConfig": {
            "effort": {"anyOf": [{"enum": [*EFFORTS]}, _NULL]},
            "format": {"anyOf": [_object({"type": {"const": "json_schema"}, "schema": _OBJECT}), _NULL]},
        },
    },
    rules={},
    error=MessagesErrorReply,
)  # fmt: skip
