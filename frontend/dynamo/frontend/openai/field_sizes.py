"""How many bytes of JSON each field of a body may have, read from `request_structs.py`. `requests.decode` asks.

Looked at before a large body is decoded, without making its objects: what a field is made of costs only where the field
may have it. Small bodies need no look, since no field's bound is below `SMALL` that its type doesn't have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request
from dynamo.frontend.openai.request_structs import SIZE, WHOLE_BODY

TYPED: Final = 128 << 10
"""Bytes of a field that says none: its type bounds what it is, and this how it is spelled."""
UNKNOWN: Final = 64 << 10
"""Of a field that nothing here knows."""
MAX_FIELDS: Final = 256
"""Of a body; more than any client has a use for."""


def sizes_of(kind: type[msgspec.Struct]) -> dict[str, int]:
    """Return the bytes that each field may have; 0: as many as the body."""
    made = msgspec.inspect.type_info(kind)
    assert isinstance(made, msgspec.inspect.StructType)
    return {one.encode_name: max(_sizes(one.type), default=TYPED, key=lambda n: n or float("inf"))
            for one in made.fields}  # fmt: skip


def _sizes(kind: msgspec.inspect.Type) -> Iterable[int]:
    if isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            yield from _sizes(one)
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
