"""Server-sent events out of a stream of bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dynamo.runtime.errors import EngineError

MOST_BYTES: Final = 4 << 20
"""Of one event: a server that sends more without an end is not listened to."""
DONE: Final = b"[DONE]"


class EventReader:
    """Cuts chunks of a response into the data of its events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of each event that is complete; `EngineError` for one that is too long."""
        data = self._rest + chunk if self._rest else chunk
        *lines, self._rest = data.split(b"\n")
        if len(self._rest) > MOST_BYTES:
            raise EngineError(f"the server sent an event of more than {MOST_BYTES} bytes")
        for line in lines:
            # Every server that is known sends an event's data as one line.
            if line.startswith(b"data:"):
                yield line[5:].strip()
