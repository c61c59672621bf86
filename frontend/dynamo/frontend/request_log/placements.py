"""The latest choices of workers, kept only while somebody looks at them. No word of a prompt, an id or a caller."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Final

import msgspec

from dynamo.frontend.request_log.log import Placement

MOST_PLACEMENTS: Final = 32


class RecentPlacement(msgspec.Struct, frozen=True, gc=False):
    """A request went to a worker."""

    number: int
    """Counts them, so that who looks again knows which are new."""
    model: str
    mode: str
    reason: str
    """`pinned`, `session`, `again` (another worker has failed) or `chosen`."""
    placement: Placement


class RecentPlacements:
    """The last ones, while `watched`."""

    def __init__(self) -> None:
        self.watched = False
        self._numbers = itertools.count(1)
        self._latest: deque[RecentPlacement] = deque(maxlen=MOST_PLACEMENTS)

    def add(self, model: str, mode: str, reason: str, placement: Placement) -> None:
        """Keep one, and forget the oldest."""
        self._latest.append(RecentPlacement(next(self._numbers), model, mode, reason, placement))

    def latest(self) -> list[RecentPlacement]:
        """Return them, the oldest first."""
        return list(self._latest)

    def watch(self, watched: bool) -> None:
        """Begin, or end and forget all."""
        self.watched = watched
        self._latest.clear()
