"""What one worker has for one client, from one engine step to the next: numbered step frames.

`RequestServer` appends to `items` and `accepted` while a step runs and takes the
frames at its end. Every frame uses one number, also one that then can't be sent, so
that each loss is a gap in the client's sight; while streams are open a heartbeat
repeats the last number. No I/O; the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from dynamo.runtime.errors import EngineError
from dynamo.runtime.request_plane.wire import FAILED, VERSION, Item, StepFrame, encoder

HEARTBEAT: Final = 0.25
"""Seconds between two frames at most, while the client has streams here."""
TICK: Final = HEARTBEAT / 2
"""How often `heartbeat` must be asked so that `HEARTBEAT` is kept."""
UNENCODABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""What msgspec raises for data that has no place in a message."""

_ACCEPTED_BYTES: Final = 9
_FRAME_BYTES: Final = 64


class Outbox:
    """The frames of one worker for one client in one namespace."""

    __slots__ = ("_worker", "accepted", "failed", "items", "last_sent", "seq", "streams")

    def __init__(self, worker: int, now: float) -> None:
        self._worker = worker
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
        """The frames of this step, each of at most `limit` bytes."""
        if not self.items and not self.accepted:
            return []
        self.last_sent = now
        try:
            frame = encoder.encode(StepFrame(VERSION, self._worker, self.seq + 1, self.accepted, self.items))
        except UNENCODABLE:
            frames = list(self._cut(limit))
        else:
            if len(frame) <= limit:
                self.seq += 1
                frames = [frame]
            else:
                frames = list(self._cut(limit))
        self.accepted.clear()
        self.items.clear()
        return frames

    def heartbeat(self, now: float) -> bytes | None:
        """An empty frame where one is due."""
        if not self.streams or now - self.last_sent < TICK * 0.9:
            return None
        self.last_sent = now
        return encoder.encode(StepFrame(VERSION, self._worker, self.seq, [], [], True))

    def _cut(self, limit: int) -> Iterator[bytes]:
        """Frames of at most `limit` bytes; what can't be encoded becomes the end of its stream."""
        room = limit - _FRAME_BYTES
        per_frame = max(1, room // _ACCEPTED_BYTES)
        accepted = self.accepted
        while len(accepted) > per_frame // 2:
            yield self._frame(accepted[:per_frame], [])
            accepted = accepted[per_frame:]
        used = len(accepted) * _ACCEPTED_BYTES
        part: list[msgspec.Raw] = []
        for item in self._encoded(room):
            if used + len(item) > room and (part or accepted):
                yield self._frame(accepted, part)
                accepted, part, used = [], [], 0
            part.append(msgspec.Raw(item))
            used += len(item)
        if part or accepted:
            yield self._frame(accepted, part)

    def _frame(self, accepted: list[int], items: list[Any]) -> bytes:
        self.seq += 1
        return encoder.encode(StepFrame(VERSION, self._worker, self.seq, accepted, items))

    def _encoded(self, room: int) -> Iterator[bytes]:
        """Each item by itself, encoded; nothing after the one that had to be replaced by a failure."""
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
