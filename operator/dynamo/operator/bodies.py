"""A pipeline's body as the API server has it, read with the types: `parsed`, and `problems` where it can't be. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from dynamo.operator.api import explain, rules
from dynamo.operator.api.v1alpha1 import DynamoPipeline


def parsed(body: Mapping[str, Any]) -> DynamoPipeline | None:
    """The pipeline, or None where `problems` has something to say. Its status is nobody's input."""
    try:
        found = DynamoPipeline.model_validate_json(_text_of(body))
    except ValidationError:
        return None
    return None if rules.check(found) else found


def problems(body: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the spec, each with field and remedy."""
    try:
        found = rules.check(DynamoPipeline.model_validate_json(_text_of(body)))
    except ValidationError as error:
        found = explain.explain(error, dict(body), DynamoPipeline)
    return [f"{p.path}: {p.message}" if p.path else p.message for p in found]


def _text_of(body: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in body.items() if k != "status"})
