"""NATS's wire protocol on an established connection: bytes in, messages out, without a task switch.

nats-py dials, speaks TLS and authenticates; then `nats.NatsBus` puts this protocol on
its transport. Its own read loop costs 3.3 µs a message (regular expressions, a queue
and a task per subscription), this one well under one; `bench/micro/request-plane.md`
has the figures and the command. Messages are handled in the very call that brings
their bytes, so there is no queue on this side that could overflow.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.transport.bus import Message, OnMessage

_log = logging.getLogger(__name__)

MAX_UNSENT: Final = 64 * 1024 * 1024
"""Bytes that may wait for the server to read them; beyond, publishing raises."""
_COPY_BELOW: Final = 64 * 1024
_NO_RESPONDERS: Final = b"NATS/1.0 503"
_MESSAGES: Final = frozenset((b"MSG", b"HMSG"))
_MAX_LINE: Final = 64 * 1024


class NatsProtocol(asyncio.Protocol):
    """One connection. `handlers` maps the subscriptions' numbers to who listens."""

    def __init__(
        self,
        handlers: dict[int, OnMessage],
        on_error: Callable[[str], None],
        on_info: Callable[[dict[str, Any]], None],
    ) -> None:
        self._handlers = handlers
        self._on_error = on_error
        self._on_info = on_info
        self._transport: asyncio.Transport | None = None
        self._queued: list[bytes] = []
        self._queued_bytes = 0
        self._parts: list[bytes] = []
        self._missing = 0
        self._pongs: deque[asyncio.Future[None]] = deque()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is."""

    def take_over(self, transport: asyncio.Transport, unread: bytes) -> None:
        """Read from `transport` from now on; `unread` was read before."""
        self._transport = transport
        transport.set_protocol(self)
        transport.resume_reading()
        if unread:
            self.data_received(unread)

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Drop the connection without waiting for what is unsent."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._send_queued()
            self._transport.close()

    # -- out

    def publish(self, subject: str, data: bytes, reply: str) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise CannotConnect("NATS is not connected")
        if transport.get_write_buffer_size() + self._queued_bytes > MAX_UNSENT:
            raise CannotConnect("NATS does not read what is sent to it")
        head = f"PUB {subject} {reply} {len(data)}\r\n".encode() if reply else f"PUB {subject} {len(data)}\r\n".encode()
        if len(data) < _COPY_BELOW:
            self._queue(b"%b%b\r\n" % (head, data))
        else:
            self._send_queued()
            transport.writelines((head, data, b"\r\n"))

    def _queue(self, data: bytes) -> None:
        """Send at the end of this turn of the loop: uvloop makes a system call, and the server wakes up, per write."""
        if not self._queued:
            asyncio.get_running_loop().call_soon(self._send_queued)
        self._queued.append(data)
        self._queued_bytes += len(data)

    def _send_queued(self) -> None:
        if self._queued:
            data = b"".join(self._queued) if len(self._queued) > 1 else self._queued[0]
            self._queued.clear()
            self._queued_bytes = 0
            if self.open:
                cast("asyncio.Transport", self._transport).write(data)

    def subscribe(self, subject: str, number: int) -> None:
        self._write(f"SUB {subject} {number}\r\n".encode())

    def unsubscribe(self, number: int) -> None:
        self._write(f"UNSUB {number}\r\n".encode())

    def ping(self) -> asyncio.Future[None]:
        """Ask; the future is done when the server has seen all that was written before."""
        pong = asyncio.get_running_loop().create_future()
        self._write(b"PING\r\n")
        self._pongs.append(pong)
        return pong

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise CannotConnect("NATS is not connected")
        self._send_queued()
        self._transport.write(data)

    # -- in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        for pong in self._pongs:
            if not pong.done():
                pong.set_exception(CannotConnect("the connection to NATS was lost"))
                pong.exception()  # mark as seen: nobody may be waiting any more
        self._pongs.clear()
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        try:
            read, self._missing = self._parse(data)
        except (ValueError, IndexError) as error:
            self._on_error(f"unreadable bytes from the server: {error}")
            self.abort()
            return
        if read < len(data):
            self._parts.append(data[read:] if read else data)

    def _parse(self, data: bytes) -> tuple[int, int]:
        """Handle all whole operations in `data`; returns (bytes used, bytes missing at least)."""
        handlers = self._handlers
        position, size = 0, len(data)
        while position < size:
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                if size - position > _MAX_LINE:
                    raise ValueError("a line without end")
                return position, 1
            words = data[position:line_end].split()
            if not words or words[0] not in _MESSAGES:
                self._operation(data[position:line_end])
                position = line_end + 2
                continue
            start = line_end + 2
            end = start + int(words[-1])
            if end + 2 > size:
                return position, end + 2 - size
            handler = handlers.get(int(words[2]))
            if handler is not None:
                message = _read(words, data, start, end)
                try:
                    handler(message)
                except Exception:  # a listener's mistake must not lose the messages behind it
                    _log.exception("a listener of %s failed", message.subject)
            position = end + 2
        return position, 0

    def _operation(self, line: bytes) -> None:
        word = line[:4].upper()
        if word == b"PING":
            if self.open:
                self._write(b"PONG\r\n")
        elif word == b"PONG":
            pong = self._pongs.popleft() if self._pongs else None
            if pong is not None and not pong.done():
                pong.set_result(None)
        elif word == b"-ERR":
            self._on_error(line[4:].decode(errors="replace").strip().strip("'"))
        elif word == b"INFO":
            self._on_info(json.loads(line[4:]))
        elif word[:3] != b"+OK":
            raise ValueError(repr(line[:40]))


def _read(words: list[bytes], data: bytes, start: int, end: int) -> Message:
    """Read `MSG subject number [reply] size` or `HMSG subject number [reply] header-size size`, and what follows."""
    if words[0] == b"MSG":
        reply = words[3].decode() if len(words) == 5 else ""
        return Message(words[1].decode(), data[start:end], reply)
    reply = words[3].decode() if len(words) == 6 else ""
    body = start + int(words[-2])
    return Message(words[1].decode(), data[body:end], reply, data.startswith(_NO_RESPONDERS, start))
