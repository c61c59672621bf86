"""Which worker holds which blocks: a flat map from a prefix's hash to a set of workers, the set one integer.

A sequence hash names its whole prefix, so no tree is needed: a worker's match is as long as
its bit is set in every mask from the prompt's first block on. Nothing here waits or does I/O;
who feeds it (events, snapshots) and who asks (the router) share one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

SWEEP: Final = 20_000
"""Blocks that one `sweep` looks at: about a millisecond."""
MOST_RANKS: Final = 1 << 10
"""Data-parallel ranks of one instance."""


class Rank(NamedTuple):
    """Who has a KV cache of its own: one data-parallel rank of one worker."""

    instance: int
    dp_rank: int = 0


class Match(NamedTuple):
    """Workers whose longest prefix of a prompt is `blocks` long; `mask` has the bits of their slots."""

    blocks: int
    mask: int


@dataclass(slots=True)
class _Slot:
    number: int
    bit: int
    """Every block that it holds alone refers to this one integer."""
    limit: int | None
    blocks: int = 0


class KvIndex:
    """See the module. A rank gets a slot (a bit) at its first block and keeps it until `drop`."""

    __slots__ = (
        "_blocks",
        "_free",
        "_leaving",
        "_limit",
        "_limits",
        "_live",
        "_ranks",
        "_slots",
        "_to_sweep",
        "refused",
    )

    def __init__(self, blocks_per_rank: int | None = None) -> None:
        self._limit = blocks_per_rank
        self._limits: dict[int, int] = {}
        self._blocks: dict[int, int] = {}
        self._slots: dict[Rank, _Slot] = {}
        self._ranks: list[Rank | None] = []
        self._live = 0
        """The bits of ranks that were not dropped."""
        self._leaving = 0
        """Bits that blocks still have though their rank is gone."""
        self._to_sweep: list[int] = []
        self._free: list[int] = []
        self.refused = 0
        """Blocks that were not taken since their rank had as many as it may have already."""

    def __len__(self) -> int:
        """Blocks that are known, each counted once however many hold it."""
        return len(self._blocks)

    @property
    def ranks(self) -> Iterable[Rank]:
        """Who is in it."""
        return self._slots.keys()

    def limit(self, instance: int, blocks: int | None) -> None:
        """How many blocks each rank of an instance may have, from its next slot on; None: `blocks_per_rank`."""
        if blocks is None:
            self._limits.pop(instance, None)
        else:
            self._limits[instance] = blocks

    # -- what is told by workers

    def store(self, rank: Rank, hashes: Iterable[int]) -> None:
        """These blocks are in the rank's cache now; what was there already stays."""
        slot = self._slots.get(rank) or self._new_slot(rank)
        bit, blocks, limit, added = slot.bit, self._blocks, slot.limit, 0
        before, after = 0, bit
        for name in hashes:
            mask = blocks.get(name, 0)
            if mask & bit:
                continue
            if limit is not None and slot.blocks + added >= limit:
                self.refused += 1
                continue
            if mask != before:  # neighbours have the same holders mostly, and share one integer then
                before, after = mask, mask | bit
            blocks[name] = after
            added += 1
        slot.blocks += added

    def remove(self, rank: Rank, hashes: Iterable[int]) -> None:
        """These blocks have left the rank's cache; unknown ones are ignored."""
        slot = self._slots.get(rank)
        if slot is None:
            return
        bit, blocks = slot.bit, self._blocks
        for name in hashes:
            mask = blocks.get(name, 0)
            if mask & bit:
                slot.blocks -= 1
                if mask == bit:
                    del blocks[name]
                else:
                    blocks[name] = mask ^ bit

    def drop(self, rank: Rank) -> None:
        """The rank is gone, or its cache was cleared. At once for `find`; `sweep` then frees the memory."""
        slot = self._slots.pop(rank, None)
        if slot is None:
            return
        self._ranks[slot.number] = None
        self._live ^= slot.bit
        if slot.blocks:
            self._leaving |= slot.bit
            self._to_sweep = []  # what was swept for others must be looked at again for this one
        else:
            self._free.append(slot.number)

    def sweep(self, count: int = SWEEP) -> bool:
        """Take bits of dropped ranks off up to `count` blocks; False when there is nothing left to do."""
        if not self._leaving:
            return False
        if not self._to_sweep:
            self._to_sweep = list(self._blocks)
        part, blocks = self._to_sweep[-count:], self._blocks
        del self._to_sweep[-count:]
        for name in part:
            mask = blocks.get(name, 0)
            if mask & self._leaving:
                if rest := mask & ~self._leaving:
                    blocks[name] = rest
                else:
                    del blocks[name]
        if not self._to_sweep:
            self._free += _bits(self._leaving)
            self._leaving = 0
        return bool(self._leaving)

    # -- what the router asks

    def find(self, hashes: Iterable[int]) -> list[Match]:
        """Who holds the longest beginnings of a prompt, longest first; ranks without its first block aren't there."""
        get, held, depth = self._blocks.get, self._live, 0
        found: list[Match] = []
        for name in hashes:
            mask = get(name, 0) & held
            if mask != held:
                if depth:
                    found.append(Match(depth, held ^ mask))
                held = mask
                if not held:
                    break
            depth += 1
        if held and depth:
            found.append(Match(depth, held))
        found.reverse()
        return found

    def ranks_in(self, mask: int) -> list[Rank]:
        """The ranks of a `Match`'s mask."""
        return [rank for number in _bits(mask) if (rank := self._ranks[number]) is not None]

    def depths(self, hashes: Iterable[int]) -> dict[Rank, int]:
        """`find` by rank: how many blocks of the prompt it holds from the start on."""
        return {rank: match.blocks for match in self.find(hashes) for rank in self.ranks_in(match.mask)}

    def overlaps(self, hashes: Iterable[int], ranks: Sequence[Rank]) -> list[int]:
        """`depths` of these ranks, in their order; 0 for those that hold nothing of it."""
        found = self.find(hashes)
        if not found:
            return [0] * len(ranks)
        slots = self._slots
        if len(found) == 1:
            ((blocks, mask),) = found
            return [blocks if (slot := slots.get(rank)) is not None and mask & slot.bit else 0 for rank in ranks]
        if len(found) == 2:
            (more, deep), (less, flat) = found
            return [
                0 if (slot := slots.get(rank)) is None
                else more if deep & (bit := slot.bit)
                else less if flat & bit
                else 0
                for rank in ranks
            ]  # fmt: skip
        known = {rank: match.blocks for match in found for rank in self.ranks_in(match.mask)}
        return [known.get(rank, 0) for rank in ranks]

    def blocks_of(self, rank: Rank) -> Iterator[int]:
        """All blocks of a rank, in no order; looks at the whole index."""
        slot = self._slots.get(rank)
        if slot is not None:
            yield from (name for name, mask in self._blocks.items() if mask & slot.bit)

    def count(self, rank: Rank) -> int:
        """How many blocks a rank holds."""
        slot = self._slots.get(rank)
        return 0 if slot is None else slot.blocks

    def _new_slot(self, rank: Rank) -> _Slot:
        if self._free:
            number = self._free.pop()
            self._ranks[number] = rank
        else:
            number = len(self._ranks)
            self._ranks.append(rank)
        slot = self._slots[rank] = _Slot(number, 1 << number, self._limits.get(rank.instance, self._limit))
        self._live |= slot.bit
        return slot


def _bits(mask: int) -> list[int]:
    """The numbers of the bits that are set, ascending."""
    text = bin(mask)[:1:-1]
    found, at = [], text.find("1")
    while at >= 0:
        found.append(at)
        at = text.find("1", at + 1)
    return found
