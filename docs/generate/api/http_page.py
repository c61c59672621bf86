"""Writes the reference of the HTTP API out of the OpenAPI description that a frontend serves."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

from docs.generate.api.answer_texts import ANSWER_TEXTS
from docs.generate.api.event_texts import EVENTS
from docs.generate.api.field_texts import FIELD_TEXTS
from docs.generate.api.http_examples import EXAMPLES
from docs.generate.api.http_headers import ANSWERS, REQUESTS, Header
from docs.generate.markdown import anchor, code, page, prose, table

from dynamo.frontend.http.guard import PROBES, is_system
from dynamo.frontend.http.settings import AccessSettings
from dynamo.frontend.routes.cold_app import cold_app
from dynamo.frontend.services import Services

Json = dict[str, Any]
HEAD: Final = """# HTTP API

Made from the frontend's OpenAPI description by `make generate`; don't edit it by hand.

The frontend serves OpenAI's API, Anthropic's Messages API and some routes of its own, on port 8000. A running frontend
describes itself at `/openapi.json`, and for browsers at `/docs`. Errors have [one shape and a code](errors.md).

- **Base URL** for OpenAI's clients: `http://HOST:8000/v1`; for Anthropic's: `http://HOST:8000`.
- **Keys**: with `--api-keys-file`, every route but `/live` and `/health` requires `Authorization: Bearer KEY` or
  `x-api-key: KEY`. Without the flag any key is accepted.
- **System routes** (marked below) can move to a port of their own: `--system-port` with `--no-public-system-routes`.
- **Unknown fields** of a body are ignored. With `--strict-fields` they are an error that suggests the right name.
- **Null** means the same as a field that is left out.
"""
_GROUPS: Final = {
    "chat": "Chat completions", "completions": "Completions", "embeddings": "Embeddings", "responses": "Responses",
    "conversations": "Conversations",
    "messages": "Messages", "tokens": "Tokens", "models": "Models", "system": "System",
}  # fmt: skip


_REFERENCE: Final = re.compile(r"#/components/schemas/(\w+)")
_FAR: Final = 2**31 - 1
"""A bound beyond it only says that the number is of 32 or 64 bits."""
_MOST_NAMED: Final = 4
"""Values of an enumeration in a cell; OpenAPI has the rest."""


class Operation(NamedTuple):
    """A route with a method."""

    method: str
    path: str
    about: Json

    @property
    def title(self) -> str:
        """Return what is typed: `POST /v1/completions`."""
        return f"{self.method.upper()} {self.path}"


def openapi() -> Json:
    """Return the description as `/openapi.json` has it."""
    settings = SimpleNamespace(access=AccessSettings())
    services = SimpleNamespace(pool=SimpleNamespace(busy_thresholds=None), settings=settings, request_log=None)
    return cold_app(cast("Services", services)).openapi()


def render() -> str:
    """Write the whole page."""
    described = openapi()
    schemas = described["components"]["schemas"]
    operations = _sorted([
        Operation(method, path, about)
        for path, methods in described["paths"].items() for method, about in methods.items()
    ])  # fmt: skip
    parts = [HEAD, "## Routes", table(("route", "purpose", "who"), map(_line, operations))]
    for tag, title in _GROUPS.items():
        parts.append(f"## {title}")
        for operation in operations:
            if tag in operation.about["tags"]:
                parts += _operation(operation, schemas)
    return page([*parts, *_objects(operations, schemas), *_headers(), *_statuses(operations)])


def _sorted(operations: list[Operation]) -> list[Operation]:
    order = list(_GROUPS)
    return sorted(operations, key=lambda operation: (order.index(operation.about["tags"][0]), operation.path))


def _line(operation: Operation) -> tuple[str, ...]:
    link = f"[`{operation.title}`](#{anchor(operation.title)})"
    return link, _purpose(operation), _who(operation.path)


def _who(path: str) -> str:
    if path in PROBES:
        return "everybody"
    return "system" if is_system(path) else "key"


def _purpose(operation: Operation) -> str:
    about = operation.about
    text: str = about.get("description") or about["summary"]
    return text.rstrip(".") + "."


def _operation(operation: Operation, schemas: Json) -> Iterator[str]:
    yield f"### {operation.title}"
    yield prose(_purpose(operation))
    yield EXAMPLES.get(operation.title, "")
    parameters = operation.about.get("parameters", ())
    if parameters:
        rows = ((code(p["name"]), f"in the {p['in']}", _type(p["schema"], schemas)) for p in parameters)
        yield table(("parameter", "where", "type"), rows)
    if body := _body(operation):
        name = body.get("$ref", "").rpartition("/")[2]
        yield table(("field", "type", "meaning"), _fields(schemas[name] if name else body, schemas))
        yield "\n".join(f"- {text}" for text in _together(name))
    yield from _answer(operation, schemas)
    yield prose("[Statuses](#statuses): " + ", ".join(sorted(operation.about["responses"])) + ".")


def _answer(operation: Operation, schemas: Json) -> Iterator[str]:
    """Yield the fields of a whole answer, then the events of a stream."""
    name = _answered(operation)
    if name:
        yield prose(f"The answer ({name}):")
        yield table(("field", "type", "meaning"), _fields(schemas[name], schemas))
    if events := EVENTS.get(operation.title):
        yield prose("The stream:")
        rows = ((name if " " in name or "`" in name else code(name), *about) for name, about in events.items())
        yield table(("event", "fields", "meaning"), rows)


def _answered(operation: Operation) -> str:
    """Return the name of the answer's schema; "" where it has none."""
    content = operation.about["responses"].get("200", {}).get("content", {})
    reference: str = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    return reference.rpartition("/")[2]


def _body(operation: Operation) -> Json:
    """Return the body's schema; empty where there is none."""
    content = operation.about.get("requestBody", {}).get("content", {})
    schema: Json = content.get("application/json", {}).get("schema", {})
    return schema


def _fields(schema: Json, schemas: Json) -> Iterator[tuple[str, ...]]:
    title = schema.get("title", "")
    needed = () if title in ANSWER_TEXTS else schema.get("required", ())
    texts = FIELD_TEXTS.get(title) or ANSWER_TEXTS[title]
    for name, field in schema["properties"].items():
        required = "**Required.** " if name in needed else ""
        yield code(name), _type(field, schemas), required + texts[name]


def _together(name: str) -> Iterator[str]:
    """Yield what fields say together, which the schema has as alternatives."""
    if name in ("ChatRequest", "CompletionRequest"):
        yield "Only one of `guided_*` and `response_format` can constrain an answer."
        yield "Fields that older clients put into `nvext` (`top_k`, `guided_json`, …) are read as if they were here."


def _objects(operations: list[Operation], schemas: Json) -> Iterator[str]:
    """Yield the objects that are fields of bodies and of answers."""
    yield "## Objects"
    bodies = {_body(operation).get("$ref", "").rpartition("/")[2] for operation in operations} - {""}
    bodies |= {*map(_answered, operations)} - {""}
    for name in sorted(_inside(bodies, schemas), key=list(schemas).index):
        yield f"### {name}"
        yield table(("field", "type", "meaning"), _fields(schemas[name], schemas))


def _inside(bodies: set[str], schemas: Json) -> set[str]:
    """Return the objects that bodies and answers consist of."""
    objects, waiting = set[str](), [*bodies]
    while waiting:
        for name in _REFERENCE.findall(json.dumps(schemas[waiting.pop()])):
            if name not in objects:
                objects.add(name)
                waiting.append(name)
    return objects


def _type(field: Json, schemas: Json) -> str:
    """Return a field's type in words, without null, which every optional field may be."""
    forms: list[Json] = field.get("anyOf") or field.get("oneOf") or [field]
    kinds = [kind for kind in forms if kind.get("type") != "null"]
    words = dict.fromkeys(filter(None, (_kind(kind, schemas) for kind in kinds)))
    return " or ".join(words) or ("null" if field.get("type") == "null" else "anything")


def _kind(kind: Json, schemas: Json) -> str:
    if "$ref" in kind:
        name = str(kind["$ref"]).rpartition("/")[2]
        return f"[{name}](#{anchor(name)})"
    if "oneOf" in kind or "anyOf" in kind:
        return _type(kind, schemas)
    if "enum" in kind:
        more = ", …" if len(kind["enum"]) > _MOST_NAMED else ""
        return ", ".join(code(value) for value in kind["enum"][:_MOST_NAMED]) + more
    if "const" in kind:
        return code(str(kind["const"]).lower() if isinstance(kind["const"], bool) else kind["const"])
    match kind.get("type"):
        case "integer" | "number" as numeric:
            return ("integer" if numeric == "integer" else "number") + _bounds(kind)
        case "array":
            most = f" of at most {kind['maxItems']}" if "maxItems" in kind else ""
            return f"list{most}: {_type(kind['items'], schemas)}" if kind.get("maxItems") != 0 else "empty list"
        case "string":
            return f"string of at most {kind['maxLength']} characters" if "maxLength" in kind else "string"
        case "boolean" | "object" as plain:
            return str(plain)
    return ""


def _bounds(kind: Json) -> str:
    begin = "exclusiveMinimum" if "exclusiveMinimum" in kind else "minimum"
    least: float = kind.get(begin, -math.inf)
    most: float = kind.get("maximum", math.inf)
    word = "from" if begin == "minimum" else "above"
    lower = f" {word} {least:g}" if least > -_FAR else ""
    return lower + (f" to {most:g}" if most < _FAR else "")


def _headers() -> Iterator[str]:
    yield "## Headers"
    yield "### Of requests"
    yield table(("header", "also", "meaning"), map(_header, REQUESTS))
    yield "### Of answers"
    yield table(("header", "also", "meaning"), map(_header, ANSWERS))


def _header(header: Header) -> tuple[str, ...]:
    first, *others = header.names
    return code(first), ", ".join(map(code, others)), header.text


def _statuses(operations: list[Operation]) -> Iterator[str]:
    texts = {s: about["description"] for op in operations for s, about in op.about["responses"].items() if s != "200"}
    yield "## Statuses"
    yield prose("200 is an answer, or the begin of a stream. [errors.md](errors.md) has the codes of each status.")
    yield table(("status", "meaning"), sorted(texts.items()))
