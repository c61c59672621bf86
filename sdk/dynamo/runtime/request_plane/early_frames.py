"""Frames of a worker that came before their predecessors, since a worker's frames may travel two ways.

The bus is one, a stream beside it (`direct_frames`) the other. Each keeps its order; between them there is none. So
while both are in use, a number that was skipped is no gap yet: what comes behind it is kept for a moment. A worker
with quick steps sends thousands of frames in that moment, so its stream is read no further once enough are kept. Pure.
"""

from __future__ import annotations

from typing import Final, Protocol

from dynamo.runtime.request_plane.wire import StepFrame

ENOUGH: Final = 256
"""Frames that are kept before the worker's stream is read no further."""
MOST: Final = 2 * ENOUGH
"""Frames that are kept; with one more, what is missing counts as lost."""
OVERLAP: Final = 1.0
"""Seconds after the end of a stream in which frames may still come by both ways."""


class Flow(Protocol):
    """A stream of frames that can be held up. `resume` must not bring a frame before it has returned."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class EarlyFrames:
    """What waits for its predecessors, in one client's sight of one worker."""

    __slots__ = ("_paused", "_until", "claimed", "flow", "frames", "linked", "since")

    def __init__(self) -> None:
        self.frames: dict[int, StepFrame] = {}
        self.claimed = 0
        """The last number that a heartbeat named, ahead of what came."""
        self.linked = False
        """Whether the worker has a stream to this client."""
        self.flow: Flow | None = None
        """That stream, where it can be held up."""
        self.since: float | None = None
        """When the first that waits came; None: nothing waits."""
        self._until = 0.0
        self._paused = False

    @property
    def held(self) -> bool:
        """Tell whether the stream is held up: what is missing then is the bus's, and the stream has what follows."""
        return self._paused

    def unlink(self, now: float) -> None:
        """Note that the stream has ended."""
        self.linked, self.flow, self._paused, self._until = False, None, False, now + OVERLAP

    def keep(self, frame: StepFrame, now: float) -> bool:
        """Keep a frame before which numbers are missing; False: they are lost."""
        if not (self.linked or now < self._until) or len(self.frames) >= MOST:
            return False
        if frame.heartbeat:
            self.claimed = max(self.claimed, frame.seq)
        else:
            self.frames[frame.seq] = frame
        if self.since is None:
            self.since = now
        if len(self.frames) >= ENOUGH and self.flow is not None and not self._paused:
            self._paused = True
            self.flow.pause()
        return True

    def next(self, seq: int) -> StepFrame | None:
        """Take the frame of that number out, where it is here."""
        frame = self.frames.pop(seq, None)
        if frame is None and not self.frames and self.claimed < seq:
            self._over()
        return frame

    def give_up(self) -> tuple[list[StepFrame], int]:
        """Take all out, in order, and the number up to which frames were sent: what is missing won't come."""
        frames, claimed = [self.frames[seq] for seq in sorted(self.frames)], self.claimed
        self.frames.clear()
        self.claimed = 0
        self._over()
        return frames, claimed

    def _over(self) -> None:
        """Note that nothing waits any more."""
        self.since = None
        if self._paused and self.flow is not None:
            self._paused = False
            self.flow.resume()
