"""`/docs`: the API's description as one plain page, without scripts and without anything of another host. Pure.

`routes/system.py` serves it with `HEADERS`, whose policy lets a browser load nothing at all.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

_STYLE: Final = (
    "body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,th{font-family:monospace;text-align:left;vertical-align:top}td,th{padding:.1rem 1rem .1rem 0}"
    "h2{border-top:1px solid #888;padding-top:1rem}"
)
_STYLE_DIGEST: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_REF: Final = "#/components/schemas/"
Json = Mapping[str, Any]


def page(openapi: Json) -> str:
    """Write the page of an OpenAPI description."""
    about = openapi["info"]
    title = escape(f"{about['title']} {about['version']}")
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>{escape(about.get('description', ''))}",
        ' As a file: <a href="openapi.json">openapi.json</a>.</p>',
        *_operations(openapi),
        "</body></html>",
    ]
    return "".join(parts)


def _operations(openapi: Json) -> Iterator[str]:
    schemas = openapi.get("components", {}).get("schemas", {})
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            yield f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2>"
            summary = operation.get("description") or operation.get("summary", "")
            yield f"<p>{escape(summary)}</p>"
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            if body is not None:
                yield from _fields(_resolved(body, schemas), schemas)
            yield "<h3>Answers</h3><table>"
            for status, answer in operation.get("responses", {}).items():
                kinds = ", ".join(answer.get("content", {}))
                description = escape(answer.get("description", ""))
                yield f"<tr><th>{escape(status)}</th><td>{description}</td><td>{escape(kinds)}</td></tr>"
            yield "</table>"


def _fields(schema: Json, schemas: Json) -> Iterator[str]:
    required = set(schema.get("required", ()))
    yield "<h3>Fields</h3><table>"
    for name, field in schema.get("properties", {}).items():
        must = "required" if name in required else ""
        about = escape(_resolved(field, schemas).get("description", ""))
        yield f"<tr><th>{escape(name)}</th><td>{escape(_kind(field))}</td><td>{must}</td><td>{about}</td></tr>"
    yield "</table>"


def _resolved(schema: Json, schemas: Json) -> Json:
    name = str(schema.get("$ref", "")).removeprefix(_REF)
    described: Json = schemas.get(name, schema)
    return described


def _kind(field: Json) -> str:
    """Name the type of a field in a word or two."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_kind(kind) for kind in field["anyOf"]))
    if "enum" in field:
        return " or ".join(str(value) for value in field["enum"])
    if "$ref" in field:
        return "object"
    kind = field.get("type", "anything")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
