"""`RadixTree`, NVIDIA Dynamo's index under its own name: fed with its JSON events, asked with hashes of blocks.

Underneath is the flat index (`index.py`): an event's parents and local hashes become sequence hashes here.
What it answers was read off ai-dynamo 1.6.1 (tests/llm/kv_router/test_radix_tree.py). Pure; for one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from dynamo.llm.kv.block_hash import sequence_hashes
from dynamo.llm.kv.index import KvIndex, Rank

_HASH: Final = 1 << 64


class OverlapScores:
    """Scores: how many blocks of a prompt each worker holds from its beginning on."""

    __slots__ = ("_scores",)

    def __init__(self, scores: Mapping[tuple[int, int], int]) -> None:
        self._scores = scores

    @property
    def scores(self) -> dict[tuple[int, int], int]:
        """Return the scores by `(worker_id, dp_rank)`; who doesn't hold the first block isn't there."""
        return dict(self._scores)

    @property
    def frequencies(self) -> list[int]:
        """Empty, as NVIDIA Dynamo's is unless blocks expire: nothing counts accesses."""
        return []

    def __repr__(self) -> str:
        return f"OverlapScores(scores={self._scores!r})"


class _NewBlock(msgspec.Struct, gc=False):
    block_hash: int
    tokens_hash: int


class _Stored(msgspec.Struct):
    blocks: list[_NewBlock]
    parent_hash: int | None = None


class _Removed(msgspec.Struct):
    block_hashes: list[int]


class _Changes(msgspec.Struct):
    stored: _Stored | None = None
    removed: _Removed | None = None


class _CacheEvent(msgspec.Struct):
    event_id: int
    data: _Changes | str
    dp_rank: int = 0


_decode: Final = msgspec.json.Decoder(_CacheEvent).decode


class _Edge(NamedTuple):
    """A block of one rank."""

    sequence_hash: int
    tokens_hash: int
    parent: int | None


class _Held:
    """One rank's blocks by the engine's hashes, and how many of them have one hash of ours."""

    def __init__(self) -> None:
        self.edges: dict[int, _Edge] = {}
        self.hashes: Counter[int] = Counter()


class RadixTree:
    """Index blocks by NVIDIA Dynamo's JSON events, for questions with hashes of blocks; for one thread.

    Its answers are those of ai-dynamo 1.6.1. Of `expiration_duration_secs` only None is taken.
    """

    def __init__(self, expiration_duration_secs: float | None = None) -> None:
        if expiration_duration_secs is not None:
            raise ValueError("RadixTree can't expire blocks: expiration_duration_secs must be None")
        self._index = KvIndex()
        self._held: dict[Rank, _Held] = {}

    def find_matches(self, sequence: Sequence[int], early_exit: bool = False) -> OverlapScores:
        """Find the longest beginnings of a prompt, by its blocks' local hashes (`compute_block_hash_for_seq`).

        `early_exit` changes nothing, neither here nor in NVIDIA Dynamo's answers.
        """
        depths = self._index.depths(sequence_hashes(sequence))
        return OverlapScores(MappingProxyType({(rank.instance, rank.dp_rank): depth for rank, depth in depths.items()}))

    def apply_event(self, worker_id: int, kv_cache_event_bytes: bytes) -> None:
        """Take in one `KvCacheEvent` (JSON).

        Raises `ValueError` for one that can't be read, `RuntimeError` where its parent or a block to remove is unknown.
        """
        event = _read(worker_id, kv_cache_event_bytes)
        rank = Rank(worker_id, event.dp_rank)
        if isinstance(event.data, str):
            self._forget(rank)
        elif event.data.stored is not None:
            self._store(rank, event.data.stored)
        elif event.data.removed is not None:
            self._remove(rank, event.data.removed.block_hashes)

    def remove_worker(self, worker_id: int) -> None:
        """Forget all ranks of a worker; fine where it is unknown."""
        for rank in [rank for rank in self._held if rank.instance == worker_id]:
            self._forget(rank)

    def clear_all_blocks(self, worker_id: int) -> None:
        """Do the same: what a worker holds is all that is known of it."""
        self.remove_worker(worker_id)

    def dump_tree_as_events(self) -> list[str]:
        """Return the events (JSON, with `worker_id`) that would make a tree that answers as this one does."""
        return [
            msgspec.json.encode(_router_event(number, rank, parent, run)).decode()
            for number, (rank, parent, run) in enumerate(self._runs())
        ]

    def _store(self, rank: Rank, stored: _Stored) -> None:
        held = self._held.setdefault(rank, _Held())
        parent = None if stored.parent_hash is None else held.edges.get(stored.parent_hash)
        if parent is None and stored.parent_hash is not None:
            raise RuntimeError("Failed to apply event: Failed to find parent block")
        hashes = sequence_hashes(
            (block.tokens_hash for block in stored.blocks), None if parent is None else parent.sequence_hash
        )
        before = stored.parent_hash
        for block, sequence_hash in zip(stored.blocks, hashes, strict=True):
            old = held.edges.get(block.block_hash)
            held.edges[block.block_hash] = _Edge(sequence_hash, block.tokens_hash, before)
            held.hashes[sequence_hash] += 1
            if old is not None:
                self._release(rank, held, old.sequence_hash)
            before = block.block_hash
        self._index.store(rank, hashes)

    def _remove(self, rank: Rank, block_hashes: Sequence[int]) -> None:
        held, missing = self._held.get(rank, _Held()), False
        for block_hash in block_hashes:
            edge = held.edges.pop(block_hash, None)
            if edge is None:
                missing = True
            else:
                self._release(rank, held, edge.sequence_hash)
        if missing:
            raise RuntimeError("Failed to apply event: Failed to find block")

    def _release(self, rank: Rank, held: _Held, sequence_hash: int) -> None:
        held.hashes[sequence_hash] -= 1
        if not held.hashes[sequence_hash]:
            del held.hashes[sequence_hash]
            self._index.remove(rank, (sequence_hash,))

    def _forget(self, rank: Rank) -> None:
        self._held.pop(rank, None)
        self._index.drop(rank)
        while self._index.sweep():
            pass

    def _runs(self) -> Iterator[tuple[Rank, int | None, list[tuple[int, int]]]]:
        """Yield each rank's blocks in chains without a fork, parents first.

        What no longer hangs together is left out.
        """
        for rank, held in self._held.items():
            children: dict[int | None, list[int]] = {}
            for block_hash, edge in held.edges.items():
                children.setdefault(edge.parent, []).append(block_hash)
            heads: list[tuple[int | None, int]] = [(None, block_hash) for block_hash in children.get(None, [])]
            while heads:
                parent, at = heads.pop()
                run = [at]
                while len(following := children.get(run[-1], [])) == 1:
                    run.append(following[0])
                heads += [(run[-1], block_hash) for block_hash in following]
                yield rank, parent, [(block_hash, held.edges[block_hash].tokens_hash) for block_hash in run]


def _read(worker_id: int, data: bytes) -> _CacheEvent:
    try:
        event = _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"Failed to deserialize KvCacheEvent: {error}") from error
    if isinstance(event.data, str):
        if event.data != "cleared":
            raise ValueError(f"Failed to deserialize KvCacheEvent: unknown variant `{event.data}`")
        numbers: list[int] = []
    elif event.data.stored is not None:
        stored = event.data.stored
        numbers = [number for block in stored.blocks for number in (block.block_hash, block.tokens_hash)]
        numbers += [] if stored.parent_hash is None else [stored.parent_hash]
    elif event.data.removed is not None:
        numbers = event.data.removed.block_hashes
    else:
        raise ValueError("Failed to deserialize KvCacheEvent: it has neither `stored`, `removed` nor `cleared`")
    if not all(0 <= number < _HASH for number in (worker_id, event.dp_rank, *numbers)):
        raise ValueError("Failed to deserialize KvCacheEvent: hashes and ids are 64 bits without a sign")
    return event


def _router_event(number: int, rank: Rank, parent: int | None, run: list[tuple[int, int]]) -> dict[str, object]:
    blocks = [
        {"block_hash": block_hash, "tokens_hash": tokens_hash, "mm_extra_info": None} for block_hash, tokens_hash in run
    ]
    stored = {"parent_hash": parent, "start_position": None, "blocks": blocks}
    event = {"event_id": number, "data": {"stored": stored}, "dp_rank": rank.dp_rank}
    return {"worker_id": rank.instance, "storage_tier": "device", "residency_domain": "worker", "event": event}
