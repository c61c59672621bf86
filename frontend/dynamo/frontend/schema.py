"""The OpenAPI description of the hot routes, made of the structs that check them.

FastAPI describes its own routes; the plain ASGI ones are added here, so that
`/openapi.json` and `/docs` show everything.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dynamo.frontend.openai import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingsRequest,
    TokenizeRequest,
)

_REF: Final = "#/components/schemas/{name}"
_BODIES: Final = {
    "/v1/chat/completions": (ChatRequest, "Answer a conversation, whole or as server-sent events", "chat"),
    "/v1/completions": (CompletionRequest, "Continue prompts, whole or as server-sent events", "completions"),
    "/v1/embeddings": (EmbeddingsRequest, "Turn texts, or their tokens, into vectors", "embeddings"),
    "/tokenize": (TokenizeRequest, "", "tokens"),
    "/detokenize": (DetokenizeRequest, "", "tokens"),
}
_ERROR: Final = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def describe(openapi: dict[str, Any]) -> dict[str, Any]:
    """Add the bodies and the hot routes to what FastAPI made."""
    kinds = [kind for kind, _, _ in _BODIES.values()]
    _, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schemas = openapi.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(components)
    schemas["Error"] = _ERROR
    for path, (kind, summary, tag) in _BODIES.items():
        operation = openapi["paths"].setdefault(path, {}).setdefault("post", {})
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _REF.format(name=kind.__name__)}}},
        }
        if summary:
            operation |= {"summary": summary, "tags": [tag], "operationId": path.strip("/").replace("/", "_")}
            operation["responses"] = _responses(streams=kind is not EmbeddingsRequest)
    return openapi


def _responses(*, streams: bool) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}}
    texts = {
        "400": "The request is wrong; `param` names the field",
        "404": "The model does not exist, or doesn't answer on this route",
        "413": "The body is too large",
        "500": "The server or the engine failed",
        "503": "No worker can take the request now; see Retry-After",
    }
    whole: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        whole["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "200": {"description": "The answer", "content": whole},
        **{status: {"description": text, "content": error} for status, text in texts.items()},
    }
