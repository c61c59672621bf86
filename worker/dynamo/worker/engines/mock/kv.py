"""The KV cache of the mock engine: active blocks with reference counts, inactive ones in LRU order.

A block is named by the hash of all tokens up to its end, so equal prefixes share blocks.
Capacity = active + partial (being filled, nameless) + inactive (cached, evictable) + free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def extend_hashes(parent: int, tokens: Sequence[int], block_size: int) -> list[int]:
    """Chained hashes of the full blocks of `tokens`, after a block whose hash is `parent` (0: none)."""
    hashes = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = hash((parent, *tokens[start : start + block_size]))
        hashes.append(parent)
    return hashes


class BlockPool:
    """See the module; `caching` False forgets blocks as soon as nobody uses them."""

    def __init__(self, capacity: int, *, caching: bool = True) -> None:
        self.capacity = capacity
        self._caching = caching
        self._active: dict[int, int] = {}
        self._inactive: dict[int, None] = {}
        self._partial = 0

    @property
    def used(self) -> int:
        """Blocks that running sequences hold."""
        return len(self._active) + self._partial

    @property
    def usage(self) -> float:
        return self.used / self.capacity

    @property
    def cached(self) -> int:
        """Blocks that nobody holds but that could be hit."""
        return len(self._inactive)

    def match(self, hashes: Iterable[int]) -> int:
        """How many leading blocks are here."""
        count = 0
        for block in hashes:
            if block not in self._active and block not in self._inactive:
                break
            count += 1
        return count

    def take(self, block: int) -> bool:
        """Hold a full block; False where there is no room."""
        if block in self._active:
            self._active[block] += 1
            return True
        if block in self._inactive:
            del self._inactive[block]
        elif not self._make_room():
            return False
        self._active[block] = 1
        return True

    def take_partial(self) -> bool:
        """Hold a block to fill; False where there is no room."""
        if not self._make_room():
            return False
        self._partial += 1
        return True

    def promote(self, block: int) -> None:
        """A partial block is full now: it gets its name; one that exists already is shared."""
        self._partial -= 1
        self._inactive.pop(block, None)
        self._active[block] = self._active.get(block, 0) + 1

    def release(self, blocks: Sequence[int], *, partial: bool) -> None:
        """Let go, the last block first, so that the beginnings of prompts live longest."""
        if partial:
            self._partial -= 1
        for block in reversed(blocks):
            left = self._active[block] - 1
            if left:
                self._active[block] = left
            else:
                del self._active[block]
                if self._caching:
                    self._inactive[block] = None

    def _make_room(self) -> bool:
        if self.used + len(self._inactive) < self.capacity:
            return True
        if not self._inactive:
            return False
        del self._inactive[next(iter(self._inactive))]
        return True
