"""The OpenAPI description of the routes, made of the structs that check their bodies.

FastAPI lists its own routes; the plain ASGI ones are added here, and what every route may answer, so that
`/openapi.json` and `/docs` show everything. schemathesis finds no difference between this and what is served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dynamo.frontend.openai.constraints import NAME
from dynamo.frontend.openai.request_structs import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingsRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
)
from dynamo.frontend.openapi.client_generators import add_head, plain, together
from dynamo.llm.processing.request_options import LONGEST_STOP, MOST_STOPS

Json = dict[str, Any]
Answers = Mapping[tuple[str, str], type[msgspec.Struct]]
"""By method and path."""
Streams = Mapping[str, type[msgspec.Struct]]
"""By their path: what the data of an event is."""


class ErrorDetails(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    """The field of the request."""
    code: str | None = None


class Error(msgspec.Struct):
    """Every answer that is an error."""

    error: ErrorDetails


class Described(NamedTuple):
    """What an API says of its routes; `openapi.py` has chat's, completions' and embeddings' own."""

    bodies: Mapping[str, tuple[type[msgspec.Struct], str, str]]
    """By their path: the body, a summary and a tag."""
    narrower: Mapping[str, Mapping[str, Json]]
    rules: Mapping[str, Sequence[Json]]
    error: type[msgspec.Struct] = Error


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
_OBJECT: Final[Json] = {"type": "object"}
_TEXT: Final[Json] = {"type": "string", "minLength": 1}
_TOKEN: Final[Json] = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TOKENS: Final[Json] = {"type": "array", "items": _TOKEN, "minItems": 1}
_NULL: Final[Json] = {"type": "null"}
_TRUE: Final[Json] = {"const": True}
_IMAGE: Final[Json] = {
    "type": "object", "required": ["url"],
    "properties": {"url": {"type": "string"}, "detail": {"enum": ["auto", "low", "high"]}},
}  # fmt: skip
_PART: Final[Json] = {
    "oneOf": [
        {"type": "object", "required": ["type", field], "properties": {"type": {"enum": kinds}, field: form}}
        for field, kinds, form in (
            ("text", ["text", "input_text"], {"type": "string"}), ("refusal", ["refusal"], {"type": "string"}),
            ("image_url", ["image_url"], _IMAGE),
        )
    ]
}  # fmt: skip
_CHOSEN: Final[Json] = {
    "type": "object", "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": _TEXT}},
    },
}  # fmt: skip
_FORMATS: Final[list[Json]] = [
    {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["text", "json_object"]}}},
    {
        "type": "object", "required": ["type", "json_schema"],
        "properties": {
            "type": {"const": "json_schema"},
            "json_schema": {
                "type": "object", "required": ["name", "schema"],
                "properties": {
                    "name": {"type": "string", "pattern": f"^{NAME.pattern}$"},
                    "schema": _OBJECT,
                    "strict": {"anyOf": [{"type": "boolean"}, _NULL]},
                },
            },
        },
    },
]  # fmt: skip
_CONSTRAINTS: Final[dict[str, Json]] = {
    "guided_json": {"anyOf": [_TEXT, _OBJECT, _NULL]},
    "guided_regex": {"anyOf": [_TEXT, _NULL]},
    "guided_choice": {"anyOf": [{"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 4096}, _NULL]},
    "guided_grammar": {"anyOf": [_TEXT, _NULL]},
}  # fmt: skip
_STOP: Final[Json] = {**_TEXT, "maxLength": LONGEST_STOP}
STOPS: Final[Json] = {"type": "array", "items": _STOP, "maxItems": MOST_STOPS}
STOP: Final[Json] = {"anyOf": [_STOP, STOPS, _NULL]}
_SAMPLING: Final[dict[str, Json]] = {
    **_CONSTRAINTS,
    "response_format": {"anyOf": [*_FORMATS, _NULL]},
    "stop": STOP,
}
_NARROWER: Final[dict[str, dict[str, Json]]] = {
    "Message": {"content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}, _NULL]}},
    "ChatRequest": {
        **_SAMPLING,
        "modalities": {"anyOf": [{"type": "array", "items": {"const": "text"}, "maxItems": 1}, _NULL]},
        "tool_choice": {"anyOf": [{"enum": ["auto", "none", "required"]}, _CHOSEN, _NULL]},
    },
    "CompletionRequest": {
        **_SAMPLING,
        "prompt": {
            "anyOf": [{"type": "string"}, _TOKENS, *({"type": "array", "items": kind, "minItems": 1, "maxItems": 2048}
                                                     for kind in ({"type": "string"}, _TOKENS))]
        },
    },
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
_STREAMED_TOKENS: Final[Json] = {
    "anyOf": [
        {"properties": {"stream": {"enum": [False, None]}}},
        {"properties": {"max_tokens": {"anyOf": [{"type": "integer", "minimum": 1}, _NULL]}}},
    ]
}
"""An answer of no tokens, which scores its prompt, isn't streamed."""
_TOP_LOGPROBS: Final[Json] = {
    "anyOf": [{"properties": {"top_logprobs": _NULL}}, {"required": ["logprobs"], "properties": {"logprobs": _TRUE}}]
}
_RULES: Final[dict[str, list[Json]]] = {
    "ChatRequest": [_STREAM_OPTIONS, _TOP_LOGPROBS, _alone(*_CONSTRAINTS, "response_format", "structured_outputs")],
    "CompletionRequest": [
        _STREAM_OPTIONS, _STREAMED_TOKENS, _alone(*_CONSTRAINTS, "response_format", "structured_outputs"),
    ],
    "Nvext": [_alone("backend_instance_id", "decode_worker_id")],
    "TokenizeRequest": [
        {"anyOf": [{"required": [name], "properties": {name: {"not": _NULL}, other: _NULL}}
                   for name, other in (("prompt", "messages"), ("messages", "prompt"))]},
    ],
}  # fmt: skip
"""What fields may say together. schemathesis makes no requests of more alternatives than some twenty."""
_OPENAI: Final = Described(_BODIES, _NARROWER, _RULES)
_ERRORS: Final = {
    "400": "The request is invalid; `param` names the field",
    "401": "A key is required, and the request has none that is known",
    "403": "Only callers on the frontend's own machine may do this",
    "404": "The model or the route does not exist, or the model doesn't answer on this route",
    "408": "The request did not arrive in time",
    "409": "One of several processes can't do this for the others",
    "413": "The body is too large",
    "414": "The URL is too long",
    "415": "The content type isn't JSON, or the body is compressed by something else than gzip or zstd",
    "429": "This caller has too many requests in flight; see Retry-After",
    "431": "The headers are too large",
    "500": "The server or the engine failed",
    "503": "Nothing can serve the request now; see Retry-After",
    "504": "The request's time limit passed",
}
_EVERYWHERE: Final = ("400", "408", "414", "431", "503")
_OF_BODIES: Final = ("404", "413", "415", "429", "500", "504")
_OPEN: Final = ("/live", "/health", "/ping")
"""Without a key."""
_OPTIONAL: Final = ("/v1/conversations",)
"""Whose body may be left out."""
_KINDS: Final = {"/metrics": "text/plain"}
"""Of answers that are no JSON."""


def describe(openapi: Json, *others: Described, answers: Answers, streams: Streams) -> Json:
    """Add the bodies and the hot routes to what FastAPI made, and every answer that a route may give."""
    parts = [_OPENAI, *others]
    bodies = {path: body for part in parts for path, body in part.bodies.items()}
    errors = {path: part.error for part in parts for path in part.bodies}
    asked, answered = [kind for kind, _, _ in bodies.values()], [*answers.values(), *streams.values(), *errors.values()]
    _, components = msgspec.json.schema_components([*dict.fromkeys([*asked, *answered])], ref_template=_REF)
    schemas = openapi.setdefault("components", {}).setdefault("schemas", {})
    schemas.clear()  # FastAPI's own are of errors that are never given
    schemas.update(components)
    _narrow(schemas, parts)
    schemas |= {name: plain(schema) for name, schema in schemas.items()}
    for path, (kind, summary, tag) in bodies.items():
        operation = openapi["paths"].setdefault(path, {}).setdefault("post", {})
        operation["requestBody"] = {
            "required": path not in _OPTIONAL,
            "content": {"application/json": {"schema": _schema_of(kind)}},
        }
        if summary:
            operation |= {"summary": summary, "tags": [tag], "operationId": path.strip("/").replace("/", "_")}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            whole = _whole(answers.get((method, path)), path, streams.get(path))
            operation["responses"] = {"200": whole, **_errors(path, method, errors.get(path, Error))}
    add_head(openapi)
    return openapi


def _narrow(schemas: Json, parts: Sequence[Described]) -> None:
    narrower = {name: rules for part in parts for name, rules in part.narrower.items()}
    rules = {name: rules for part in parts for name, rules in part.rules.items()}
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
        if name in rules:
            schema |= together(rules[name])


def _errors(path: str, method: str, kind: type[msgspec.Struct]) -> Json:
    error = {"application/json": {"schema": _schema_of(kind)}}
    statuses = {*_EVERYWHERE, *(_OF_BODIES if method == "post" else ())}
    if path not in _OPEN:
        statuses |= {"401", "404"}
    if path.startswith("/busy_threshold") and method != "get":
        statuses |= {"403", "404", "409"}
    errors: Json = {status: {"description": _ERRORS[status], "content": error} for status in sorted(statuses)}
    if path == "/health":
        errors["503"] = {"description": "It is not ready", "content": {"application/json": {"schema": plain(_OBJECT)}}}
    return errors


def _whole(form: type[msgspec.Struct] | None, path: str, event: type[msgspec.Struct] | None) -> Json:
    schema = plain(_OBJECT) if form is None else _schema_of(form)
    content: Json = {"application/json": {"schema": schema}}
    if (kind := _KINDS.get(path)) is not None:
        content = {kind: {"schema": {"type": "string"}}}
    if event is not None:
        content["text/event-stream"] = {"schema": {"type": "string", "contentSchema": _schema_of(event)}}
    return {"description": "The answer", "content": content}


def _schema_of(kind: type[msgspec.Struct]) -> Json:
    return {"$ref": _REF.format(name=kind.__name__)}
