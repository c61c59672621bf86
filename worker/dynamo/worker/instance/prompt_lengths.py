"""How long a request's prompt is, told without decoding it: one over the context is refused before it costs much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from dynamo.runtime.errors import InvalidArgument

MOST_TOKENS: Final = 16 * 1024 * 1024
"""Where the engine's context isn't known."""
_SHORT, _MEDIUM, _LONG = 0x90, 0xDC, 0xDD


class _Head(msgspec.Struct):
    """The part of a request that is long."""

    token_ids: msgspec.Raw = msgspec.Raw(b"")


_HEAD: Final = msgspec.msgpack.Decoder(_Head)


def array_length(data: bytes | msgspec.Raw) -> int:
    """Return the length that an encoded array names; 0 for anything else, which the decoder will refuse."""
    head = memoryview(data)
    if len(head) and head[0] & 0xF0 == _SHORT:
        return int(head[0] & 0x0F)
    if len(head) > 2 and head[0] == _MEDIUM:
        return int.from_bytes(head[1:3])
    if len(head) > 4 and head[0] == _LONG:
        return int.from_bytes(head[1:5])
    return 0


def within(context: int | None) -> Callable[[msgspec.Raw], None]:
    """Return a check of encoded requests; it raises `InvalidArgument` where a prompt doesn't fit into the context."""
    most = context or MOST_TOKENS

    def check(data: msgspec.Raw) -> None:
        tokens = array_length(_HEAD.decode(data).token_ids)
        if tokens > most:
            raise InvalidArgument(f"a prompt of {tokens} tokens: this engine takes {most} with its answer")

    return check
