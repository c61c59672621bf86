"""Amounts in a pod template that Kubernetes couldn't read: `unreadable(template)`. Pure; a rule of `rules.py`.

The CRD takes a pod template as it is, and the API server answers an internal error to such an
amount, without field or value (to one with a huge exponent only after half a minute).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dynamo.operator.api.bounds import DEPTH
from dynamo.operator.api.fields import QUANTITY, QUANTITY_CHARACTERS

_READABLE: Final = re.compile(QUANTITY)
_MAPS: Final = frozenset({"limits", "requests", "overhead"})
_SINGLE: Final = frozenset({"sizeLimit", "divisor"})
_NOT_OURS: Final = frozenset({"metadata", "nodeSelector", "matchLabels"})
"""Anybody's names."""


def unreadable(template: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each unreadable amount."""
    stack: list[tuple[str, Any, int]] = [("", template, 0)]
    while stack:
        path, value, depth = stack.pop()
        if isinstance(value, list):
            stack += [(f"{path}[{index}]", item, depth + 1) for index, item in enumerate(value)]
        elif isinstance(value, dict) and depth < DEPTH:
            for name, inner in value.items():
                place = f"{path}.{name}" if path else name
                yield from _amounts(name, inner, place)
                if name not in _NOT_OURS:
                    stack.append((place, inner, depth + 1))


def _amounts(name: str, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if name in _SINGLE and not _is_amount(value):
        yield path, value
    elif name in _MAPS and isinstance(value, dict):
        yield from (
            (f"{path}.{key}", amount) for key, amount in value.items() if key != "$patch" and not _is_amount(amount)
        )


def _is_amount(value: Any) -> bool:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return True
    return isinstance(value, str) and len(value) <= QUANTITY_CHARACTERS and _READABLE.fullmatch(value) is not None
