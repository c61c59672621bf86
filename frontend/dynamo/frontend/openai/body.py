"""From the bytes of a body to a dict: what it is made of is counted, and its fields are measured, before it is decoded.

Decoding, checking and freeing a body cost by its parts, not by its bytes: 4 MB of empty lists are 100 MB of objects and
a quarter of a second in which nobody else runs. Counting costs milliseconds whatever the body is, and makes no objects.
Large bodies are also looked at field by field: what a field is made of costs only where the field may have it. Small
ones need no such look, since no field's bound is below `SMALL` that its type doesn't have. Pure; `routes` call
`decode`, and check what it returns with `requests.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from dynamo.frontend.errors import ApiError, bad_request
from dynamo.frontend.openai.request_structs import MAX_VALUES, SIZE, WHOLE_BODY

MAX_DEPTH: Final = 64
MAX_CONTAINERS: Final = 65_536
"""Objects and arrays: 10,000 messages, each with content in parts and calls, have fewer."""
MAX_STRINGS: Final = 131_072
"""Names and texts."""
MAX_DIGITS: Final = 400
"""Of a number: reading one costs by the square of its digits."""
SMALL: Final = 64 << 10
"""Bytes; what a smaller body is made of is within the bounds, but for its depth, which is looked at where it may be."""
_SHORT: Final = 1 << 10
"""Bytes that are counted sooner than looked through."""
TYPED: Final = 128 << 10
"""Bytes of a field that says none: its type bounds what it is, and this how it is spelled."""
UNKNOWN: Final = 64 << 10
"""Of a field that nothing here knows."""
MAX_FIELDS: Final = 256
"""Of a body; more than any client has a use for."""

_SIGNS: Final = b'"[]{},'
_DIGITS: Final = b"0123456789"
_OTHERS: Final = bytes(set(range(256)) - set(_SIGNS + _DIGITS))
_ALIKE: Final = bytes.maketrans(b"[]{}" + _DIGITS, b"()()" + b"0" * 10)
_LONG_NUMBER: Final = b"0" * (MAX_DIGITS + 1)
_AT_BYTE = re.compile(r" \(byte (\d+)\)")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_PAIR: Final = 12
"""Characters of a surrogate pair as JSON spells it."""


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
    """Tell whether there are enough brackets for it; looking for one after the other is fastest: most have few."""
    if len(raw) <= _SHORT:
        return raw.count(b"{") + raw.count(b"[") > MAX_DEPTH
    left = MAX_DEPTH
    for bracket in (b"{", b"["):
        at = raw.find(bracket)
        while at >= 0:
            if not left:
                return True
            left -= 1
            at = raw.find(bracket, at + 1)
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


@cache
def sizes_of(kind: type[msgspec.Struct]) -> dict[str, int]:
    """Return the bytes that each field may have; 0: as many as the body."""
    made = msgspec.inspect.type_info(kind)
    assert isinstance(made, msgspec.inspect.StructType)
    return {entry.encode_name: max(_sizes(entry.type), default=TYPED, key=lambda n: n or float("inf"))
            for entry in made.fields}  # fmt: skip


def _sizes(kind: msgspec.inspect.Type) -> Iterable[int]:
    if isinstance(kind, msgspec.inspect.UnionType):
        for member in kind.types:
            yield from _sizes(member)
    elif isinstance(kind, msgspec.inspect.Metadata):
        if kind.extra is not None and SIZE in kind.extra:
            yield kind.extra[SIZE]
        yield from _sizes(kind.type)


_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_sizes(raw: bytes, sizes: dict[str, int]) -> None:
    """Raise the 400 of a field that is too large; lets what is no JSON object through, which decoding will refuse."""
    try:
        fields = _FIELDS.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return
    check_number(fields)
    for name, value in fields.items():
        most = sizes.get(name, UNKNOWN)
        if most != WHOLE_BODY and memoryview(value).nbytes > most:
            raise _too_large(name, most)


def check_number(fields: dict[str, Any]) -> None:
    """Raise the 400 of a body with too many fields."""
    if len(fields) > MAX_FIELDS:
        text = f"The request body has {len(fields)} fields: at most {MAX_FIELDS} are taken."
        raise bad_request(text, code="too_many_values")


def _too_large(name: str, most: int) -> ApiError:
    shown = name[:100]
    return bad_request(f"{shown}: this field is larger than {most // 1024} KB of JSON.", shown)


def decode(raw: bytes, kind: type[Struct] | None = None) -> dict[str, Any]:
    """Return the body as a dict, or a 400 that says where it is no JSON, or what there is too much of."""
    check_shape(raw)
    if kind is not None and len(raw) > SMALL:
        check_sizes(raw, sizes_of(kind))
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(raw, error) from None
    if not isinstance(body, dict):
        raise bad_request("The request body must be a JSON object.", code="invalid_json")
    check_number(body)
    return body


def _unreadable(raw: bytes, error: Exception) -> ApiError:
    """Return why `raw` can't be decoded."""
    if isinstance(error, UnicodeDecodeError):
        return bad_request("The request body is not valid UTF-8.", code="invalid_json")
    text = str(error)
    if "out of range" in text:  # of a short body, whose digits nobody has counted yet
        text = f"The request body has a number with more than {MAX_DIGITS} digits, or beyond 1e308."
        return bad_request(text, code="invalid_json")
    where = _AT_BYTE.search(text)
    end = int(where[1]) if where else len(raw)
    if "surrogate" in text or (where is None and raw.rstrip()[-1:] == b"}"):
        half = _SURROGATE.search(raw, max(0, end - _PAIR - 1))  # where it was missed, or at the end of the last string
        at = end if half is None else half.start()
        message = f"The request body holds half of a surrogate pair (\\ud800..\\udfff) at byte {at}."
        return bad_request(message, code="invalid_string")
    text = f"{_AT_BYTE.sub('', text)}, at byte {end}".removeprefix("JSON is malformed: ")
    return bad_request(f"The request body is not valid JSON: {text}.", code="invalid_json")
