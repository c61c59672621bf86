"""Whether a watch tells what a LIST shows: `Lag`. Pure; `run` asks it after each sweep and for `/healthz`.

kopf's own liveness stays green while its watches are dead, and bookmarks never reach its
handlers. But a version that the sweep has listed must be heard of before long.
"""

from __future__ import annotations

from collections.abc import Mapping

from dynamo.operator.dirty import Key

Versions = Mapping[Key, int]
"""resourceVersions; a server's only grow, also from an object to its namesake."""


class Lag:
    """Remembers for each pipeline the first listed version that hasn't been heard of, and since when."""

    def __init__(self) -> None:
        self._missed: dict[Key, tuple[int, float]] = {}

    def listed(self, found: Versions, heard: Versions, now: float) -> None:
        """After a LIST. What was heard since the last one, or is gone, is forgotten."""
        before = {key: one for key, one in self._missed.items() if heard.get(key, 0) < one[0]}
        self._missed = {key: before.get(key, (at, now)) for key, at in found.items() if heard.get(key, 0) < at}

    def late(self, heard: Versions, now: float) -> dict[Key, float]:
        """Seconds since the LIST, for each that hasn't been heard of by now."""
        return {key: now - since for key, (at, since) in self._missed.items() if heard.get(key, 0) < at}
