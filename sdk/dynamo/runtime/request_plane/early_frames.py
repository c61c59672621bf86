"""Frames of a worker that came before their predecessors, since a worker's frames may travel two ways.

The bus is one, a stream beside it (`direct_frames`) the other. Each keeps its order; between them there is none. So
while both are in use, a number that was skipped is no gap yet: what comes behind it is kept for a moment. Pure.
"""

from __future__ import annotations

from typing import Final

from dynamo.runtime.request_plane.wire import StepFrame

MOST: Final = 256
"""Frames that are kept; with one more, what is missing counts as lost."""
OVERLAP: Final = 1.0
"""Seconds after the end of a stream in which frames may still come by both ways."""


class EarlyFrames:
    """What waits for its predecessors, in one client's sight of one worker."""

    __slots__ = ("_until", "claimed", "frames", "linked", "since")

    def __init__(self) -> None:
        self.frames: dict[int, StepFrame] = {}
        self.claimed = 0
        """The last number that a heartbeat named, ahead of what came."""
        self.linked = False
        """Whether the worker has a stream to this client."""
        self.since: float | None = None
        """When the first that waits came; None: nothing waits."""
        self._until = 0.0

    def unlink(self, now: float) -> None:
        """Note that the stream has ended."""
        self.linked, self._until = False, now + OVERLAP

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
        return True

    def next(self, seq: int) -> StepFrame | None:
        """Take the frame of that number out, where it is here."""
        frame = self.frames.pop(seq, None)
        if frame is None and not self.frames and self.claimed < seq:
            self.since = None
        return frame

    def give_up(self) -> tuple[list[StepFrame], int]:
        """Take all out, in order, and the number up to which frames were sent: what is missing won't come."""
        frames, claimed = [self.frames[seq] for seq in sorted(self.frames)], self.claimed
        self.frames.clear()
        self.claimed, self.since = 0, None
        return frames, claimed
