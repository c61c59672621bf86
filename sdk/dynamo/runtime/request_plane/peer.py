"""The clients of a worker: who they are, what they have open here, and what is on its way to them.

`RequestServer` keeps a `Peer` for each: its open streams, which of its requests were seen before, pieces of large ones,
and the `Outbox`, which makes numbered frames of what one engine step produced. `Incoming` is one stream, as a handler
gets it; `Incoming.send` is the hot path: one append per item. No I/O; the clock is an argument.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import msgspec

from dynamo.runtime.context import Context
from dynamo.runtime.errors import Cancelled, DeadlineExceeded, DynamoException, EngineError
from dynamo.runtime.names import InstanceKey, frame_subject
from dynamo.runtime.request_plane.chunks import Assembler, Shelf
from dynamo.runtime.request_plane.wire import DONE, FAILED, HEARTBEAT, VERSION, Item, StepFrame, encoder

REMEMBERED: Final = 4096
"""Requests of one client that are recognised when they come a second time."""
IDLE: Final = 600.0
"""Seconds for which a client without streams is remembered."""
MOST_IDLE: Final = 1000
TICK: Final = HEARTBEAT / 2
"""How often `heartbeat` must be asked so that `HEARTBEAT` is kept."""
UNENCODABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""What msgspec raises for data that has no place in a message."""

MOST_ITEMS: Final = 128
"""Of one frame, which a client handles as a whole: some 20 us an item. It handles together what came with one read from
the bus, so only frames beside the bus let others in between."""
_ACCEPTED_BYTES: Final = 9
_FRAME_BYTES: Final = 64


class Outbox:
    """The frames of one worker for one client in one namespace.

    The server appends to `items` and `accepted` while a step runs and takes the frames at its end. Every frame uses one
    number, also one that then can't be sent, so that each loss is a gap in the client's sight; while streams are open
    a heartbeat repeats the last number.
    """

    __slots__ = ("accepted", "failed", "items", "last_sent", "seq", "streams", "worker")

    def __init__(self, worker: int, now: float) -> None:
        self.worker = worker
        self.seq = 0
        """The number of the last frame."""
        self.streams: set[int] = set()
        """Streams that are open."""
        self.accepted: list[int] = []
        self.items: list[Any] = []
        """What this step has so far: `(stream, data)` or `(stream, data, end)`; the list object never changes."""
        self.failed: list[int] = []
        """Streams that `take` had to fail since an item of theirs can't be sent; the owner empties it."""
        self.last_sent = now

    def accept(self, stream: int) -> None:
        """Begin a stream; its acceptance goes out before or with its first item."""
        self.streams.add(stream)
        self.accepted.append(stream)

    def discard(self, stream: int) -> None:
        """Forget a cancelled stream, with what it still has here."""
        self.streams.discard(stream)
        self.items[:] = [item for item in self.items if item[0] != stream]

    def take(self, now: float, limit: int) -> list[bytes]:
        """Take the frames of this step, each of at most `limit` bytes."""
        if not self.items and not self.accepted:
            return []
        self.last_sent = now
        try:
            frames = self._whole()
        except UNENCODABLE:
            frames = list(self._cut(limit))
        else:
            if max(map(len, frames)) <= limit:
                self.seq += len(frames)
            else:
                frames = list(self._cut(limit))
        self.accepted.clear()
        self.items.clear()
        return frames

    def _whole(self) -> list[bytes]:
        """Encode all as it is: mostly one frame."""
        seq, accepted, items = self.seq + 1, self.accepted, self.items
        if len(items) <= MOST_ITEMS:
            return [encoder.encode(StepFrame(VERSION, self.worker, seq, accepted, items))]
        frames = []
        for number, begin in enumerate(range(0, len(items), MOST_ITEMS)):
            part = items[begin : begin + MOST_ITEMS]
            frames.append(encoder.encode(StepFrame(VERSION, self.worker, seq + number, accepted, part)))
            accepted = []
        return frames

    def heartbeat(self, now: float) -> bytes | None:
        """Return an empty frame where one is due."""
        if not self.streams or now - self.last_sent < TICK * 0.9:
            return None
        self.last_sent = now
        return encoder.encode(StepFrame(VERSION, self.worker, self.seq, [], [], True))

    def _cut(self, limit: int) -> Iterator[bytes]:
        """Yield frames of at most `limit` bytes; what can't be encoded becomes the end of its stream."""
        room = limit - _FRAME_BYTES
        per_frame = max(1, room // _ACCEPTED_BYTES)
        accepted = self.accepted
        while len(accepted) > per_frame // 2:
            yield self._frame(accepted[:per_frame], [])
            accepted = accepted[per_frame:]
        used = len(accepted) * _ACCEPTED_BYTES
        part: list[msgspec.Raw] = []
        for item in self._encoded(room):
            if (used + len(item) > room or len(part) == MOST_ITEMS) and (part or accepted):
                yield self._frame(accepted, part)
                accepted, part, used = [], [], 0
            part.append(msgspec.Raw(item))
            used += len(item)
        if part or accepted:
            yield self._frame(accepted, part)

    def _frame(self, accepted: list[int], items: list[Any]) -> bytes:
        self.seq += 1
        return encoder.encode(StepFrame(VERSION, self.worker, self.seq, accepted, items))

    def _encoded(self, room: int) -> Iterator[bytes]:
        """Yield each item by itself, encoded; nothing after the one that had to be replaced by a failure."""
        failed: set[int] = set()
        for item in self.items:
            if item[0] in failed:
                continue
            try:
                data = encoder.encode(item)
                problem = f"an item of {len(data)} bytes is over the bus's limit" if len(data) > room else ""
            except UNENCODABLE as error:
                problem = f"an item can't be sent: {type(error).__name__}: {error}"
            if problem:
                failed.add(item[0])
                self.failed.append(item[0])
                data = encoder.encode(Item(item[0], [EngineError.code, problem[:200]], FAILED))
            yield data


class Link(Protocol):
    """Stream to a client, beside the bus."""

    def send(self, frame: bytes) -> bool:
        """Send one frame; False where that can't be."""

    def close(self) -> None: ...


class Peer:
    """One client in one namespace."""

    __slots__ = (
        "_order", "_seen", "chunks", "client", "direct_after", "dirty", "forgotten", "link", "missing", "outbox",
        "served", "streams", "subject",
    )  # fmt: skip

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
        self.link: Link | None = None
        """Where its frames go directly; None: over the bus."""
        self.direct_after = 0.0
        """When an offer of its is taken up again."""
        self.forgotten = False
        self._seen: set[int] = set()
        self._order: deque[int] = deque()

    def first_time(self, stream: int) -> bool:
        """Tell whether this request did not come before; remembers it."""
        if stream in self._seen:
            return False
        self._seen.add(stream)
        self._order.append(stream)
        if len(self._order) > REMEMBERED:
            self._seen.discard(self._order.popleft())
        return True

    def forget(self) -> None:
        """Note that it is no longer known here: should it come again, its frames are counted anew."""
        self.forgotten = True
        self.chunks.clear()
        if self.link is not None:
            self.link.close()
            self.link = None

    def begin(self, incoming: Incoming) -> None:
        self.streams[incoming.stream] = incoming
        self.outbox.accept(incoming.stream)

    def cancel(self, stream: int) -> None:
        """Cancel a stream that the client wants no more of; unknown ones are ignored."""
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
        """Tell whether it is open; false once it ended, was cancelled or ran out of time."""
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
        """Cancel it: the client left, nothing more is sent, the handler is told."""
        if self._open:
            self._close()
            self.peer.outbox.discard(self.stream)
            self.context.kill()

    def expire(self) -> None:
        self.abandon(DeadlineExceeded())

    def abandon(self, error: DynamoException) -> None:
        """Abandon it for a reason of the worker's own: the client is told, and so is the handler."""
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
    """Describe an error as it travels: code and message."""
    if isinstance(error, DynamoException):
        return error.code, error.message
    if isinstance(error, asyncio.CancelledError):
        return Cancelled.code, "the worker's handler was cancelled"
    return EngineError.code, f"{type(error).__name__}: {error}"


class Peers:
    """The clients that a worker knows, in bounds: whoever may publish in its namespace can make some up."""

    def __init__(self) -> None:
        self._shelf = Shelf()
        self._peers: dict[tuple[str, int], Peer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def values(self) -> Iterable[Peer]:
        """Return the peers that are known."""
        return self._peers.values()

    def get(self, key: tuple[str, int]) -> Peer | None:
        return self._peers.get(key)

    def of(self, namespace: str, client: int, worker: int, now: float) -> Peer:
        """Return the client, known from now on.

        Where too many are, who came first of those without a stream is forgotten.

        `worker` is the id that clients are told; it changes where another process has the same.
        """
        key = (namespace, client)
        peer = self._peers.get(key)
        if peer is None:
            if len(self._peers) >= MOST_IDLE:
                self._forget_first()
            peer = self._peers[key] = Peer(namespace, client, worker, now, self._shelf)
        return peer

    def _forget_first(self) -> None:
        first = next((key for key, peer in self._peers.items() if not peer.streams), None)
        if first is not None:
            self._peers.pop(first).forget()

    def prune(self, now: float) -> None:
        """Forget what is over: unfinished requests that don't go on, and clients that have been quiet for long."""
        for key, peer in tuple(self._peers.items()):
            peer.chunks.expire(now)
            if not peer.streams and not peer.chunks.size and now - peer.outbox.last_sent > IDLE:
                self._peers.pop(key).forget()
