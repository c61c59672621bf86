"""One engine's numbered KV event stream, put in order: gaps are asked for again, and what stays lost is doubted. Pure.

Who reads the socket gives `live` what comes. While `ask` names a number, it asks the engine's replay socket for all
from there on, gives `replayed` the answers and ends with `replay_over` (also where none came). All return steps for a
`KvPublisher`. An engine that numbers from the start again was restarted: its cache is empty.
"""

from __future__ import annotations

from typing import Final

from dynamo.llm.kv.messages import KvStep
from dynamo.llm.kv_events.engine_blocks import Cleared, EngineBlocks, Event, Removed, Stored, steps_of
from dynamo.llm.kv_events.engine_wire import UnreadableBatch, read_batch

MOST_WAITING: Final = 4096
"""Batches that wait for a replay; then what is missing counts as lost."""
WHOLE: Final = frozenset((None, "full_attention", "mla_attention", "sink_full_attention"))
"""Kinds of attention whose blocks stand for a prefix. A sliding window's go while the prefix is still a hit."""


class EngineStream:
    """Order an engine's events; `dp_rank` is for engines that don't say theirs, `capacity` the blocks of one rank."""

    def __init__(
        self, block_size: int, dp_rank: int = 0, capacity: int | None = None, *, replays: bool = False
    ) -> None:
        self._block_size, self._dp_rank, self._capacity, self._replays = block_size, dp_rank, capacity, replays
        self._ranks: dict[int, EngineBlocks] = {}
        self._others: set[int | None] = set()
        """Cache groups that are not looked at."""
        self._next = 0
        self._last: int | None = None
        """The highest number that came by itself, not by a replay."""
        self._waiting: dict[int, bytes] = {}
        self._asking = False
        self._asked_once = not replays
        self.gaps = 0
        """How often something was lost for good."""
        self.restarts = 0
        self.unreadable = 0
        self.complaint = ""
        """What was wrong with the last batch that could not be read."""

    @property
    def silent(self) -> bool:
        """Tell whether nothing has come yet."""
        return self._last is None and not self._next

    @property
    def misfits(self) -> int:
        """Count the blocks of another size than ours."""
        return sum(blocks.misfits for blocks in self._ranks.values())

    @property
    def orphans(self) -> int:
        """Count the blocks without a hash of ours, since their parent was never heard of."""
        return sum(blocks.orphans for blocks in self._ranks.values())

    def hashes(self, dp_rank: int = 0) -> set[int]:
        """Return what a rank caches, by our hashes."""
        blocks = self._ranks.get(dp_rank)
        return set() if blocks is None else blocks.hashes()

    def live(self, number: int, payload: bytes) -> list[KvStep]:
        """Take a message that came."""
        before: list[KvStep] = []
        if self._last is not None and number <= self._last:
            before = self._restarted()
        self._last = number
        return before + self._take(number, payload)

    def ask(self) -> int | None:
        """Say from which number on to ask for a replay now: once at the start, then whenever something is missing."""
        if not self._replays or self._asking or (self._asked_once and not self._waiting):
            return None
        self._asking = self._asked_once = True
        return self._next

    def replayed(self, number: int, payload: bytes) -> list[KvStep]:
        """Take a message that came again, because it was asked for."""
        return self._take(number, payload)

    def replay_over(self) -> list[KvStep]:
        """Go on after a replay: no more of it comes. What is still missing is lost."""
        self._asking = False
        return self._skip() if self._waiting else []

    def _take(self, number: int, payload: bytes) -> list[KvStep]:
        if number < self._next:
            return []
        self._waiting[number] = payload
        steps = self._drain()
        if self._waiting and (not self._replays or len(self._waiting) > MOST_WAITING):
            steps += self._skip()
        return steps

    def _drain(self) -> list[KvStep]:
        steps: list[KvStep] = []
        while (payload := self._waiting.pop(self._next, None)) is not None:
            self._next += 1
            steps += self._apply(payload)
        return steps

    def _skip(self) -> list[KvStep]:
        """Go on behind what is lost."""
        steps: list[KvStep] = []
        while self._waiting:
            self._next = min(self._waiting)
            self._doubt()
            steps += self._drain()
        return steps

    def _doubt(self) -> None:
        self.gaps += 1
        for blocks in self._ranks.values():
            blocks.doubt()

    def _restarted(self) -> list[KvStep]:
        self.restarts += 1
        self._next, self._asking, self._asked_once = 0, False, not self._replays
        self._waiting.clear()
        self._others.clear()
        return [step for rank, blocks in self._ranks.items() for step in steps_of([Cleared()], blocks, rank)]

    def _apply(self, payload: bytes) -> list[KvStep]:
        try:
            batch = read_batch(payload)
            rank = self._dp_rank if batch.dp_rank is None else batch.dp_rank
            blocks = self._ranks.get(rank)
            if blocks is None:
                blocks = self._ranks[rank] = EngineBlocks(self._block_size, self._capacity)
            return steps_of([event for event in batch.events if self._concerns_us(event)], blocks, rank)
        except (UnreadableBatch, ValueError) as error:
            self.unreadable += 1
            self.complaint = str(error)
            self._doubt()
            return []

    def _concerns_us(self, event: Event) -> bool:
        """Tell whether of a model with several kinds of attention only the blocks that hold whole prefixes.

        A removal names the group alone, which was learnt when its blocks were stored.
        """
        match event:
            case Stored(group=group, kind=kind):
                if kind not in WHOLE:
                    self._others.add(group)
                return group not in self._others
            case Removed(group=group):
                return group not in self._others
        return True
