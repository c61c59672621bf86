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

    @property
    def waits(self) -> bool:
        """Tell whether it is held up, or has frames that wait for their turn."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class EarlyFrames:
    """What waits for its predecessors, in one client's sight of one worker."""

    __slots__ = ("_came", "_claimed_at", "_paused", "_until", "claimed", "flow", "frames", "linked", "since")

    def __init__(self) -> None:
        self.frames: dict[int, StepFrame] = {}
        self._came: dict[int, float] = {}
        """When each of them came."""
        self.claimed = 0
        """The last number that a heartbeat named, ahead of what came."""
        self._claimed_at = 0.0
        self.linked = False
        """Whether the worker has a stream to this client."""
        self.flow: Flow | None = None
        """That stream, where it can be held up."""
        self.since: float | None = None
        """Since when the number is missing that is awaited now; None: nothing waits."""
        self._until = 0.0
        self._paused = False

    @property
    def held(self) -> bool:
        """Tell whether the stream may have frames that nobody has taken yet."""
        return self._paused or (self.flow is not None and self.flow.waits)

    def unlink(self, now: float) -> None:
        """Note that the stream has ended."""
        self.linked, self.flow, self._paused, self._until = False, None, False, now + OVERLAP

    def keep(self, frame: StepFrame, now: float) -> bool:
        """Keep a frame before which numbers are missing; False: they are lost."""
        if not (self.linked or now < self._until) or len(self.frames) >= MOST:
            return False
        if not frame.heartbeat:
            self.frames[frame.seq] = frame
            self._came.setdefault(frame.seq, now)
        elif frame.seq > self.claimed:
            self.claimed, self._claimed_at = frame.seq, now
        if self.since is None:
            self.since = now
        if len(self.frames) >= ENOUGH and self.flow is not None and not self._paused:
            self._paused = True
            self.flow.pause()
        return True

    def next(self, seq: int) -> StepFrame | None:
        """Take the frame of that number out, where it is here."""
        frame = self.frames.pop(seq, None)
        if frame is not None:
            self._came.pop(seq, None)
        elif not self.frames and self.claimed < seq:
            self._over()
        return frame

    def overdue(self, now: float, seconds: float) -> int | None:
        """Return the last of the awaited numbers once they have been missing for so long.

        Where the stream waits for its turn, they may be there; where it is held up from here, they are the bus's.
        """
        if self.since is None or now - self.since < seconds or (self.held and not self._paused):
            return None
        return min(self.frames) - 1 if self.frames else self.claimed

    def take(self, last: int | None) -> list[StepFrame]:
        """Take out what came of the numbers up to the last, or of all, in order."""
        taken = [self.frames.pop(seq) for seq in sorted(self.frames) if last is None or seq <= last]
        for frame in taken:
            self._came.pop(frame.seq, None)
        return taken

    def wait_anew(self, now: float | None = None) -> None:
        """Begin to wait for the next that is missing: from `now` on, or since what is behind it came."""
        if now is None:
            now = self._came[min(self._came)] if self._came else self._claimed_at
        self.since = now

    def postpone(self, seconds: float, now: float) -> None:
        """Leave out so many seconds in which nothing could come; what came since waits from now on at the latest."""
        if self.since is not None:
            self.since = min(self.since + seconds, now)
            self._claimed_at = min(self._claimed_at + seconds, now)
            self._came = {seq: min(came + seconds, now) for seq, came in self._came.items()}

    def _over(self) -> None:
        """Note that nothing waits any more."""
        self.since = None
        if self._paused and self.flow is not None:
            self._paused = False
            self.flow.resume()
