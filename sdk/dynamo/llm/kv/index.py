"""Which worker holds which blocks: a flat map from a prefix's hash to a set of workers, the set one integer.

A sequence hash names its whole prefix, so no tree is needed: a worker's match is as long as
its bit is set in every mask from the prompt's first block on. Nothing here waits or does I/O;
who feeds it (events, snapshots) and who asks (the router) share one thread.

`Predicted` feeds an index where workers don't say: with its router's own decisions, and takes each block out again
`seconds` after it was last used. NVIDIA Dynamo calls it the approximate indexer (`--no-kv-events`) and waits 120 s."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

SWEEP: Final = 20_000
"""Blocks that one `sweep` looks at: about a millisecond."""
MOST_RANKS: Final = 1 << 10
"""Data-parallel ranks of one instance."""


class Rank(NamedTuple):
    """Rank with a KV cache of its own: one data-parallel rank of one worker."""

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
    """Map hashes of prefixes to the ranks that hold them.

    A rank gets a slot (a bit) at its first block and keeps it until `drop`.
    """

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
        """Count the blocks that are known, each once however many hold it."""
        return len(self._blocks)

    @property
    def ranks(self) -> Iterable[Rank]:
        """Return who is in the index."""
        return self._slots.keys()

    def limit(self, instance: int, blocks: int | None) -> None:
        """Limit the blocks that each rank of an instance may have, from its next slot on; None: `blocks_per_rank`."""
        if blocks is None:
            self._limits.pop(instance, None)
        else:
            self._limits[instance] = blocks

    # -- what is told by workers

    def store(self, rank: Rank, hashes: Iterable[int]) -> None:
        """Store blocks that are in the rank's cache now; what was there already stays."""
        slot = self._slots.get(rank) or self._new_slot(rank)
        bit, blocks, limit, added = slot.bit, self._blocks, slot.limit, 0
        before, after = 0, bit
        for block_hash in hashes:
            mask = blocks.get(block_hash, 0)
            if mask & bit:
                continue
            if limit is not None and slot.blocks + added >= limit:
                self.refused += 1
                continue
            if mask != before:  # neighbours have the same holders mostly, and share one integer then
                before, after = mask, mask | bit
            blocks[block_hash] = after
            added += 1
        slot.blocks += added

    def remove(self, rank: Rank, hashes: Iterable[int]) -> None:
        """Remove blocks that have left the rank's cache; unknown ones are ignored."""
        slot = self._slots.get(rank)
        if slot is None:
            return
        bit, blocks = slot.bit, self._blocks
        for block_hash in hashes:
            mask = blocks.get(block_hash, 0)
            if mask & bit:
                slot.blocks -= 1
                if mask == bit:
                    del blocks[block_hash]
                else:
                    blocks[block_hash] = mask ^ bit

    def drop(self, rank: Rank) -> None:
        """Drop a rank that is gone, or whose cache was cleared. At once for `find`; `sweep` then frees the memory."""
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
        for block_hash in part:
            mask = blocks.get(block_hash, 0)
            if mask & self._leaving:
                if rest := mask & ~self._leaving:
                    blocks[block_hash] = rest
                else:
                    del blocks[block_hash]
        if not self._to_sweep:
            self._free += _bits(self._leaving)
            self._leaving = 0
        return bool(self._leaving)

    # -- what the router asks

    def find(self, hashes: Iterable[int]) -> list[Match]:
        """Return who holds the longest beginnings of a prompt, longest first.

        Ranks without its first block aren't there.
        """
        get, held, depth = self._blocks.get, self._live, 0
        matches: list[Match] = []
        for block_hash in hashes:
            mask = get(block_hash, 0) & held
            if mask != held:
                if depth:
                    matches.append(Match(depth, held ^ mask))
                held = mask
                if not held:
                    break
            depth += 1
        if held and depth:
            matches.append(Match(depth, held))
        matches.reverse()
        return matches

    def ranks_in(self, mask: int) -> list[Rank]:
        """Return the ranks of a `Match`'s mask."""
        return [rank for number in _bits(mask) if (rank := self._ranks[number]) is not None]

    def depths(self, hashes: Iterable[int]) -> dict[Rank, int]:
        """Return `find` by rank: how many blocks of the prompt it holds from the start on."""
        return {rank: match.blocks for match in self.find(hashes) for rank in self.ranks_in(match.mask)}

    def overlaps(self, hashes: Iterable[int], ranks: Sequence[Rank]) -> list[int]:
        """Return `depths` of these ranks, in their order; 0 for those that hold nothing of it."""
        matches = self.find(hashes)
        if not matches:
            return [0] * len(ranks)
        slots = self._slots
        if len(matches) == 1:
            ((blocks, mask),) = matches
            return [blocks if (slot := slots.get(rank)) is not None and mask & slot.bit else 0 for rank in ranks]
        if len(matches) == 2:
            (more, deep), (less, flat) = matches
            return [
                0 if (slot := slots.get(rank)) is None
                else more if deep & (bit := slot.bit)
                else less if flat & bit
                else 0
                for rank in ranks
            ]  # fmt: skip
        known = {rank: match.blocks for match in matches for rank in self.ranks_in(match.mask)}
        return [known.get(rank, 0) for rank in ranks]

    def blocks_of(self, rank: Rank) -> Iterator[int]:
        """Yield all blocks of a rank, in no order; looks at the whole index."""
        slot = self._slots.get(rank)
        if slot is not None:
            yield from (block_hash for block_hash, mask in self._blocks.items() if mask & slot.bit)

    def count(self, rank: Rank) -> int:
        """Return how many blocks a rank holds."""
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
    """Return the numbers of the bits that are set, ascending."""
    text = bin(mask)[:1:-1]
    places, at = [], text.find("1")
    while at >= 0:
        places.append(at)
        at = text.find("1", at + 1)
    return places


SECONDS: Final = 120.0


class Predicted:
    """Feed an index with a router's own decisions; `now` must never go back."""

    def __init__(self, index: KvIndex, seconds: float = SECONDS) -> None:
        self._index, self._seconds = index, seconds
        self._until: dict[Rank, dict[int, float]] = {}
        """When each block goes; in the order in which they do."""

    def sent(self, rank: Rank, hashes: Sequence[int], now: float) -> None:
        """Note that a prompt with these blocks was sent to `rank`."""
        until = self._until.setdefault(rank, {})
        for block_hash in hashes:
            until.pop(block_hash, None)
            until[block_hash] = now + self._seconds
        self._index.store(rank, hashes)

    def drop(self, rank: Rank) -> None:
        """Drop a rank that is gone."""
        self._until.pop(rank, None)
        self._index.drop(rank)

    def expire(self, now: float) -> None:
        """Take out what has not been used for too long."""
        for rank, until in self._until.items():
            old = []
            for block_hash, limit in until.items():
                if limit > now:
                    break
                old.append(block_hash)
            for block_hash in old:
                del until[block_hash]
            self._index.remove(rank, old)
