"""What the tests of requests open and serve: `start`, `count`, `Holding`; `spy` notes what a bus publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from dynamo.runtime.context import Context
from dynamo.runtime.names import InstanceKey
from dynamo.runtime.request_plane.server import Incoming


def start(caller: Any, instance: InstanceKey, payload: Any, reader: Any, context: Context | None = None) -> Any:
    """Open a stream into a new reader; `(reader, call)`."""
    sink = reader()
    context = context or Context()
    return sink, caller.open(instance, payload, context=context, on_item=sink.on_item, on_end=sink.on_end)


async def count(request: int) -> AsyncIterator[int]:
    """Stream the numbers below `request`, one per turn of the loop."""
    for number in range(request):
        yield number
        await asyncio.sleep(0)


def spy(bus: Any, published: list[str]) -> None:
    """Note the subjects of what `bus` publishes from now on."""
    publish = bus.publish

    def noting(subject: str, data: bytes, reply: str = "") -> None:
        published.append(subject)
        publish(subject, data, reply)

    bus.publish = noting


def spy_on_frames(server: Any, frames: list[bytes]) -> None:
    """Note the frames that a worker sends from now on, whatever their way."""
    put = server._put

    def noting(peer: Any, frame: bytes) -> None:
        frames.append(frame)
        put(peer, frame)

    server._put = noting


class Holding:
    """A handler whose streams the test drives."""

    def __init__(self) -> None:
        self.streams: list[Incoming] = []
        self.cancelled: list[int] = []

    def __call__(self, incoming: Incoming) -> None:
        self.streams.append(incoming)
        incoming.on_cancel(lambda: self.cancelled.append(incoming.stream))
