"""What a process serves: an endpoint's handler, and how its requests are decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from dynamo.runtime.names import InstanceKey
from dynamo.runtime.request_plane.peer import Incoming
from dynamo.runtime.transport.bus import Subscription

LARGE: Final = 64 * 1024
"""Bytes of a request that take a moment to decode."""

Handler = Callable[[Incoming], None]


class Typed:
    """A handler of requests of one type, which come to it decoded as that; what doesn't fit is refused."""

    def __init__(self, kind: type[Any], handle: Handler, check: Callable[[msgspec.Raw], None] | None = None) -> None:
        """Begin.

        `check` looks at a large one before it is decoded, and raises `InvalidArgument` where that isn't worth
        it.
        """
        decode = msgspec.msgpack.Decoder(kind).decode

        def checked(data: msgspec.Raw) -> Any:
            if check is not None and len(data) > LARGE:
                check(data)
            return decode(data)

        self.decode = decode if check is None else checked
        self.handle = handle

    def __call__(self, incoming: Incoming) -> None:
        """Take a request that is decoded."""
        self.handle(incoming)


class ServedEndpoint:
    """An endpoint that this process serves: its handler, and the subjects that it listens to."""

    def __init__(self, key: InstanceKey, handler: Handler) -> None:
        self.key = key
        self.draining = False
        self.answer_with(handler)
        self.requests: Subscription | None = None
        self.others: list[Subscription] = []

    def answer_with(self, handler: Handler) -> None:
        """Hand requests to `handler` from now on."""
        self.handler = handler.handle if isinstance(handler, Typed) else handler
        self.decode: Callable[[Any], Any] = handler.decode if isinstance(handler, Typed) else msgspec.msgpack.decode
