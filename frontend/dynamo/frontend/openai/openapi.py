"""The OpenAPI description of the routes, made of the structs that check their bodies.

FastAPI lists its own routes; the plain ASGI ones are added here, and what every route may answer, so that
`/openapi.json` and `/docs` show everything. schemathesis finds no difference between this and what is served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dynamo.frontend.openai.request_structs import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingsRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
)

Json = dict[str, Any]
Answers = Mapping[tuple[str, str], type[msgspec.Struct]]
"""By method and path."""


class Described(NamedTuple):
    """What an API says of its routes; `openapi.py` has chat's, completions' and embeddings' own."""

    bodies: Mapping[str, tuple[type[msgspec.Struct], str, str]]
    """By their path: the body, a summary and a tag."""
    narrower: Mapping[str, Mapping[str, Json]]
    rules: Mapping[str, Sequence[Json]]
    streams: Sequence[str]


_REF: Final = "#/components/schemas/{name}"
_BODIES: Final[dict[str, tuple[type[msgspec.Struct], str, str]]] = {
    "/v1/chat/completions": (ChatRequest, "Answer a conversation, whole or as server-sent events", "chat"),
    "/v1/completions": (CompletionRequest, "Continue prompts, whole or as server-sent events", "completions"),
    "/v1/embeddings": (EmbeddingsRequest, "Turn texts, or their tokens, into vectors", "embeddings"),
    "/v1/rerank": (RerankRequest, "", "embeddings"),
    "/v1/score": (ScoreRequest, "", "embeddings"),
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


_OBJECT: Final[Json] = {"type": "object"}
_TEXT: Final[Json] = {"type": "string", "minLength": 1}
_TOKEN: Final[Json] = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TOKENS: Final[Json] = {"type": "array", "items": _TOKEN, "minItems": 1}
_NULL: Final[Json] = {"type": "null"}
_TRUE: Final[Json] = {"const": True}
_PART: Final[Json] = {
    "oneOf": [
        {
            "type": "object", "required": ["type", field],
            "properties": {"type": {"enum": kinds}, field: {"type": "string"}},
        }
        for field, kinds in (("text", ["text", "input_text"]), ("refusal", ["refusal"]))
    ]
}  # fmt: skip
_CHOSEN: Final[Json] = {
    "type": "object", "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": _TEXT}},
    },
}  # fmt: skip
_FORMAT: Final[Json] = {
    "oneOf": [
        {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["text", "json_object"]}}},
        {
            "type": "object", "required": ["type", "json_schema"],
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object", "required": ["schema"],
                    "properties": {"schema": _OBJECT, "strict": {"type": ["boolean", "null"]}},
                },
            },
        },
    ]
}  # fmt: skip
_CONSTRAINTS: Final[dict[str, Json]] = {
    "guided_json": {"anyOf": [_TEXT, _OBJECT, _NULL]},
    "guided_regex": {"anyOf": [_TEXT, _NULL]},
    "guided_choice": {"anyOf": [{"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 4096}, _NULL]},
    "guided_grammar": {"anyOf": [_TEXT, _NULL]},
}  # fmt: skip
_STOP: Final[Json] = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": 16}, _NULL]}
_SAMPLING: Final[dict[str, Json]] = {
    **_CONSTRAINTS,
    "response_format": {"anyOf": [_FORMAT, _NULL]},
    "stop": _STOP,
    "best_of": _NULL,
    "min_tokens": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 1}, _NULL]},
}
_NARROWER: Final[dict[str, dict[str, Json]]] = {
    "Message": {"content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}, _NULL]}},
    "ChatRequest": {
        **_SAMPLING,
        "modalities": {"anyOf": [{"type": "array", "items": {"const": "text"}, "maxItems": 1}, _NULL]},
        "functions": {"anyOf": [{"type": "array", "items": _OBJECT, "maxItems": 0}, _NULL]},
        "tool_choice": {"anyOf": [{"enum": ["auto", "none", "required"]}, _CHOSEN, _NULL]},
    },
    "CompletionRequest": {
        **_SAMPLING,
        "prompt": {
            "anyOf": [
                {"type": "string"}, _TOKENS,
                {"type": "array", "items": {"anyOf": [{"type": "string"}, _TOKENS]}, "minItems": 1, "maxItems": 2048},
            ]
        },
    },
    "Nvext": {"cache_salt": _NULL, "max_thinking_tokens": _NULL},
    "RoutingConstraints": {"required_taints": _NULL},
    "EmbeddingsRequest": {
        "input": {
            "anyOf": [_TEXT, _TOKENS, *({"type": "array", "items": kind, "minItems": 1, "maxItems": 2048}
                                        for kind in (_TEXT, _TOKENS))]
        },
    },
}  # fmt: skip
"""What a field may hold where its type alone says more: beyond it the routes refuse by hand."""
_KEYS_OF: Final[dict[str, Json]] = {"logit_bias": {"propertyNames": {"pattern": "^[0-9]{1,10}$"}}}


def _alone(*fields: str) -> Json:
    return {"anyOf": [{"properties": {name: _NULL for name in fields if name != free}} for free in fields]}


_STREAM_OPTIONS: Final[Json] = {
    "anyOf": [
        {"properties": {"stream_options": _NULL, "stream": {"enum": [False, None]}}},
        {"required": ["stream"], "properties": {"stream": _TRUE, "prompt_logprobs": _NULL}},
    ]
}
_TOP_LOGPROBS: Final[Json] = {
    "anyOf": [{"properties": {"top_logprobs": _NULL}}, {"required": ["logprobs"], "properties": {"logprobs": _TRUE}}]
}
_RULES: Final[dict[str, list[Json]]] = {
    "ChatRequest": [_STREAM_OPTIONS, _TOP_LOGPROBS, _alone(*_CONSTRAINTS, "response_format", "structured_outputs")],
    "CompletionRequest": [_STREAM_OPTIONS, _alone(*_CONSTRAINTS, "response_format", "structured_outputs")],
    "Nvext": [_alone("backend_instance_id", "decode_worker_id")],
    "TokenizeRequest": [
        {"oneOf": [{"required": [name], "properties": {name: {"type": kind}, other: _NULL}}
                   for name, kind, other in (("prompt", "string", "messages"), ("messages", "array", "prompt"))]},
    ],
}  # fmt: skip
"""What fields may say together. schemathesis makes no requests of more alternatives than some twenty."""
_OPENAI: Final = Described(_BODIES, _NARROWER, _RULES, ("/v1/chat/completions", "/v1/completions"))
_ERRORS: Final = {
    "400": "The request is invalid; `param` names the field",
    "401": "A key is required, and the request has none that is known",
    "403": "Only callers on the frontend's own machine may do this",
    "404": "The model or the route does not exist, or the model doesn't answer on this route",
    "408": "The request did not arrive in time",
    "409": "One of several processes can't do this for the others",
    "413": "The body is too large",
    "415": "The content type isn't JSON, or the body is compressed by something else than gzip or zstd",
    "429": "This caller has too many requests in flight; see Retry-After",
    "431": "The headers are too large",
    "500": "The server or the engine failed",
    "503": "Nothing can serve the request now; see Retry-After",
    "504": "The request's time limit passed",
}
_EVERYWHERE: Final = ("400", "408", "431", "503")
_OF_BODIES: Final = ("404", "413", "415", "429", "500", "504")
_OPEN: Final = ("/live", "/health", "/ping")
"""Without a key."""
_OPTIONAL: Final = ("/v1/conversations",)
"""Whose body may be left out."""
_KINDS: Final = {"/metrics": "text/plain"}
"""Of answers that are no JSON."""


def describe(openapi: Json, *others: Described, answers: Answers) -> Json:
    """Add the bodies and the hot routes to what FastAPI made, and every answer that a route may give."""
    parts = [_OPENAI, *others]
    bodies = {path: body for part in parts for path, body in part.bodies.items()}
    asked, answered = [kind for kind, _, _ in bodies.values()], dict.fromkeys(answers.values())
    _, components = msgspec.json.schema_components([*asked, *answered], ref_template=_REF)
    schemas = openapi.setdefault("components", {}).setdefault("schemas", {})
    schemas.clear()  # FastAPI's own are of errors that are never given
    schemas.update(components)
    schemas["Error"] = _ERROR
    _narrow(schemas, parts)
    for path, (kind, summary, tag) in bodies.items():
        operation = openapi["paths"].setdefault(path, {}).setdefault("post", {})
        operation["requestBody"] = {
            "required": path not in _OPTIONAL,
            "content": {"application/json": {"schema": {"$ref": _REF.format(name=kind.__name__)}}},
        }
        if summary:
            operation |= {"summary": summary, "tags": [tag], "operationId": path.strip("/").replace("/", "_")}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            streams = any(path in part.streams for part in parts)
            operation["responses"] = _responses(path, method, method == "post", streams, answers)
    return openapi


def _narrow(schemas: Json, parts: Sequence[Described]) -> None:
    narrower = {name: rules for part in parts for name, rules in part.narrower.items()}
    together = {name: rules for part in parts for name, rules in part.rules.items()}
    own = schemas["ChatRequest"]["properties"]
    for name, schema in schemas.items():
        fields = schema.get("properties", {})
        if name == "Nvext":  # what older clients say there is taken, and said where it belongs
            for field in fields.keys() & own.keys():
                del fields[field]
        for field, rule in narrower.get(name, {}).items():
            if field in fields:
                kept = {key: fields[field][key] for key in ("default", "description") if key in fields[field]}
                fields[field] = rule | kept
        for field in fields.keys() & _KEYS_OF.keys():
            for kind in fields[field].get("anyOf", ()):
                if kind.get("type") == "object":
                    kind.update(_KEYS_OF[field])
        if name in together:
            schema["allOf"] = together[name]


def _responses(path: str, method: str, has_body: bool, streams: bool, answers: Answers) -> Json:
    error = {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}}
    statuses = {*_EVERYWHERE, *(_OF_BODIES if has_body else ())}
    if path not in _OPEN:
        statuses |= {"401", "404"}
    if path.startswith("/busy_threshold") and method != "get":
        statuses |= {"403", "404", "409"}
    texts = {status: _ERRORS[status] for status in sorted(statuses)}
    errors: Json = {status: {"description": text, "content": error} for status, text in texts.items()}
    if path == "/health":
        errors["503"] = {"description": "It is not ready", "content": {"application/json": {"schema": _OBJECT}}}
    return {
        "200": {"description": "The answer", "content": _whole(answers.get((method, path)), path, streams)},
        **errors,
    }


def _whole(form: type[msgspec.Struct] | None, path: str, streams: bool) -> Json:
    if (kind := _KINDS.get(path)) is not None:
        return {kind: {"schema": {"type": "string"}}}
    schema = _OBJECT if form is None else {"$ref": _REF.format(name=form.__name__)}
    whole: Json = {"application/json": {"schema": schema}}
    if streams:
        whole["text/event-stream"] = {"schema": {"type": "string"}}
    return whole
