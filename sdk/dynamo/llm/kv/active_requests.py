"""What runs where: prefill still to do and blocks in use on each rank, by the requests that were sent there.

An entry lives as long as its request: whoever adds it must `free` it, however the request ends. Blocks are
counted once per rank, however many requests share them, since the engine keeps them once. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dynamo.llm.kv.index import KvIndex, Rank


class Load(NamedTuple):
    """One rank's requests, summed up."""

    prefill_tokens: int = 0
    blocks: int = 0
    requests: int = 0


IDLE = Load()


class Loads(NamedTuple):
    """Loads of several ranks, for one prompt."""

    prefill_tokens: list[int]
    blocks: list[int]
    """Less those that the prompt would share."""
    requests: list[int]
    shared: list[int] | None
    """How much of the prompt's beginning is in use there anyway; None: nothing anywhere."""


@dataclass(slots=True)
class _Request:
    rank: Rank
    hashes: Sequence[int]
    to_prefill: int
    grown: int = 0
    """Blocks of its output, which nobody shares."""


@dataclass(slots=True, eq=False)
class _Busy:
    prefill_tokens: int = 0
    grown: int = 0
    requests: int = 0
    users: dict[int, int] = field(default_factory=dict)
    """How many requests use a block."""
    blocks: int = 0
    """All of them, the grown ones too; kept here since every decision asks for it."""

    def count(self) -> None:
        self.blocks = len(self.users) + self.grown


_NOTHING = _Busy()
"""Of ranks without requests."""


class Activity:
    """Count running requests by rank; `request` is any id that is unique while the request runs."""

    def __init__(self) -> None:
        self._requests: dict[str, _Request] = {}
        self._ranks: dict[Rank, _Busy] = {}
        self._used = KvIndex()

    def __len__(self) -> int:
        """Count the requests that run."""
        return len(self._requests)

    def add(self, request: str, rank: Rank, hashes: Sequence[int], to_prefill: int) -> None:
        """Note that it was sent to `rank`.

        The hashes of its prompt's whole blocks, and how many tokens aren't cached there.
        """
        self.free(request)
        busy = self._ranks.setdefault(rank, _Busy())
        fresh = [block_hash for block_hash in hashes if busy.users.setdefault(block_hash, 0) == 0]
        for block_hash in hashes:
            busy.users[block_hash] += 1
        self._used.store(rank, fresh)
        busy.count()
        busy.prefill_tokens += to_prefill
        busy.requests += 1
        self._requests[request] = _Request(rank, hashes, to_prefill)

    def prefilled(self, request: str) -> None:
        """Note that its first token came."""
        entry = self._requests.get(request)
        if entry is not None:
            self._prefilled(entry)

    def grew(self, request: str, blocks: int = 1) -> None:
        """Note that its output has filled another block, or so many."""
        entry = self._requests.get(request)
        if entry is not None:
            entry.grown += blocks
            busy = self._ranks[entry.rank]
            busy.grown += blocks
            busy.count()

    def free(self, request: str) -> None:
        """Note that it ended; also where that was known already."""
        entry = self._requests.pop(request, None)
        if entry is None:
            return
        self._prefilled(entry)
        busy = self._ranks[entry.rank]
        busy.requests -= 1
        busy.grown -= entry.grown
        self._used.remove(entry.rank, _released(busy, entry.hashes))
        busy.count()
        if not busy.requests:
            self._leave(entry.rank)

    def drop(self, rank: Rank) -> list[str]:
        """Drop a rank that is gone; returns its requests, which are no longer counted."""
        requests = [request for request, entry in self._requests.items() if entry.rank == rank]
        for request in requests:
            self.free(request)
        return requests

    def ranks_of(self, instance: int) -> list[Rank]:
        """Return the instance's ranks that have requests."""
        return [rank for rank in self._ranks if rank.instance == instance]

    def load(self, rank: Rank) -> Load:
        """Return what a rank has to do."""
        busy = self._ranks.get(rank)
        if busy is None:
            return IDLE
        return Load(busy.prefill_tokens, busy.blocks, busy.requests)

    def loads(self, ranks: Sequence[Rank], hashes: Sequence[int]) -> Loads:
        """Return the load of each rank, in their order."""
        get = self._ranks.get
        loads = [get(rank) or _NOTHING for rank in ranks]
        blocks, depths = [busy.blocks for busy in loads], None
        if shared := self.shared(hashes):
            known = {self._ranks[rank]: depth for rank, depth in shared.items()}
            depths = [known.get(busy, 0) for busy in loads]
            blocks = [count - depth for count, depth in zip(blocks, depths, strict=True)]
        return Loads([busy.prefill_tokens for busy in loads], blocks, [busy.requests for busy in loads], depths)

    def shared(self, hashes: Sequence[int]) -> dict[Rank, int]:
        """Return how many of these blocks a rank has in use anyway; ranks with none aren't there."""
        return self._used.depths(hashes)

    def _prefilled(self, entry: _Request) -> None:
        self._ranks[entry.rank].prefill_tokens -= entry.to_prefill
        entry.to_prefill = 0

    def _leave(self, rank: Rank) -> None:
        del self._ranks[rank]
        self._used.drop(rank)


def _released(busy: _Busy, hashes: Sequence[int]) -> list[int]:
    """Return blocks that nobody uses any more, now that one user of each of `hashes` is gone."""
    freed = []
    for block_hash in hashes:
        busy.users[block_hash] -= 1
        if not busy.users[block_hash]:
            del busy.users[block_hash]
            freed.append(block_hash)
    return freed
