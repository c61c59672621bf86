"""From an engine's hashes of KV blocks to ours: what one rank's cache holds, in the engine's words and in ours. Pure.

Engines name a block by a hash of their own (an integer or bytes) and say tokens and parent only when they store it.
`EngineBlocks` keeps what was said, so that a child finds its parent's hash and a removal the hash that goes. What has
changed since the last `take` is one `KvStep`, net.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from dynamo.llm.kv.block_hash import block_hashes, seed_of, sequence_hashes
from dynamo.llm.kv.messages import KvStep

EngineHash: TypeAlias = int | bytes
_WORD: Final = (1 << 64) - 1


class Stored(NamedTuple):
    """Blocks that follow each other, and that the engine has now."""

    hashes: Sequence[EngineHash]
    parent: EngineHash | None
    """The block before the first of them; None: they begin a sequence."""
    tokens: Sequence[int]
    block_size: int
    lora_name: str | None = None
    salt: str | None = None
    """The request's cache namespace. Only read where a sequence begins: what follows inherits it."""
    media: Sequence[Sequence[int]] = ()
    """Per block what else its content is: hashes (64 bits) of images and of whatever we have no word for."""
    eagle: bool = False
    group: int | None = None
    """Of the engine's KV cache groups, where a model has several kinds of attention."""
    kind: str | None = None
    """The attention of that group: `full_attention`, `sliding_window`, ...; None where the engine has no groups."""


class Removed(NamedTuple):
    """Blocks that the engine no longer has."""

    hashes: Sequence[EngineHash]
    group: int | None = None


class Cleared(NamedTuple):
    """The engine has nothing cached any more."""


Event: TypeAlias = Stored | Removed | Cleared


class _Block:
    """One block of the engine."""

    __slots__ = ("copies", "era", "seed", "sequence_hash")

    def __init__(self, sequence_hash: int, seed: int, era: int) -> None:
        self.sequence_hash, self.seed, self.era = sequence_hash, seed, era
        self.copies = 1
        """vLLM computes the same block twice for requests that run side by side, and says so for each copy."""


class EngineBlocks:
    """Keep what one rank caches; `capacity` is how many blocks it has, where that is known."""

    def __init__(self, block_size: int, capacity: int | None = None) -> None:
        self.block_size, self._capacity = block_size, capacity
        self._blocks: dict[EngineHash, _Block] = {}
        self._held: dict[int, int] = {}
        """Our hashes, each with how many of the engine's blocks have it."""
        self._added: dict[int, None] = {}
        self._gone: dict[int, None] = {}
        self._cleared = False
        self._era = 0
        self.orphans = 0
        """Blocks that have no hash of ours since their parent was never heard of."""
        self.misfits = 0
        """Blocks of another size than ours; they have no hash either."""

    def __len__(self) -> int:
        """Count the blocks of the engine."""
        return len(self._blocks)

    def hashes(self) -> set[int]:
        """Return what the rank caches, in our words."""
        return set(self._held)

    def apply(self, event: Event) -> None:
        """Apply one event. Raises `ValueError` for what isn't a token id."""
        match event:
            case Stored():
                self._store(event)
            case Removed():
                for engine_hash in event.hashes:
                    self._remove(_plain(engine_hash))
            case Cleared():
                self.clear()

    def clear(self) -> None:
        """Clear it: the cache is empty."""
        self._blocks.clear()
        self._held.clear()
        self._added.clear()
        self._gone.clear()
        self._cleared = True

    def doubt(self) -> None:
        """Doubt what is known, since something was missed.

        It stays, since most of it is still there, but counts as old from now on: a copy more or less is not believed,
        and it goes first where there is more than the rank can hold.
        """
        self._era += 1

    def take(self, dp_rank: int = 0) -> KvStep | None:
        """Return what has changed since the last time; None: nothing."""
        if self._capacity is not None and len(self._held) > self._capacity:
            self._forget_old(len(self._held) - self._capacity)
        if not (self._added or self._gone or self._cleared):
            return None
        step = KvStep(list(self._added), list(self._gone), dp_rank, self._cleared)
        self._added, self._gone, self._cleared = {}, {}, False
        return step

    def _store(self, event: Stored) -> None:
        count = len(event.hashes)
        if event.block_size != self.block_size:
            self.misfits += count
            return
        parent = None if event.parent is None else self._blocks.get(_plain(event.parent))
        if parent is None and event.parent is not None:
            self.orphans += count
            return
        seed = seed_of(event.lora_name, event.salt) if parent is None else parent.seed
        local = block_hashes(event.tokens, self.block_size, seed=seed, media=event.media, eagle=event.eagle)
        hashes = sequence_hashes(local, None if parent is None else parent.sequence_hash)
        if len(hashes) != count:  # which of them is which can't be said
            self.misfits += count
            return
        for engine_hash, sequence_hash in zip(event.hashes, hashes, strict=True):
            self._add(_plain(engine_hash), sequence_hash, seed)

    def _add(self, engine_hash: EngineHash, sequence_hash: int, seed: int) -> None:
        block = self._blocks.get(engine_hash)
        # Engines that number blocks by their place use a hash again.
        if block is not None and block.sequence_hash != sequence_hash:
            self._release(self._blocks.pop(engine_hash).sequence_hash)
            block = None
        if block is None:
            self._blocks[engine_hash] = _Block(sequence_hash, seed, self._era)
            self._hold(sequence_hash)
        elif block.era != self._era:
            block.era, block.copies = self._era, 1
        else:
            block.copies += 1

    def _remove(self, engine_hash: EngineHash) -> None:
        block = self._blocks.get(engine_hash)
        if block is None:
            return
        block.copies -= 1
        if block.copies <= 0 or block.era != self._era:
            del self._blocks[engine_hash]
            self._release(block.sequence_hash)

    def _hold(self, sequence_hash: int) -> None:
        held = self._held.get(sequence_hash, 0)
        self._held[sequence_hash] = held + 1
        if not held:
            if sequence_hash in self._gone:
                del self._gone[sequence_hash]
            else:
                self._added[sequence_hash] = None

    def _release(self, sequence_hash: int) -> None:
        left = self._held[sequence_hash] - 1
        if left:
            self._held[sequence_hash] = left
            return
        del self._held[sequence_hash]
        if sequence_hash in self._added:
            del self._added[sequence_hash]
        else:
            self._gone[sequence_hash] = None

    def _forget_old(self, count: int) -> None:
        """Forget the oldest first, of what was heard of before something was missed."""
        old = [engine_hash for engine_hash, block in self._blocks.items() if block.era != self._era]
        for engine_hash in old[:count]:
            self._release(self._blocks.pop(engine_hash).sequence_hash)


def steps_of(events: Iterable[Event], blocks: EngineBlocks, dp_rank: int = 0) -> list[KvStep]:
    """Return what these events have done to the rank, as at most one step."""
    for event in events:
        blocks.apply(event)
    step = blocks.take(dp_rank)
    return [] if step is None else [step]


def _plain(engine_hash: EngineHash) -> EngineHash:
    """Return integers as 64 bits without a sign: engines and publishers don't agree on one."""
    return engine_hash & _WORD if isinstance(engine_hash, int) else engine_hash
