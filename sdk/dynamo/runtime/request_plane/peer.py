"""One client as a worker sees it, and one of its requests.

`Peer` holds what `RequestServer` keeps per client: the outbox, the open streams,
which requests were seen before, pieces of large ones. `Incoming` is what a handler
gets. `Incoming.send` is the hot path: one append per item.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from dynamo.runtime.context import Context
from dynamo.runtime.errors import Cancelled, DeadlineExceeded, DynamoException, EngineError
from dynamo.runtime.names import InstanceKey, frame_subject
from dynamo.runtime.request_plane.chunks import Assembler, Shelf
from dynamo.runtime.request_plane.outbox import Outbox
from dynamo.runtime.request_plane.wire import DONE, FAILED

REMEMBERED: Final = 4096
"""Requests of one client that are recognised when they come a second time."""


class Peer:
    """One client in one namespace."""

    __slots__ = ("_order", "_seen", "chunks", "client", "dirty", "missing", "outbox", "served", "streams", "subject")

    def __init__(self, namespace: str, client: int, worker: int, now: float, shelf: Shelf | None = None) -> None:
        self.client = client
        self.subject = frame_subject(namespace, client)
        self.outbox = Outbox(worker, now)
        self.streams: dict[int, Incoming] = {}
        self.chunks = Assembler(shelf=shelf)
        self.dirty = False
        self.missing = 0
        """How often in a row nobody listened to its frames."""
        self.served: InstanceKey | None = None
        """The endpoint that it called last."""
        self._seen: set[int] = set()
        self._order: deque[int] = deque()

    def first_time(self, stream: int) -> bool:
        """Whether this request did not come before; remembers it."""
        if stream in self._seen:
            return False
        self._seen.add(stream)
        self._order.append(stream)
        if len(self._order) > REMEMBERED:
            self._seen.discard(self._order.popleft())
        return True

    def begin(self, incoming: Incoming) -> None:
        self.streams[incoming.stream] = incoming
        self.outbox.accept(incoming.stream)

    def cancel(self, stream: int) -> None:
        """The client wants no more of a stream; unknown ones are ignored."""
        incoming = self.streams.get(stream)
        if incoming is not None:
            incoming.cancel()

    def cancel_these(self, streams: list[int]) -> None:
        for stream in streams:
            self.cancel(stream)
            self.chunks.forget(stream)

    def cancel_all(self) -> None:
        for incoming in tuple(self.streams.values()):
            incoming.cancel()


class Owner(Protocol):
    """Owner of streams, with what a stream needs of it."""

    def mark(self, peer: Peer) -> None: ...

    def ended(self, incoming: Incoming) -> None: ...


class Incoming:
    """One open stream, worker side. After its end, `send` and the others do nothing."""

    __slots__ = ("_append", "_open", "_owner", "context", "payload", "peer", "stream", "timer")

    def __init__(self, owner: Owner, peer: Peer, stream: int, context: Context, payload: Any) -> None:
        self._owner = owner
        self._append = peer.outbox.items.append
        self._open = True
        self.peer = peer
        self.stream = stream
        self.context = context
        self.payload = payload
        self.timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        """False once it ended, was cancelled or ran out of time."""
        return self._open

    def send(self, data: Any) -> None:
        """Add one item; it leaves with all others of this step."""
        if self._open:
            append = self._append  # see _inbox: a function in a slot
            append((self.stream, data))
            if not self.peer.dirty:
                self._owner.mark(self.peer)

    def finish(self, data: Any = None) -> None:
        """End well, with a last item where `data` is not None."""
        if self._open:
            self._end((self.stream, data, DONE))
            self.context.settle()

    def fail(self, error: BaseException) -> None:
        """End badly; a `DynamoException` keeps its code."""
        if self._open:
            self._end((self.stream, list(describe(error)), FAILED))
            self.context.settle()

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the output is no longer wanted; at once where that is so already."""
        self.context.on_stop(callback)

    def cancel(self) -> None:
        """The client left: nothing more is sent, the handler is told."""
        if self._open:
            self._close()
            self.peer.outbox.discard(self.stream)
            self.context.kill()

    def expire(self) -> None:
        self.abandon(DeadlineExceeded())

    def abandon(self, error: DynamoException) -> None:
        """The worker ends it for a reason of its own: the client is told, and so is the handler."""
        if self._open:
            self._end((self.stream, [error.code, error.message], FAILED))
            self.context.kill()

    def _end(self, item: tuple[int, Any, int]) -> None:
        self._append(item)
        if not self.peer.dirty:
            self._owner.mark(self.peer)
        self.peer.outbox.streams.discard(self.stream)
        self._close()

    def _close(self) -> None:
        self._open = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.peer.streams.pop(self.stream, None)
        self._owner.ended(self)


def describe(error: BaseException) -> tuple[str, str]:
    """An error as it travels: code and message."""
    if isinstance(error, DynamoException):
        return error.code, error.message
    if isinstance(error, asyncio.CancelledError):
        return Cancelled.code, "the worker's handler was cancelled"
    return EngineError.code, f"{type(error).__name__}: {error}"
