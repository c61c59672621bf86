"""Who may look at the console at once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

MOST_VIEWERS: Final = 64


def displaced(callers: Sequence[bytes], newcomer: bytes) -> int | None:
    """Return which viewer goes for a newcomer; the oldest comes first. None: all have as few as the newcomer would.

    So nobody locks others out: whoever has most gives one of theirs.
    """
    counts = Counter(callers)
    busiest, most = counts.most_common(1)[0]
    return callers.index(busiest) if most > counts[newcomer] + 1 else None
