"""The console's live view: one sampler for all viewers, which runs only while somebody looks.

A viewer is sent the latest snapshot, once a second, where it differs from the one before. One that doesn't take it
misses those between, and is cut off after a while; so a slow viewer costs one snapshot of memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from dynamo.frontend.console.admission import MOST_VIEWERS, displaced
from dynamo.frontend.errors import ApiError, overloaded
from dynamo.frontend.request_log.placements import RecentPlacements

log = logging.getLogger(__name__)
EVERY: Final = 1.0
QUIET: Final = 10.0
"""Seconds without news after which a viewer is told that the stream lives."""
STALLED: Final = 20.0
"""Seconds that a viewer may leave a snapshot untaken."""
LONGEST: Final = 3600.0
"""Seconds of one stream; the page begins another."""
_ALIVE: Final = b":\n\n"


class Viewer:
    """One stream of snapshots, with room for one."""

    def __init__(self, caller: bytes, abort: Callable[[], None], now: float) -> None:
        self.caller, self._abort, self.began = caller, abort, now
        self._latest: bytes | None = None
        self._offered, self._over = now, False
        self._news = asyncio.Event()

    def offer(self, piece: bytes, now: float) -> None:
        """Put a snapshot in place of one that wasn't taken."""
        if self._latest is None:
            self._offered = now
        self._latest = piece
        self._news.set()

    def is_stalled(self, now: float) -> bool:
        """Tell whether it has taken nothing for too long."""
        return self._latest is not None and now - self._offered > STALLED

    def end(self) -> None:
        """End its stream with what it was offered."""
        self._over = True
        self._news.set()

    def cut(self) -> None:
        """Cut its connection: it doesn't read."""
        self.end()
        self._abort()

    async def take(self) -> bytes | None:
        """Wait for the next snapshot; None: there is no other. The sampler wakes it every `QUIET` seconds at least."""
        await self._news.wait()
        self._news.clear()
        piece, self._latest = self._latest, None
        return None if self._over else piece


class ConsoleFeed:
    """Makes snapshots for the viewers that there are."""

    def __init__(self, sample: Callable[[], bytes], recent: RecentPlacements) -> None:
        self._sample, self._recent = sample, recent
        self._viewers: list[Viewer] = []
        self._timer: asyncio.TimerHandle | None = None
        self._latest, self._told, self._closed = b"", 0.0, False

    def __len__(self) -> int:
        """Return how many look."""
        return len(self._viewers)

    def enter(self, caller: bytes, abort: Callable[[], None]) -> Viewer:
        """Let a viewer in; raises the `ApiError` for one too many."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise overloaded("this frontend is leaving; try again in a moment.", "shutdown")
        if len(self._viewers) >= MOST_VIEWERS:
            self._make_room(caller)
        viewer = Viewer(caller, abort, loop.time())
        self._viewers.append(viewer)
        if self._timer is None:
            self._recent.watch(True)
            self._latest = b""
            self._look()
        else:
            viewer.offer(self._latest, loop.time())
        return viewer

    async def events(self, viewer: Viewer) -> AsyncIterator[bytes]:
        """Yield what a viewer is sent, until it leaves or its time is over."""
        try:
            while (piece := await viewer.take()) is not None:
                yield piece
        finally:
            self._leave(viewer)

    def close(self) -> None:
        """Let all viewers go, and take no other."""
        self._closed = True
        for viewer in self._viewers:
            viewer.end()

    def _make_room(self, caller: bytes) -> None:
        index = displaced([viewer.caller for viewer in self._viewers], caller)
        if index is None:
            raise too_many()
        viewer = self._viewers[index]
        viewer.end()
        self._leave(viewer)

    def _leave(self, viewer: Viewer) -> None:
        if viewer in self._viewers:
            self._viewers.remove(viewer)
        if not self._viewers and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._recent.watch(False)

    def _look(self) -> None:
        """Sample, tell all viewers what is new, and look again."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = loop.call_later(EVERY, self._look)
        try:
            piece = self._sample()
        except Exception:  # a mistake of ours: the page shows what it has, requests go on
            log.exception("the console's workers can't be sampled")
            piece = self._latest
        if piece == self._latest:
            piece = b"" if now - self._told < QUIET else _ALIVE
        else:
            self._latest = piece
        if piece:
            self._told = now
        for viewer in [*self._viewers]:
            self._tell(viewer, piece, now)

    def _tell(self, viewer: Viewer, piece: bytes, now: float) -> None:
        if viewer.is_stalled(now):  # also one whose stream never began
            viewer.cut()
            self._leave(viewer)
        elif now - viewer.began > LONGEST:
            viewer.end()
        elif piece:
            viewer.offer(piece, now)


def too_many() -> ApiError:
    """Return 503: so many look already."""
    text = f"{MOST_VIEWERS} browsers watch this frontend's console already; close one of them"
    return overloaded(f"{text}, or try again in a moment.", "viewers")
