"""Which fields an API server may mean that refuses a value without saying where: `suspects(message, manifest)`. Pure.

What it can't convert it quotes at best. The fields that hold such a value are added to its sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dynamo.operator.api.bounds import DEPTH
from dynamo.operator.api.shown import shown_path
from dynamo.operator.kube.resources import SECRETS

_CONVERTING: Final = ("unable to convert unstructured object", "failed to convert new object")
_QUOTED: Final = re.compile(r'"([^"]{1,200})"')
_WHOLE: Final = "cannot convert float64 to int"
NAMED: Final = 3
"""Fields that a message names."""


def suspects(message: str, manifest: Mapping[str, Any]) -> str:
    """Return the message, with the fields where it doesn't name them itself; never anything of a Secret."""
    if manifest.get("kind") == SECRETS.kind or not any(mark in message for mark in _CONVERTING):
        return message
    quoted = set(_QUOTED.findall(message))
    fields = [
        f"{shown_path(path)} is {value!r}"
        for path, value in _leaves(manifest)
        if (isinstance(value, str) and value in quoted) or (_WHOLE in message and isinstance(value, float))
    ]
    return f"{message}; look at {', '.join(fields[:NAMED])}" if fields else message


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    stack: list[tuple[str, Any, int]] = [("", value, 0)]
    while stack:
        path, node, depth = stack.pop()
        if isinstance(node, Mapping) and depth < DEPTH:
            stack += [(f"{path}.{name}" if path else str(name), inner, depth + 1) for name, inner in node.items()]
        elif isinstance(node, list) and depth < DEPTH:
            stack += [(f"{path}[{index}]", inner, depth + 1) for index, inner in enumerate(node)]
        else:
            yield path, node
