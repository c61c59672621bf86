"""What caches probably hold, where workers don't say: the prompts that were sent there, for a while.

`Predicted` feeds an index with its router's own decisions and takes each block out again `seconds` after it was
last used. The original calls it the approximate indexer (`--no-kv-events`) and waits 120 s. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dynamo.llm.kv.index import KvIndex, Rank

SECONDS: Final = 120.0


class Predicted:
    """See the module. `now` must never go back."""

    def __init__(self, index: KvIndex, seconds: float = SECONDS) -> None:
        self._index, self._seconds = index, seconds
        self._until: dict[Rank, dict[int, float]] = {}
        """When each block goes; in the order in which they do."""

    def sent(self, rank: Rank, names: Sequence[int], now: float) -> None:
        """A prompt with these blocks was sent to `rank`."""
        until = self._until.setdefault(rank, {})
        for name in names:
            until.pop(name, None)
            until[name] = now + self._seconds
        self._index.store(rank, names)

    def drop(self, rank: Rank) -> None:
        """The rank is gone."""
        self._until.pop(rank, None)
        self._index.drop(rank)

    def expire(self, now: float) -> None:
        """Take out what has not been used for too long."""
        for rank, until in self._until.items():
            old = []
            for name, limit in until.items():
                if limit > now:
                    break
                old.append(name)
            for name in old:
                del until[name]
            self._index.remove(rank, old)
