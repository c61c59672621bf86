"""An answer in chunks, written past uvicorn's `send`: `opener` writes its head, `ChunkWriter` the rest.

`send` is a coroutine for each part, and looks at each header with three expressions. What is written here is byte for
byte the same, and uvicorn's state of the answer is kept as `send` keeps it. The transport can hold what is written.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from dynamo.frontend.http.cors import Headers

_CHUNK_HEADS: Final = tuple(b"%x\r\n" % size for size in range(1024))
"""What precedes a chunk of each size; events are mostly this short, and formatting costs more than the rest."""
_LAST_CHUNK: Final = b"0\r\n\r\n"
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"connection"})
_UNFIT: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What no header's value may hold."""


def opener(cycle: RequestResponseCycle, flow: FlowControl) -> Callable[[int, Headers, bytes, bool], bool]:
    """Return what writes the head of an answer and a part of it, which may be the last.

    It says False, and writes nothing, where the client has no room, the head frames the body in another way, or `send`
    would refuse it.
    """

    def begin(status: int, headers: Headers, data: bytes, last: bool) -> bool:
        if flow.write_paused or cycle.response_started or cycle.disconnected or cycle.access_log or is_unframed(cycle):
            return False
        lines = [STATUS_LINE[status], *map(_line, cycle.default_headers), *map(_line, headers)]
        if b"" in lines:
            return False
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"transfer-encoding: chunked\r\n\r\n")
        if data:
            lines += (b"%x\r\n" % len(data), data, b"\r\n")
        if last:
            lines.append(_LAST_CHUNK)
        cycle.response_started = cycle.chunked_encoding = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"".join(lines))
        if last:
            _complete(cycle)
        return True

    return begin


class _AnyLength(int):
    """Length of a body that ends with its connection: uvicorn, which counts down, finds it right whatever comes."""

    def __lt__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False

    def __sub__(self, other: int) -> _AnyLength:
        return self

    __hash__ = int.__hash__


def unframe(cycle: RequestResponseCycle) -> None:
    """Have an answer of no known length end with its connection: HTTP/1.0 has no chunks (RFC 9112, section 6.1)."""
    cycle.chunked_encoding, cycle.expected_content_length = False, _AnyLength()


def is_unframed(cycle: RequestResponseCycle) -> bool:
    """Tell whether the answer, not begun yet, is such a one."""
    return cycle.chunked_encoding is False


@functools.lru_cache(maxsize=64)
def _line(header: tuple[bytes, bytes]) -> bytes:
    """Write a header's line, mostly one that was just written; nothing for one that `begin` leaves to `send`."""
    name, value = header
    return b"" if name in _FRAMING or _UNFIT.search(value) else b"%b: %b\r\n" % header


class ChunkWriter:
    """Writes the parts of an answer, without a coroutine per token.

    What a client's room and the answer's state allow is looked up once, and again after `look_again`: with hundreds of
    streams each object that a token touches is a wait for memory.
    """

    __slots__ = ("_cycle", "_fits", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle, flow: FlowControl, write: Callable[[bytes], None]) -> None:
        self._cycle, self._flow, self._write = cycle, flow, write
        self._fits = False

    def look_again(self) -> None:
        """Note that room or answer have changed: called whenever `_may_write` would say something else."""
        self._fits = False

    def write(self, data: bytes, last: bool = False) -> bool:
        """Write one chunk, with `last` the end of the answer behind it: an empty chunk would end it, too.

        False: nothing is written, since the client has no room or the answer is not a chunked one.
        """
        if not self._fits and not self._may_write():
            return False
        size = len(data)
        head = _CHUNK_HEADS[size] if size < len(_CHUNK_HEADS) else b"%x\r\n" % size
        write = self._write  # a function in a slot: called in one step, CPython looks it up as a method
        if last:
            write(b"".join((head, data, b"\r\n", _LAST_CHUNK)) if data else _LAST_CHUNK)
            _complete(self._cycle)
        else:
            write(b"".join((head, data, b"\r\n")))
        return True

    def _may_write(self) -> bool:
        cycle = self._cycle
        held_up = self._flow.write_paused or cycle.response_complete or cycle.disconnected
        self._fits = cycle.chunked_encoding is True and not held_up
        return self._fits


def _complete(cycle: RequestResponseCycle) -> None:
    """Note that an answer is whole."""
    cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


class LingeringTransport:
    """What answers are written to: it closes by `close`, which lets the client read first; writes can be held."""

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

    def forget(self) -> None:
        """Forget whose it is: the connection is lost."""
        self._close = _nothing

    def close(self) -> None:
        """Close once what is held has been written."""
        self.ends = True
        self.when_written(self._close)


def _nothing() -> None:
    """Do nothing."""
