"""What linters and the generators of clients read of a description, beside routes and fields. Pure.

Generators make a type of each schema. They turn alternatives of whole objects into unions that nobody can fill in, and
fields whose default is null into required ones; so such things are said here in words that they pass over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Json = dict[str, Any]
_TAGS: Final = {
    "chat": "Conversations, in OpenAI's form.",
    "completions": "Continuations of texts, in OpenAI's form.",
    "conversations": "Conversations that the server keeps.",
    "embeddings": "Vectors of texts, and how near texts are to each other.",
    "messages": "Conversations, in Anthropic's form.",
    "models": "Models that can be asked.",
    "responses": "Answers to items, in OpenAI's form, and those that the server keeps.",
    "system": "This server: its health, figures and thresholds.",
    "tokens": "Tokens of texts and of prompts.",
}
_LICENSE: Final = {"name": "Apache License 2.0", "identifier": "Apache-2.0"}
_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key, where the server asks for one."},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same, as Anthropic's."},
}
_SECURITY: Final[list[Json]] = [{}, *({name: []} for name in _SCHEMES)]
"""Without a key, too: it is the server that knows whether it asks for one, and 401 says so."""
_ALTERNATIVES: Final = ("anyOf", "oneOf")
_PARTS: Final = ("items", "additionalProperties")


def add_head(openapi: Json) -> None:
    """Say what concerns all routes: where they are, what they need, and how they are grouped."""
    openapi["info"]["license"] = _LICENSE
    openapi["servers"] = [{"url": "/"}]
    openapi["security"] = _SECURITY
    openapi["components"]["securitySchemes"] = _SCHEMES
    operations = [operation for methods in openapi["paths"].values() for operation in methods.values()]
    tags = {tag for operation in operations for tag in operation["tags"]}
    openapi["tags"] = [{"name": tag, "description": _TAGS[tag]} for tag in sorted(tags)]
    for operation in operations:
        operation.setdefault("description", operation.get("summary", "").rstrip(".") + ".")


def plain(schema: Json) -> Json:
    """Return a schema that means the same, in the words that generators make the best types of."""
    made = {key: _plain_value(key, value) for key, value in schema.items()}
    if made.get("default", made) is None:
        del made["default"]  # a field that is left out is no field that is null
    if made.get("type") == "object" and not made.keys() & {"properties", "propertyNames", "additionalProperties"}:
        made["additionalProperties"] = True
    values = made.get("enum", [made["const"]] if "const" in made else [])
    if "type" not in made and values and all(isinstance(value, str) for value in values):
        made["type"] = "string"
    return made


def _plain_value(key: str, value: Any) -> Any:
    if key == "properties":
        return {name: plain(field) for name, field in value.items()}
    if key in _ALTERNATIVES:
        return [plain(part) for part in value]
    return plain(value) if key in _PARTS and isinstance(value, dict) else value


def together(rules: Sequence[Json]) -> Json:
    """Return what the fields of an object may say together, without a union of objects."""
    return {"if": {}, "then": {"allOf": [*rules]} if len(rules) > 1 else rules[0]}
