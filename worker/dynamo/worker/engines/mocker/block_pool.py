"""The KV cache of the mock engine: active blocks with reference counts, inactive ones in LRU order.

A block that is whole and computed has a name, the hash of all tokens up to its end
(`dynamo.llm.kv.block_hash`), so equal prefixes share blocks. Capacity = active + nameless (held, not
computed yet) + inactive (cached, evictable) + free. Which names came and went is kept until somebody
asks: `take_changes`, once per engine step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dynamo.llm.kv.messages import KvStep


class BlockPool:
    """Hold the KV blocks of a simulated engine."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._active: dict[int, int] = {}
        self._inactive: dict[int, None] = {}
        self._nameless = 0
        self._stored: dict[int, None] = {}
        self._removed: dict[int, None] = {}

    @property
    def used(self) -> int:
        """Count the blocks that running sequences hold."""
        return len(self._active) + self._nameless

    @property
    def usage(self) -> float:
        return self.used / self.capacity

    @property
    def cached(self) -> int:
        """Count the blocks that nobody holds but that could be hit."""
        return len(self._inactive)

    def names(self) -> Iterator[int]:
        """Yield the hashes of all blocks that could be hit, held or not."""
        yield from self._active
        yield from self._inactive

    def match(self, names: Iterable[int]) -> int:
        """Count how many leading blocks are here."""
        count = 0
        for name in names:
            if name not in self._active and name not in self._inactive:
                break
            count += 1
        return count

    def take(self, names: Iterable[int]) -> None:
        """Hold blocks that `match` has just found."""
        for name in names:
            self._inactive.pop(name, None)
            self._active[name] = self._active.get(name, 0) + 1

    def take_nameless(self, count: int = 1) -> bool:
        """Hold blocks to fill, in place of the least recently used ones; False, and none, where there is no room."""
        if self.used + count > self.capacity:
            return False
        while self.used + len(self._inactive) + count > self.capacity:
            self._evict()
        self._nameless += count
        return True

    def promote(self, name: int) -> None:
        """Give a nameless block that is whole now its name; one that exists already is shared."""
        self._nameless -= 1
        if name in self._active:
            self._active[name] += 1
            return
        if name in self._inactive:
            del self._inactive[name]
        elif name in self._removed:
            del self._removed[name]
        else:
            self._stored[name] = None
        self._active[name] = 1

    def release(self, names: Sequence[int], nameless: int = 0) -> None:
        """Let go, the last block first, so that the beginnings of prompts live longest."""
        self._nameless -= nameless
        for name in reversed(names):
            left = self._active[name] - 1
            if left:
                self._active[name] = left
            else:
                del self._active[name]
                self._inactive[name] = None

    def forget(self) -> None:
        """Forget all that is cached and that nobody holds."""
        while self._inactive:
            self._evict()

    def take_changes(self) -> KvStep | None:
        """Return what has come and gone since this was called last; None for nothing. No hash is in both."""
        if not self._stored and not self._removed:
            return None
        step = KvStep(list(self._stored), list(self._removed))
        self._stored.clear()
        self._removed.clear()
        return step

    def _evict(self) -> None:
        name = next(iter(self._inactive))
        del self._inactive[name]
        if name in self._stored:
            del self._stored[name]
        else:
            self._removed[name] = None
