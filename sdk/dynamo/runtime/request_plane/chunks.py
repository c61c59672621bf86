"""Requests larger than the bus's `max_payload`, in numbered pieces.

`split` is the client's half, `Assembler` the worker's: one per client, bounded in
bytes and in open requests (and all of them together), forgetting what doesn't go on
for ten seconds. The clock is an argument.
"""

from __future__ import annotations

import math
from typing import Final

from dynamo.runtime.errors import CapacityExceeded, InvalidArgument
from dynamo.runtime.request_plane.wire import Chunk, encoder

OVERHEAD: Final = 64
"""More than a `Chunk` needs beside its data."""
PATIENCE: Final = 10.0
"""Seconds in which the next piece of a request must come."""
LONGEST: Final = 120.0
"""Seconds for all of them."""
MAX_BYTES: Final = 256 * 1024 * 1024
MAX_REQUESTS: Final = 64
MAX_COUNT: Final = 64 * 1024
"""Pieces of one request."""
PIECE_BYTES: Final = 256
"""What keeping a piece costs beside its data: many small ones are many."""
MAX_ALL: Final = 512 * 1024 * 1024
"""Bytes of the unfinished requests of all clients of one worker."""


class Shelf:
    """Shelf that bounds what is kept for all clients together."""

    def __init__(self, most: int = MAX_ALL) -> None:
        self.most, self.used = most, 0


def split(client: int, stream: int, data: bytes, limit: int) -> list[bytes]:
    """Cut an encoded request into encoded chunks of at most `limit` bytes."""
    room = limit - OVERHEAD
    if room < 1:
        raise InvalidArgument(f"the bus's limit of {limit} bytes a message leaves no room for a request")
    count = math.ceil(len(data) / room)
    pieces = (data[i * room : (i + 1) * room] for i in range(count))
    return [encoder.encode(Chunk(client, stream, index, count, piece)) for index, piece in enumerate(pieces)]


class _Partial:
    """A request of which some pieces are here."""

    __slots__ = ("began", "count", "pieces", "since", "size")

    def __init__(self, count: int, since: float) -> None:
        self.count = count
        self.began = self.since = since
        self.size = 0
        self.pieces: dict[int, bytes] = {}


class Assembler:
    """Puts one client's chunks together."""

    def __init__(
        self, *, max_bytes: int = MAX_BYTES, max_requests: int = MAX_REQUESTS, shelf: Shelf | None = None
    ) -> None:
        self._shelf = shelf or Shelf()
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self._size = 0
        self._partials: dict[int, _Partial] = {}

    @property
    def size(self) -> int:
        """Count the bytes held."""
        return self._size

    def add(self, chunk: Chunk, now: float) -> bytes | None:
        """Take one piece in; the whole once it is complete.

        Raises `InvalidArgument` for pieces that can't belong together and
        `CapacityExceeded` where there is no room; either forgets the request.
        """
        self.expire(now)
        try:
            return self._add(chunk, now)
        except (InvalidArgument, CapacityExceeded):
            self.forget(chunk.stream)
            raise

    def _add(self, chunk: Chunk, now: float) -> bytes | None:
        partial = self._partials.get(chunk.stream) or self._begin(chunk, now)
        if chunk.count != partial.count or not 0 <= chunk.index < chunk.count:
            raise InvalidArgument("the pieces of a request don't fit together")
        if chunk.index in partial.pieces:
            return None
        size = len(chunk.data) + PIECE_BYTES
        if self._size + size > self._max_bytes:
            raise CapacityExceeded(f"more than {self._max_bytes} bytes of unfinished requests")
        if self._shelf.used + size > self._shelf.most:
            raise CapacityExceeded(f"more than {self._shelf.most} bytes of unfinished requests of all clients")
        partial.pieces[chunk.index] = chunk.data
        partial.since = now
        partial.size += size
        self._size += size
        self._shelf.used += size
        if len(partial.pieces) < partial.count:
            return None
        self.forget(chunk.stream)
        return b"".join(partial.pieces[index] for index in range(partial.count))

    def _begin(self, chunk: Chunk, now: float) -> _Partial:
        if len(self._partials) >= self._max_requests:
            raise CapacityExceeded(f"more than {self._max_requests} unfinished requests")
        if not 0 < chunk.count <= MAX_COUNT:
            raise InvalidArgument("the pieces of a request don't fit together")
        return self._partials.setdefault(chunk.stream, _Partial(chunk.count, now))

    def forget(self, stream: int) -> None:
        """Drop what is here of one request."""
        partial = self._partials.pop(stream, None)
        if partial is not None:
            self._size -= partial.size
            self._shelf.used -= partial.size

    def clear(self) -> None:
        """Drop everything."""
        for stream in tuple(self._partials):
            self.forget(stream)

    def expire(self, now: float) -> None:
        """Drop what has waited too long."""
        old = [s for s, p in self._partials.items() if now - p.since >= PATIENCE or now - p.began >= LONGEST]
        for stream in old:
            self.forget(stream)
