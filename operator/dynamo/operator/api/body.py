"""A pipeline's body as the API server has it, read with the types: `read`, which says what is wrong with it. Pure.

Called by the reconciler each time, so what is too large or too deep is refused before anything else is
done with it. Its status is nobody's input, and is read by `known_status` alone: who may write it may be hostile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from pydantic import ValidationError

from dynamo.operator.api import rules, validation_errors
from dynamo.operator.api.bounds import DEPTH, PODS, SPEC_BYTES, is_deeper
from dynamo.operator.api.shown import shown_message, shown_path
from dynamo.operator.api.v1alpha1 import DynamoPipeline

REFUSED: Final = "refused"
"""A body of `PipelineCache` bears it in the place of a spec that isn't worth keeping: the sentence that says why."""
SAID: Final = 8
"""Problems in one message."""
_CONDITION: Final = frozenset({"type", "status", "reason", "message", "lastTransitionTime"})
_COUNTED: Final = frozenset({"name", "replicas"})


_DEEP: Final = f"spec: mappings and lists are nested more than {DEPTH} levels deep: make it flatter"


class Read(NamedTuple):
    """A body that was read: the pipeline, or the problems with it."""

    pipeline: DynamoPipeline | None
    problems: tuple[str, ...] = ()


def too_much(body: Mapping[str, Any]) -> str:
    """Return why a spec isn't read at all; empty where it can be."""
    if REFUSED in body:
        return str(body[REFUSED])
    spec = body.get("spec")
    try:
        text = msgspec.json.encode(spec)
    except RecursionError:
        return _DEEP
    except UnicodeEncodeError:
        return "spec: has an unpaired surrogate in a string: remove it"
    if len(text) > SPEC_BYTES:
        return f"spec: has {len(text)} bytes as JSON, {SPEC_BYTES} at most: move files into ConfigMaps"
    may_be = text.count(b"{") + text.count(b"[") > DEPTH
    return _DEEP if may_be and is_deeper(spec) else ""


def read(body: Mapping[str, Any], pods: int = PODS) -> Read:
    """Return the pipeline, or what is wrong with it."""
    if refusal := too_much(body):
        return Read(None, (refusal,))
    kept = {k: v for k, v in body.items() if k != "status"}
    try:
        pipeline = DynamoPipeline.model_validate_json(json.dumps(kept))
    except ValidationError as error:
        problems = validation_errors.explain(error, dict(body), DynamoPipeline)
    else:
        problems = rules.check(pipeline, pods)
        if not problems:
            return Read(pipeline)
    return Read(None, _sentences(problems))


def known_status(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status, if it is one that we could have written; empty for any other."""
    status = body.get("status")
    if not isinstance(status, dict):
        return {}
    whole = all(entry.keys() >= _CONDITION for entry in status.get("conditions", ()))
    whole = whole and all(entry.keys() >= _COUNTED for entry in status.get("components", ()))
    return status if whole else {}


def _sentences(problems: list[rules.Problem]) -> tuple[str, ...]:
    sentences = [f"{shown_path(p.path)}: {p.message}" if p.path else p.message for p in problems[:SAID]]
    more = len(problems) - len(sentences)
    return (*map(shown_message, sentences), *([f"and {more} more"] if more else []))
