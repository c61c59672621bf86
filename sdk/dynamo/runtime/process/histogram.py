"""A histogram as plain numbers: observed on hot paths, given to prometheus-client only when somebody reads it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


class Histogram:
    """Counts per bucket and the sum.

    `observe` counts a value at once. `record` puts it into a buffer, which is cheaper; `flush` counts the buffer, and
    the owner calls it in time.
    """

    __slots__ = ("_buffer", "_counts", "_total", "bounds", "record")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self._counts, self._total = bounds, [0] * (len(bounds) + 1), 0.0
        self._buffer: list[float] = []
        self.record = self._buffer.append
        """Take one value, to be counted by `flush`."""

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self.bounds, value)] += count
        self._total += value * count

    @property
    def pending(self) -> int:
        """Return how many values are recorded, and not counted yet."""
        return len(self._buffer)

    def flush(self) -> None:
        """Count what was recorded."""
        values = self._buffer
        if not values:
            return
        values.sort()  # one search a bucket is then enough
        self._total += sum(values)
        below = 0
        for number, bound in enumerate(self.bounds):
            upto = bisect_right(values, bound, below)
            self._counts[number] += upto - below
            below = upto
        self._counts[-1] += len(values) - below
        values.clear()

    @property
    def total(self) -> float:
        """Return the sum of all values."""
        self.flush()
        return self._total

    def buckets(self) -> list[tuple[str, float]]:
        """Return the buckets, cumulative, as the exposition wants them."""
        self.flush()
        buckets, so_far = [], 0
        for bound, count in zip([*map(str, map(float, self.bounds)), "+Inf"], self._counts, strict=True):
            so_far += count
            buckets.append((bound, float(so_far)))
        return buckets
