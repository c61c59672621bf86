"""Writing to clients: one write per client and batch, and a slow client delays only itself.

`ResponseStream` is one HTTP response. Bytes that are added to it while the messages of one
socket read are handled (`BatchWriter.touch`) leave in one ASGI send, which is driven by
hand here: where the transport has room, a send finishes without suspending, so no task
has to be woken per token. Where it suspends the client is slow: the suspended send goes
to one task, what comes meanwhile is merged, and past a limit the client is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, Protocol

from dynamo.frontend.errors import ApiError

Send = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]
Headers = list[tuple[bytes, bytes]]
log = logging.getLogger(__name__)
BUFFER_LIMIT: Final = 1024 * 1024
"""Bytes that may wait for a slow client before it is cut off: some 4,000 tokens, behind what the kernel holds."""
CLIENT_STALL: Final = "client_stall"
CLIENT_BUFFER: Final = "client_buffer"
TURN_SECONDS: Final = 0.003
"""Of writing, before others have their turn."""
LOOKED_AFTER: Final = 64
"""Writes between two looks at the clock: a millisecond or two."""
_DONE: Final = object()


class ClientConnection(Protocol):
    """The connection under a `send`, as `http.connection.Connection` is one."""

    def hold(self) -> list[bytes]:
        """Collect what is written from now on."""

    def release(self, held: list[bytes]) -> None:
        """Write what was collected, at once."""

    def opener(self, send: Send) -> Callable[[int, Headers, bytes, bool], bool]:
        """Return what writes the head of an answer of unknown length and a part, maybe the last; False: use `send`."""

    def writer(self, send: Send) -> Callable[..., bool]:
        """Return what writes a part of a started answer at once; it says False where `send` must be used.

        A second argument, True, says that nothing follows; that part may be empty.
        """

    def abort(self) -> None:
        """Cut the connection."""


class PlainWire:
    """Wire for callers of the app without a socket (tests, a chat in the same process)."""

    def __init__(self, abort: Callable[[], None] | None) -> None:
        self._abort = abort

    def hold(self) -> list[bytes]:
        return []

    def release(self, held: list[bytes]) -> None:
        """Release nothing: nothing is held."""

    def opener(self, send: Send) -> Callable[[int, Headers, bytes, bool], bool]:
        return lambda status, headers, data, last: False

    def writer(self, send: Send) -> Callable[..., bool]:
        return lambda data, last=False: False

    def abort(self) -> None:
        if self._abort is not None:
            self._abort()


class _Rest:
    """Goes on, in a task, with a coroutine that was driven by hand until it yielded `waiting_for`."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waiting_for: Any) -> None:
        self._coroutine, self._waiting_for = coroutine, waiting_for

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            yield self._waiting_for
        except BaseException as error:
            self._coroutine.throw(error)
            raise
        yield from self._coroutine.__await__()


def _drive(coroutine: Coroutine[Any, Any, None]) -> Any:
    """Run a coroutine until it ends (`_DONE`) or yields what it waits for."""
    try:
        return coroutine.send(None)
    except StopIteration:
        return _DONE


class ResponseStream:
    """One response to one client. Not started until the first flush: headers leave with the first bytes."""

    __slots__ = (
        "_connection", "_ended", "_finished", "_head", "_hit", "_open", "_parts", "_send", "_stall_seconds", "_waiting",
        "_writer", "append", "dirty", "flowing", "last_write", "meter", "part", "started", "write",
    )  # fmt: skip

    def __init__(
        self, send: Send, connection: ClientConnection, *, stall_seconds: float, meter: Any = None,
        hit: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self._send, self._connection, self._stall_seconds, self._hit = send, connection, stall_seconds, hit
        self._waiting: bytearray | None = None
        """What came while a write waited for the client."""
        self._open, self.write = connection.opener(send), connection.writer(send)
        self._head: tuple[int, Headers] | None = None
        self._parts: list[bytes] = []
        self.append: Callable[[bytes], None] = self._parts.append
        """Add bytes; they leave at the next flush."""
        self.part: bytes | None = None
        """All that the next flush is to write, put here while the stream is `flowing` and not `dirty`.

        Nearly every flush has one token. What it needs lies close together, and a list is not looked at.
        """
        self._ended = self._finished = False
        self.flowing = False
        """Started, not ended, and no write waits: parts can be written without `send`."""
        self._writer: asyncio.Task[None] | None = None
        self.started = self.dirty = False
        self.last_write = 0.0
        self.meter = meter

    def head(self, status: int, headers: Headers) -> None:
        """Say what the response starts with."""
        self._head = (status, headers)

    def end(self) -> None:
        """Note that nothing comes after what was appended so far."""
        self._ended, self.flowing = True, False

    def flush(self) -> None:
        """Write what is there, unless an earlier write still waits for the client."""
        self.dirty = False
        parts, part, write = self._parts, self.part, self.write
        if part is not None:
            self.part = None
            if not parts and self.flowing and write(part):
                return
            parts.insert(0, part)
        if parts and self.flowing and write(parts[0] if len(parts) == 1 else b"".join(parts)):
            parts.clear()
        elif self._writer is not None:
            self._set_aside()
        elif self._finished:
            parts.clear()
        elif not self.started:
            self._start()
        elif self._ended and self._waiting is None and write(b"".join(parts), True):
            parts.clear()
            self._finished = True
        elif parts or self._ended:
            self._begin(self._body())

    def _set_aside(self) -> None:
        """Keep what came in one piece, so that a client that stalls costs the same per token however long it does."""
        if self._waiting is None:
            self._waiting = bytearray()
        self._waiting += b"".join(self._parts)
        self._parts.clear()
        if len(self._waiting) > BUFFER_LIMIT and not self._ended:  # nothing grows behind the end
            self.cut_off(CLIENT_BUFFER)

    def _start(self) -> None:
        """Send the head and what is there, in one write."""
        self.started = True
        status, headers = self._head or (200, [])
        held = self._connection.hold()
        try:
            if self._open(status, headers, b"".join(self._parts), self._ended):
                self._parts.clear()
                self.flowing, self._finished = not self._ended, self._ended
                return
            slow = self._begin({"type": "http.response.start", "status": status, "headers": headers})
            if not slow and (self._parts or self._ended):
                slow = self._begin(self._body())
            self.flowing = not (slow or self._ended)
        finally:
            self._connection.release(held)

    def _body(self) -> dict[str, Any]:
        self._finished = self._ended
        body = b"".join(self._parts) if self._waiting is None else b"".join((self._waiting, *self._parts))
        self._waiting = None
        self._parts.clear()
        return {"type": "http.response.body", "body": body, "more_body": not self._ended}

    def _begin(self, message: dict[str, Any]) -> bool:
        """Send; True where the client is slow and a task took over."""
        coroutine = self._send(message)
        waiting_for = _drive(coroutine)
        if waiting_for is _DONE:
            return False
        self.flowing = False
        self._writer = asyncio.get_running_loop().create_task(self._catch_up(_Rest(coroutine, waiting_for)))
        return True

    async def _catch_up(self, pending: Awaitable[None] | None) -> None:
        try:
            while pending is not None:
                async with asyncio.timeout(self._stall_seconds):
                    await pending
                pending = self._send(self._body()) if self._left_over() else None
        except TimeoutError:
            self.cut_off(CLIENT_STALL)
        except Exception:  # nobody awaits this task: whatever the transport raises ends here
            log.warning("a client can't be written to", exc_info=True)
            self.cut_off()
        finally:
            self._writer = None
            self.flowing = not (self._ended or self._finished)

    def _left_over(self) -> bool:
        return not self._finished and bool(self._parts or self._waiting or self._ended)

    def cut_off(self, limit: str = "") -> None:
        """Write nothing more and have the connection cut; `limit` says which one was passed."""
        if limit:
            log.info("a client that does not read is cut off (%s)", limit)
            if self._hit is not None:
                self._hit(limit)
        self._finished, self.flowing = True, False
        self._waiting = self.part = None
        self._parts.clear()
        self._connection.abort()

    async def close(self) -> None:
        """Give up what is unsent (the client is gone)."""
        self._finished, self.flowing, self.part = True, False, None
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])


class BatchWriter:
    """Flushes every response that got bytes during a batch, once, when the batch is over.

    A write is a system call. Thousands of streams that get tokens at once would keep the loop for tenths of a second,
    so the rest of a long batch waits for the loop's next turn: what came meanwhile is read before.
    """

    def __init__(self, after_batch: Callable[[Callable[[], None]], None], clock: Callable[[], float]) -> None:
        self._after_batch, self._clock = after_batch, clock
        self._first: list[ResponseStream] = []
        """Those that have sent nothing yet: a first token waits for nobody else's next one."""
        self._dirty: list[ResponseStream] = []

    def touch(self, output: ResponseStream) -> None:
        """Remember that `output` has something to flush."""
        if output.dirty:
            return
        output.dirty = True
        if not (self._dirty or self._first):
            self._after_batch(self._flush)
        (self._dirty if output.started else self._first).append(output)

    def _flush(self) -> None:
        """Write to everybody, for a turn's time; one client's failure is that client's."""
        dirty = [*self._first, *self._dirty]
        self._first, self._dirty = [], []
        began = now = self._clock()
        for begin in range(0, len(dirty), LOOKED_AFTER):
            if now - began > TURN_SECONDS:
                self._dirty = [*dirty[begin:], *self._dirty]
                self._after_batch(self._flush)
                return
            _write(dirty[begin : begin + LOOKED_AFTER], now)
            now = self._clock()


def _write(outputs: list[ResponseStream], now: float) -> None:
    meter, last, count = None, 0.0, 0
    for output in outputs:
        # Streams of one engine step were written together before, so they come in runs with one gap.
        if output.last_write != last or output.meter is not meter:
            _count_gap(meter, now, last, count)
            meter, last, count = output.meter, output.last_write, 0
        count += 1
        output.last_write = now
        try:
            output.flush()
        except Exception:  # whatever a transport raises must not take the other clients' tokens with it
            log.warning("a client can't be written to", exc_info=True)
            output.cut_off()
    _count_gap(meter, now, last, count)


def _count_gap(meter: Any, now: float, last: float, count: int) -> None:
    """Note the time between two tokens for `count` streams; a first token has none."""
    if meter is not None and last and count:
        meter.gap(now - last, count)


async def respond(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """Send a whole JSON answer."""
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def respond_error(send: Send, error: ApiError, headers: Headers) -> None:
    """Send an error as the whole answer."""
    own = [(name.encode(), value.encode()) for name, value in error.headers]
    await respond(send, error.status, error.body(), [*own, *headers])
