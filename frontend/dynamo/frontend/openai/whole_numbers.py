"""Whole numbers that a client writes as `5.0`: JSON Schema calls them integers, so they are taken as such. Pure.

`requests.convert` asks where a field was refused for being a float, and before a prompt of token ids is looked at.
"""

from __future__ import annotations

import re
from typing import Any, Final

_REFUSED: Final = re.compile(r"Expected `[^`]*\bint\b[^`]*`, got `float` - at `\$\.(\w+)")
_MOST: Final = 100_000
"""Values of one field that are looked at."""
_LARGEST: Final = 2.0**53
"""Beyond it a float doesn't say which number is meant."""


def take_whole(body: dict[str, Any], refused: str) -> bool:
    """Make integers of the whole floats in the field that msgspec has `refused` for one; False: there were none."""
    match = _REFUSED.match(refused)
    return match is not None and match[1] in body and _take(body, match[1])


def take_whole_prompt(body: dict[str, Any]) -> None:
    """Take the same for token ids of a prompt, whose type msgspec doesn't know."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not {float, list}.isdisjoint(map(type, prompt)):
        _take(body, "prompt")


def _take(parent: Any, key: Any) -> bool:
    """Walk a field with a stack of its own, however deep it is."""
    changed, seen = False, 0
    places = [(parent, key)]
    while places:
        holder, at = places.pop()
        value = holder[at]
        if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST:
            holder[at], changed = int(value), True
        elif isinstance(value, list | dict):
            seen += len(value)
            if seen > _MOST:
                return changed
            places += [(value, index) for index in (value if isinstance(value, dict) else range(len(value)))]
    return changed
