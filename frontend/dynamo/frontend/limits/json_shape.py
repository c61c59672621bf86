"""What a JSON body is made of, counted before it is decoded. Pure; `openai.decode` asks.

Decoding, checking and freeing a body cost by its parts, not by its bytes: 4 MB of empty lists are 100 MB of objects and
a quarter of a second in which nobody else runs. Counting costs milliseconds whatever the body is, and makes no objects.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request

MAX_DEPTH: Final = 64
MAX_CONTAINERS: Final = 65_536
"""Objects and arrays: 10,000 messages, each with content in parts and calls, have fewer."""
MAX_STRINGS: Final = 131_072
"""Names and texts."""
MAX_VALUES: Final = 1 << 20
"""Members of objects and arrays: as many token ids as any context has."""
MAX_DIGITS: Final = 400
"""Of a number: reading one costs by the square of its digits."""
SMALL: Final = 64 << 10
"""Bytes; what a smaller body is made of is within the bounds, but for its depth, which is looked at where it may be."""

_SIGNS: Final = b'"[]{},'
_DIGITS: Final = b"0123456789"
_OTHERS: Final = bytes(set(range(256)) - set(_SIGNS + _DIGITS))
_ALIKE: Final = bytes.maketrans(b"[]{}" + _DIGITS, b"()()" + b"0" * 10)
_LONG_NUMBER: Final = b"0" * (MAX_DIGITS + 1)


class Shape(msgspec.Struct, frozen=True):
    """Shape of a JSON text: how many parts it has, outside of its strings."""

    depth: int
    """At most `MAX_DEPTH` + 1, which stands for more."""
    containers: int
    strings: int
    values: int
    """Commas: one less than the members of each container."""
    long_number: bool
    """One has more digits than `MAX_DIGITS`."""

    def __add__(self, other: Shape) -> Shape:
        return Shape(
            max(self.depth, other.depth),
            self.containers + other.containers,
            self.strings + other.strings,
            self.values + other.values,
            self.long_number or other.long_number,
        )


NOTHING: Final = Shape(0, 0, 0, 0, False)


def check_shape(raw: bytes) -> None:
    """Raise the 400 of a body that is nested too deeply, or has too many parts."""
    if len(raw) <= SMALL and not _may_be_deep(raw):
        return
    shape = shape_of(raw)
    if shape.depth > MAX_DEPTH:
        text = f"The request body is nested too deeply: at most {MAX_DEPTH} levels are taken."
        raise bad_request(text, code="invalid_json")
    _within(shape.containers, MAX_CONTAINERS, "objects and arrays")
    _within(shape.strings, MAX_STRINGS, "strings")
    _within(shape.values, MAX_VALUES, "values")
    if shape.long_number:
        text = f"The request body has a number with more than {MAX_DIGITS} digits."
        raise bad_request(text, code="invalid_json")


def _may_be_deep(raw: bytes) -> bool:
    """Tell whether there are enough brackets for it.

    Mostly there are few, and finding those few is faster than counting.
    """
    number = 0
    for sign in (b"{", b"["):
        at = raw.find(sign)
        while at >= 0:
            number += 1
            if number > MAX_DEPTH:
                return True
            at = raw.find(sign, at + 1)
    return False


def _within(number: int, most: int, what: str) -> None:
    if number > most:
        raise _too_many(f"The request body has more {what} than the {most} that are taken; split the request.")


def _too_many(text: str) -> ApiError:
    return bad_request(text, code="too_many_values")


def shape_of(raw: bytes) -> Shape:
    """Count the parts of a JSON text, in a few passes over its bytes; of what is no JSON, those before the mistake."""
    if b"\\" in raw:  # escapes stand in strings only: without them, each quote begins or ends one
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = raw.translate(_ALIKE, _OTHERS)
    strings = (signs.count(b'"') + 1) // 2
    if strings > MAX_STRINGS:  # more of them would have to be cut out than is worth it
        return Shape(0, 0, strings, 0, False)
    signs = signs.replace(b'""', b"")  # a string without signs goes, or two become one: what is outside stays
    outside = b"".join(signs.split(b'"')[::2]) if b'"' in signs else signs
    brackets = outside.translate(None, b",0")
    containers = brackets.count(b"(")
    depth = _depth(brackets[: 2 * MAX_CONTAINERS])
    return Shape(depth, containers, strings, outside.count(b","), _LONG_NUMBER in outside)


def _depth(brackets: bytes) -> int:
    """Return how deep brackets are nested: each round takes away the innermost."""
    for rounds in range(MAX_DEPTH + 1):
        inner = brackets.replace(b"()", b"")
        if len(inner) == len(brackets):
            return min(rounds + inner.count(b"("), MAX_DEPTH + 1)  # what isn't closed is open
        brackets = inner
    return MAX_DEPTH + 1
