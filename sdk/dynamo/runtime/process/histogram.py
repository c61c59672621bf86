"""A histogram as plain numbers: observed on hot paths, given to prometheus-client only when somebody reads it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts per bucket and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def buckets(self) -> list[tuple[str, float]]:
        """Return the buckets, cumulative, as the exposition wants them."""
        buckets, so_far = [], 0
        for bound, count in zip([*map(str, map(float, self.bounds)), "+Inf"], self.counts, strict=True):
            so_far += count
            buckets.append((bound, float(so_far)))
        return buckets
