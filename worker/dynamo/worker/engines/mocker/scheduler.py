"""Continuous batching as vLLM does it: admission, chunked prefill, decoding, preemption. Pure.

One engine step is `plan()` (who is admitted, how many tokens are computed) and then, when
its simulated time has passed, `advance(sequence)` for each sequence that got a token (`stepper.py`). The sequences hold
blocks of a `BlockPool`, which is the simulated KV cache.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from dynamo.llm.kv.block_hash import block_hashes, sequence_hashes
from dynamo.llm.kv.messages import KvStep

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """Limits of the simulated engine: what it can hold and do at once."""

    num_gpu_blocks: int = 16384
    block_size: int = 64
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    watermark: float = 0.01
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    preemption_mode: str = "lifo"

    @property
    def admissible_blocks(self) -> float:
        return (1 - self.watermark) * self.num_gpu_blocks

    @property
    def longest(self) -> int:
        """Count the tokens of the longest sequence that can ever be admitted."""
        return int(self.admissible_blocks) * self.block_size - 1


@dataclass(slots=True, eq=False)
class Sequence(Generic[T]):
    """One request inside the engine. `owner` is the shell's."""

    owner: T
    tail: list[int]
    """Tokens of the block being filled."""
    names: list[int]
    """Of its whole blocks, computed or not."""
    length: int
    computed: int = 0
    """Tokens whose KV is there."""
    named: int = 0
    """How many of its whole blocks the pool knows by name; it holds the others without one."""
    cached_tokens: int = -1
    """Prompt tokens that came from the cache when it was first admitted; -1: not yet admitted."""
    running: bool = field(default=False)
    arrived: bool = False
    """Its prompt's KV came from elsewhere: there is nothing to compute when it is admitted."""
    media: tuple[int, ...] = ()
    """Hashes of the images that touch the block being filled."""


class Plan(NamedTuple, Generic[T]):
    """One step: tokens to compute, and who gets a token at its end."""

    prefill_tokens: int
    producing: list[Sequence[T]]
    decoding: bool


class BlockPool:
    """Hold the KV blocks of a simulated engine: active ones with reference counts, inactive ones in LRU order.

    A block that is whole and computed has a name, the hash of all tokens up to its end (`dynamo.llm.kv.block_hash`), so
    equal prefixes share blocks. Capacity = active + nameless (held, not computed yet) + inactive (cached, evictable) +
    free. Which names came and went is kept until somebody asks: `take_changes`, once per engine step.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._active: dict[int, int] = {}
        self._inactive: OrderedDict[int, None] = OrderedDict()
        """The least recently used first. A `dict` looks for its first entry behind the places of all that have gone."""
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

    def release(self, names: list[int], nameless: int = 0) -> None:
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
        name, _ = self._inactive.popitem(last=False)
        if name in self._stored:
            del self._stored[name]
        else:
            self._removed[name] = None


class Scheduler(Generic[T]):
    """The waiting queue, the running batch and the block pool."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.num_gpu_blocks)
        self._waiting: deque[Sequence[T]] = deque()
        self._running: dict[Sequence[T], None] = {}
        self._held: dict[Sequence[T], None] = {}
        self.preemptions = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Count sequences that are over and whose blocks are kept."""
        return len(self._held)

    @property
    def burden(self) -> tuple[int, int]:
        """Return how busy it is, to be compared: requests, then blocks that they hold."""
        return len(self._running) + len(self._waiting), self.pool.used

    def owners(self) -> list[T]:
        """Return the owners of all sequences, running and waiting."""
        return [s.owner for s in (*self._running, *self._waiting)]

    @property
    def longest(self) -> int:
        """Count the tokens of the longest sequence that can ever be admitted."""
        return self.limits.longest

    def add(self, owner: T, token_ids: list[int], media: list[list[int]] | None = None) -> Sequence[T]:
        """Queue a request; raises `ValueError` for what isn't a token id. `media`: as `cut` has it."""
        sequence = self.add_named(owner, *self.cut(token_ids, media))
        if media is not None:
            sequence.media = self.touching_rest(media, sequence.names)
        return sequence

    def cut(self, token_ids: list[int], media: list[list[int]] | None = None) -> tuple[list[int], list[int]]:
        """Return the hashes of a prompt's whole blocks, and the rest of it; `media`: hashes of the images in each.

        Raises `ValueError` for what isn't a token id.
        """
        size = self.limits.block_size
        names = sequence_hashes(block_hashes(token_ids, size, media=media or ()))
        return names, token_ids[len(names) * size :]

    @staticmethod
    def touching_rest(media: list[list[int]], names: list[int]) -> tuple[int, ...]:
        """Return the hashes of the images in what follows the whole blocks of a prompt."""
        return tuple(media[len(names)]) if len(media) > len(names) else ()

    def add_named(self, owner: T, names: list[int], tail: list[int]) -> Sequence[T]:
        """Queue a request whose whole blocks have been named already; both lists are the sequence's from now on."""
        sequence = Sequence(owner, tail, names, len(names) * self.limits.block_size + len(tail))
        self._waiting.append(sequence)
        return sequence

    def remove(self, sequence: Sequence[T]) -> None:
        """Remove a request that is over (ended or aborted); its blocks are free at once."""
        if sequence.running:
            self._let_go(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def hold(self, sequence: Sequence[T]) -> None:
        """End a running request, but keep its blocks until `release`."""
        del self._running[sequence]
        sequence.running = False
        self._held[sequence] = None

    def release(self, sequence: Sequence[T]) -> None:
        """Let go of what is held; fine where that was done already."""
        if sequence in self._held:
            del self._held[sequence]
            self._free(sequence)

    def plan(self) -> Plan[T]:
        """Decide the next step."""
        limits = self.limits
        producing = [s for s in self._running if s.computed >= s.length]
        budget = limits.max_num_batched_tokens - len(producing)
        decoding, spent = bool(producing), 0
        for sequence in [s for s in self._running if s.computed < s.length]:
            spent += self._compute(sequence, budget - spent, producing)
        while self._waiting and budget - spent > 0 and self._may_admit(self._waiting[0], budget - spent, spent):
            sequence = self._waiting.popleft()
            self._admit(sequence)
            if sequence.arrived:  # its first token is a decode step's, and once preempted it is as any other
                sequence.arrived, decoding, budget = False, True, budget - 1
            spent += self._compute(sequence, budget - spent, producing)
        return Plan(spent, producing, decoding)

    def advance(self, sequence: Sequence[T], token: int) -> None:
        """Append `token` to `sequence`; where no block is left for it, somebody is preempted, itself if need be."""
        tail = sequence.tail
        if not tail:
            while sequence.running and not self.pool.take_nameless():
                self._preempt()
        sequence.length += 1
        if sequence.running:
            sequence.computed += 1
        tail.append(token)
        if len(tail) == self.limits.block_size:
            self._seal(sequence)

    def _seal(self, sequence: Sequence[T]) -> None:
        """Seal the block being filled, which is whole."""
        last = sequence.names[-1] if sequence.names else None
        media = (sequence.media,) if sequence.media else ()
        sequence.names += sequence_hashes(block_hashes(sequence.tail, self.limits.block_size, media=media), last)
        sequence.media = ()
        sequence.tail.clear()
        if sequence.running:
            self._name(sequence, sequence.computed)

    def _name(self, sequence: Sequence[T], computed: int) -> None:
        """Publish what has been computed: others can hit it from now on."""
        if not self.limits.enable_prefix_caching:
            return
        whole = min(computed // self.limits.block_size, len(sequence.names))
        for name in sequence.names[sequence.named : whole]:
            self.pool.promote(name)
        sequence.named = max(sequence.named, whole)

    def _blocks_for(self, tokens: int) -> int:
        return -(-(tokens + 1) // self.limits.block_size)

    def _may_admit(self, sequence: Sequence[T], budget: int, spent: int) -> bool:
        limits = self.limits
        if len(self._running) >= limits.max_num_seqs:
            return False
        if self.pool.used + self._blocks_for(sequence.length) > limits.admissible_blocks:
            return False
        whole = limits.enable_chunked_prefill or sequence.length - self._cached(sequence) <= budget
        return whole or not (spent or self._running)

    def _cached(self, sequence: Sequence[T]) -> int:
        """Count tokens that need no computing; the last one does, unless all of it came from elsewhere."""
        if sequence.arrived:
            return sequence.length
        return min(self._hits(sequence) * self.limits.block_size, sequence.length - 1)

    def _hits(self, sequence: Sequence[T]) -> int:
        """Count blocks of its beginning that are in the cache."""
        return self.pool.match(sequence.names) if self.limits.enable_prefix_caching else 0

    def _admit(self, sequence: Sequence[T]) -> None:
        sequence.computed, sequence.named = self._cached(sequence), self._hits(sequence)
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = sequence.computed
        sequence.running = True
        self._running[sequence] = None
        self.pool.take(sequence.names[: sequence.named])
        if not self.pool.take_nameless(self._nameless(sequence)):
            raise AssertionError("an admitted sequence does not fit")  # _may_admit counted its blocks

    @staticmethod
    def _nameless(sequence: Sequence[T]) -> int:
        """Count blocks that it holds, or is about to, and that have no hash."""
        return len(sequence.names) - sequence.named + bool(sequence.tail)

    def _compute(self, sequence: Sequence[T], budget: int, producing: list[Sequence[T]]) -> int:
        """Prefill as much as the budget allows; returns the tokens computed."""
        left = sequence.length - sequence.computed
        now = min(left, budget) if self.limits.enable_chunked_prefill else left
        sequence.computed += max(0, now)
        self._name(sequence, sequence.computed)
        if now == left:
            producing.append(sequence)
        return max(0, now)

    def _preempt(self) -> None:
        """Send one running sequence back to the head of the queue, without its blocks."""
        order = list(self._running)
        victim = order[-1] if self.limits.preemption_mode == "lifo" else order[0]
        self._let_go(victim)
        self._waiting.appendleft(victim)
        self.preemptions += 1

    def _let_go(self, sequence: Sequence[T]) -> None:
        del self._running[sequence]
        sequence.running = False
        self._free(sequence)

    def _free(self, sequence: Sequence[T]) -> None:
        self.pool.release(sequence.names[: sequence.named], self._nameless(sequence))
        sequence.computed = sequence.named = 0
