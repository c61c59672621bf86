"""What the chart `dynamo-pipeline` takes, made from the CRD.

`python -m dynamo.operator.codegen.chart_schema [FILE]` writes it.

Helm drops fields that a custom resource doesn't know, without a word; with this it names them before anything is
installed. What CEL says stays with the API server. Written by `make generate`, held by a test.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dynamo.operator.codegen.crd_schema import structural_schema

FILE = "charts/dynamo-pipeline/values.schema.json"
_KEPT = (
    "description", "type", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "minProperties", "maxProperties", "required",
)  # fmt: skip
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def values_schema() -> dict[str, Any]:
    """Return the schema of the chart's values, as JSON Schema draft 7."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of dynamo-pipeline",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "global": {"type": "object", "description": "Helm adds it where the chart is part of another."},
            "commonLabels": _TEXTS,
            "pipelines": {
                "type": "object",
                "propertyNames": {"pattern": "^[a-z]([a-z0-9-]*[a-z0-9])?$", "maxLength": 37},
                "additionalProperties": _pipeline(),
            },
        },
    }


def _pipeline() -> dict[str, Any]:
    return {
        "type": ["object", "null"],
        "additionalProperties": False,
        "required": ["spec"],
        "properties": {
            "labels": _TEXTS,
            "annotations": _TEXTS,
            "spec": json_schema(structural_schema()["properties"]["spec"]),
        },
    }


def json_schema(structural: dict[str, Any], optional: bool = False) -> dict[str, Any]:
    """Return it as plain JSON Schema: unknown fields are refused, and what may be left out may be null."""
    made = {key: structural[key] for key in _KEPT if key in structural}
    if structural.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if "properties" in structural and not structural.get("x-kubernetes-preserve-unknown-fields"):
        needed = structural.get("required", ())
        made["properties"] = {n: json_schema(p, n not in needed) for n, p in structural["properties"].items()}
        made["additionalProperties"] = False
    if isinstance(structural.get("additionalProperties"), dict):
        made["additionalProperties"] = json_schema(structural["additionalProperties"])
    if "items" in structural:
        made["items"] = json_schema(structural["items"])
    return _or_null(made) if optional or structural.get("nullable") else made


def _or_null(made: dict[str, Any]) -> dict[str, Any]:
    kinds = made.get("type")
    if kinds is not None:
        made["type"] = [*([kinds] if isinstance(kinds, str) else kinds), "null"]
    if "enum" in made:
        made["enum"] = [*made["enum"], None]
    return made


def schema_text() -> str:
    """Return the file's content."""
    return json.dumps(values_schema(), indent=1, ensure_ascii=False) + "\n"


def main(argv: list[str]) -> None:
    """Write the file."""
    Path(argv[0] if argv else FILE).write_text(schema_text(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
