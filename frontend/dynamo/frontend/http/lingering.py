"""What a connection's answers are written to. `connection.py` makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LingeringTransport:
    """A transport that closes by `close`, which lets the client read first, and whose writes can be held."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport, self._close = transport, close
        self.write: Callable[[bytes], object] = transport.write
        self.is_closing = transport.is_closing
        self.ends = False
        """It was told to close."""
        self._held = False
        self._then: Callable[[], None] | None = None

    def hold(self) -> list[bytes]:
        """Collect what is written from now on."""
        held: list[bytes] = []
        self.write = held.append
        self._held = True
        return held

    def release(self, held: list[bytes]) -> None:
        """Write what was collected, at once, and do what waits for that."""
        self.write = self._transport.write
        self._held = False
        if held:
            self._transport.write(b"".join(held))
        if (then := self._then) is not None:
            self._then = None
            then()

    def when_written(self, then: Callable[[], None]) -> None:
        """Call `then` as soon as nothing is held; of several the last counts."""
        if self._held:
            self._then = then
        else:
            then()

    def close(self) -> None:
        """Close once what is held has been written."""
        self.ends = True
        self.when_written(self._close)
