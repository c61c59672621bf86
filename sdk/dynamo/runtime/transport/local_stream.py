"""Streams of frames between two processes of one machine, beside the bus.

Linux's abstract Unix sockets: they belong to a network namespace and not to a file system, so nothing is left behind
by a killed process, and containers that share no network don't meet. Both sides look at the other's user, which the
kernel vouches for. A frame is its length in four bytes, then the bytes. What travels, and when, is
`request_plane.direct_frames`' business.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, Final, cast

from dynamo.runtime.errors import CannotConnect

AVAILABLE: Final = sys.platform == "linux"
"""Whether this system has such sockets."""
BACKLOG: Final = 64
SHORT: Final = 1024
"""Bytes of a frame with the items of some requests; one of a step of hundreds has more."""
SHORTS: Final = 4096
"""Bytes of short frames that are handled in any turn, which takes some two milliseconds."""
_LEAST: Final = 64
"""Bytes that a frame counts for at least."""
_HEAD: Final = 4
_PREFIX: Final = "\0dynamo-"
_CREDENTIALS: Final = struct.Struct("3i")


class ReadingTime:
    """How long frames may be handled in one turn of the loop, over all streams; what is left waits for the next turn.

    Else all that hundreds of workers send at once would be handled before anybody else's turn. Short frames, such as
    that with the first token of a request, don't wait behind long ones, each of which may take all the time there is:
    some of them are handled in any turn.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._until: float | None = None
        self._short = 0
        """Bytes of short frames in this turn."""

    def is_over(self, length: int) -> bool:
        """Tell whether this turn has no time left for such a frame; who asks first in a turn begins it."""
        if self._until is None:
            self._until, self._short = self._clock() + self._seconds, 0
            asyncio.get_running_loop().call_soon(self._begin_anew)
            return False
        if length <= SHORT and self._short < SHORTS:
            self._short += max(length, _LEAST)
            return False
        return self._clock() >= self._until

    def _begin_anew(self) -> None:
        self._until = None


class FrameStream(asyncio.Protocol):
    """One connection. `on_frame` is called in the very call that brings the bytes, in order; it must not raise."""

    def __init__(self, most: int, on_open: Callable[[FrameStream], None] | None = None) -> None:
        """Begin; frames of over `most` bytes end the connection, which is also the bound of what is kept unread."""
        self.most = most
        self.most_unsent = 1024 * 1024
        """With more than that unread by the other side, `send` hangs up."""
        self.on_frame: Callable[[bytes], None] = _ignore
        self.on_closed: Callable[[], None] = _nothing
        self.reading: ReadingTime | None = None
        """Shared with other streams; None: frames are handled when they come."""
        self._on_open = on_open
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._missing = 0
        self._paused = False
        self._resuming: asyncio.Handle | None = None
        self._ended = asyncio.Event()

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def waits(self) -> bool:
        """Tell whether something that came, or may have come, hasn't been handled."""
        return self._paused

    def send(self, frame: bytes) -> bool:
        """Write one frame; False where the connection is gone, or ends since nobody reads what was sent."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > self.most_unsent:
            transport.abort()
            return False
        transport.write(len(frame).to_bytes(_HEAD, "big") + frame)
        return True

    def close(self) -> None:
        """Hang up, after what was sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Hang up now."""
        if self._transport is not None:
            self._transport.abort()

    async def ended(self, within: float) -> None:
        """Wait until it is closed and all was sent, but not for long."""
        try:
            async with asyncio.timeout(within):
                await self._ended.wait()
        except TimeoutError:
            self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not _is_ours(transport.get_extra_info("socket")):
            self._transport.abort()
        elif self._on_open is not None:
            self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._parts.clear()
        self._ended.set()
        self.on_closed()

    def pause(self) -> None:
        """Read no further: what comes waits here, and then with the other side."""
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        elif self._transport is not None and self.open and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on, once this call is over."""
        if self._paused and self._resuming is None:
            self._resuming = asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._paused, self._resuming = False, None
        data = b"".join(self._parts)
        self._parts.clear()
        try:
            self._read(data)
        except BaseException:  # what asyncio does where it calls `data_received`
            self.abort()
            raise
        if self._transport is not None and self.open and not self._paused:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._parts or self._paused:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0 or self._paused:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        self._read(data)

    def _read(self, data: bytes) -> None:
        at, size = 0, len(data)
        while self.open and at < size:
            start = at + _HEAD
            length = int.from_bytes(data[at:start], "big") if start <= size else 0
            if not self._paused and self.reading is not None and self.reading.is_over(length):
                self.pause()
                self.resume()
            if self._paused:
                self._parts.append(data[at:])
                return
            if length > self.most:
                self.abort()
                return
            if start + length > size:
                self._missing = start + length - size
                self._parts.append(data[at:])
                return
            at = start + length
            self.on_frame(data[start:at])


def _ignore(_: bytes) -> None:
    """Drop a frame that comes before anybody listens."""


def _nothing() -> None:
    """Do nothing."""


def _is_ours(connection: Any) -> bool:
    """Tell whether the process at the other end has our user."""
    try:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except (OSError, AttributeError):
        return False
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())


class Listener:
    """A name at which processes of this machine and user can connect."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @classmethod
    async def at(cls, name: str, most: int, on_open: Callable[[FrameStream], None]) -> Listener:
        """Listen; `CannotConnect` where that can't be."""
        listening = _socket()
        try:
            listening.bind(_PREFIX + name)
            listening.listen(BACKLOG)
            server = await asyncio.get_running_loop().create_unix_server(
                lambda: FrameStream(most, on_open), sock=listening
            )
        except OSError as error:
            listening.close()
            raise CannotConnect(f"no socket for frames: {error}") from None
        return cls(server)

    def close(self) -> None:
        """Listen no longer; connections stay."""
        self._server.close()


async def connect(name: str, most: int) -> FrameStream:
    """Connect to a listener of this machine; `CannotConnect` where there is none, or it is another user's."""
    connection = _socket()
    try:
        connection.connect(_PREFIX + name)
        _, stream = await asyncio.get_running_loop().create_unix_connection(lambda: FrameStream(most), sock=connection)
    except OSError as error:
        connection.close()
        raise CannotConnect(f"nobody takes frames directly here: {error}") from None
    if not stream.open:
        raise CannotConnect("the socket for frames is another user's")
    return stream


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    return made
