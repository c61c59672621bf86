"""Bounds of a pipeline: held by the types, by `rules.py`, by CEL in the CRD and by the operator's reader."""

from __future__ import annotations

from typing import Final

PODS: Final = 1024
"""Of all components together; the chart's `pipelines.maxPods` sets another number, in the CRD too."""
SPEC_BYTES: Final = 256 << 10
"""As JSON. A group's StatefulSet repeats its component's part of it."""
DEPTH: Final = 64
"""Of mappings and lists within each other; the API server lets 10,000 pass."""
RENDERED_BYTES: Final = 8 << 20
"""Of all objects of a pipeline together: a thousand pods of a usual size are 3 MB."""
COMPONENTS: Final = 16
REPLICAS: Final = 1000
"""Of one component."""
NODES: Final = 128
PATH_CHARACTERS: Final = 1024
NAME_CHARACTERS: Final = 253
WORDS_CHARACTERS: Final = 1024
"""Of a column of the status."""


def is_deeper(value: object, most: int = DEPTH) -> bool:
    """Return whether mappings and lists are nested more deeply than that, without recursion."""
    level: list[object] = [value]
    for _ in range(most):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: object) -> list[object]:
    """Return the children that can have children themselves."""
    children: list[object] = []
    if isinstance(value, dict):
        children = list(value.values())
    elif isinstance(value, list | tuple):
        children = list(value)
    return [child for child in children if isinstance(child, dict | list | tuple)]
