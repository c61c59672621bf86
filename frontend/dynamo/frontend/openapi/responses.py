"""What `/openapi.json` says of the Responses API, beside the types of its structs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dynamo.frontend.openai.constraints import NAME
from dynamo.frontend.openai.request_structs import MAX_MESSAGES, MAX_TOOLS
from dynamo.frontend.openai.responses_requests import EFFORTS, INCLUDES, SUMMARIES, VERBOSITIES
from dynamo.frontend.openai.responses_structs import (
    MOST_ITEMS,
    ConversationChange,
    ConversationItems,
    ConversationRequest,
    ResponsesRequest,
)
from dynamo.frontend.openai.responses_tools import CALLS, LEFT_OUT
from dynamo.frontend.openapi.description import STOP, Described, Json

_NULL: Final[Json] = {"type": "null"}
_OBJECT: Final[Json] = {"type": "object"}
_NAME: Final[Json] = {"type": "string", "minLength": 1, "maxLength": 512}
_FORMAT_NAME: Final[Json] = {"type": "string", "pattern": f"^{NAME.pattern}$"}
_STRING: Final[Json] = {"type": "string"}


def _object(required: dict[str, Any], **optional: Any) -> Json:
    return {"type": "object", "required": [*required], "properties": {**required, **optional}}


def _word(words: Sequence[str]) -> Json:
    return {"anyOf": [{"enum": [*words]}, _NULL]}


_PART: Final[Json] = {"oneOf": [
    _object({"type": {"enum": ["input_text", "output_text"]}, "text": _STRING}),
    _object({"type": {"const": "refusal"}, "refusal": _STRING}),
    _object({"type": {"const": "input_image"}, "image_url": _STRING}, detail={"enum": ["auto", "low", "high"]}),
]}  # fmt: skip
_CONTENT: Final[Json] = {"anyOf": [_STRING, {"type": "array", "items": _PART}]}
_THOUGHT: Final[Json] = _object({"type": {"const": "reasoning_text"}, "text": _NAME})
_ITEM: Final[Json] = {
    "anyOf": [
        _object(
            {"role": {"enum": ["user", "assistant", "system", "developer"]}, "content": _CONTENT},
            type={"const": "message"},
        ),
        _object({"type": {"const": "function_call"}, "call_id": _NAME, "name": _NAME, "arguments": _STRING}),
        _object({"type": {"const": "function_call_output"}, "call_id": _NAME, "output": _CONTENT}),
        _object({"type": {"const": "custom_tool_call"}, "call_id": _NAME, "name": _NAME, "input": _STRING}),
        _object({"type": {"enum": ["local_shell_call", "shell_call"]}, "call_id": _NAME, "action": _OBJECT}),
        _object({"type": {"const": "apply_patch_call"}, "call_id": _NAME, "operation": _OBJECT}),
        _object({"type": {"enum": [f"{call}_output" for call in CALLS]}, "call_id": _NAME, "output": _CONTENT}),
        _object({"type": {"const": "item_reference"}, "id": _NAME}),
        _object({"type": {"const": "reasoning"}, "content": {"type": "array", "items": _THOUGHT, "minItems": 1}}),
    ],
}
_KEPT: Final[Json] = {"anyOf": _ITEM["anyOf"][:3]}
"""Item that is added to a conversation; the others of `_ITEM` are taken, too, in more forms than it says."""
_EMPTY: Final[Json] = {"type": "array", "items": _OBJECT, "maxItems": 0}
_TOOL: Final[Json] = {"anyOf": [
    _object(
        {"type": {"const": "function"}, "name": _NAME}, parameters={"anyOf": [_OBJECT, _NULL]}, description=_STRING
    ),
    _object({"type": {"const": "custom"}, "name": _NAME}, description=_STRING, format=_OBJECT),
    _object({"type": {"const": "namespace"}, "name": _NAME, "tools": _EMPTY}),
    _object({"type": {"enum": ["local_shell", "shell", "apply_patch", *LEFT_OUT]}}),
]}  # fmt: skip
_CHOICES: Final[list[Json]] = [
    {"enum": ["auto", "none", "required"]},
    _object({"type": {"const": "function"}, "name": _NAME}),
    _object({"type": {"const": "allowed_tools"}, "tools": {"type": "array", "items": _object({"name": _NAME})}},
            mode={"enum": ["auto", "required"]}),
    _NULL,
]  # fmt: skip
_FORMAT: Final[Json] = {"anyOf": [
    _object({"type": {"enum": ["text", "json_object"]}}),
    _object({"type": {"const": "json_schema"}, "name": _FORMAT_NAME, "schema": _OBJECT}),
    _NULL,
]}  # fmt: skip

DESCRIBED: Final = Described(
    bodies={"/v1/responses": (ResponsesRequest, "Answer items, whole or as server-sent events", "responses"),
            "/v1/responses/input_tokens": (ResponsesRequest, "", "tokens"),
            "/v1/conversations": (ConversationRequest, "", "conversations"),
            "/v1/conversations/{conversation_id}": (ConversationChange, "", "conversations"),
            "/v1/conversations/{conversation_id}/items": (ConversationItems, "", "conversations")},
    narrower={
        "ResponsesRequest": {
            "input": {"anyOf": [
                _STRING, {"type": "array", "items": _ITEM, "minItems": 1, "maxItems": MAX_MESSAGES},
            ]},
            "tools": {"anyOf": [{"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS}, _NULL]},
            "tool_choice": {"anyOf": _CHOICES},
            "include": {"anyOf": [{"type": "array", "items": {"enum": [*INCLUDES]}, "maxItems": 16}, _NULL]},
            "prompt": _NULL,
            "stop": STOP,
        },
        "ConversationRequest": {"items": {"anyOf": [{"type": "array", "items": _KEPT, "maxItems": MOST_ITEMS}, _NULL]}},
        "ConversationItems": {
            "items": {"type": "array", "items": _KEPT, "minItems": 1, "maxItems": MOST_ITEMS}
        },
        "ReasoningOptions": {
            "effort": _word(EFFORTS), "summary": _word(SUMMARIES), "generate_summary": _word(SUMMARIES),
        },
        "TextOptions": {"format": _FORMAT, "verbosity": _word(VERBOSITIES)},
    },
    rules={"ResponsesRequest": [
        {"required": ["input"], "properties": {"input": {}}},
        {"anyOf": [{"properties": {"conversation": _NULL}}, {"properties": {"previous_response_id": _NULL}}]},
        {"not": {"required": ["background", "store"], "properties": {
            "background": {"const": True}, "store": {"const": False},
        }}},
    ]},
)  # fmt: skip
