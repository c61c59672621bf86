"""The reader's half of KV events: one worker's steps in order, every loss noticed and made good. Pure.

The reader gives `heard` what the bus brings and calls `lost` where that may have dropped something. While `ask`
names a part it asks the worker for that, and gives `answered` or `failed`. What these return is for the index.

Messages that come while a snapshot is fetched wait, and are replayed on top of it. Its parts may be of different
moments: replaying everything after the oldest of them ends in the same, since the last word on a block wins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from dynamo.llm.kv.index import MOST_RANKS
from dynamo.llm.kv.messages import MOST_PARTS, VERSION, KvStep, Part, Step, unpack
from dynamo.runtime.errors import InvalidArgument

MOST_WAITING: Final = 4096
"""Messages that wait for a snapshot; older ones are dropped, which shows as a gap."""
MOST_WAITING_NAMES: Final = 1 << 20
MOST_NAMES: Final = 1 << 24
"""Blocks that a worker's snapshot may have."""
SLICE: Final = 8192
"""Names in one of the steps that a snapshot becomes: about a millisecond's work for the index."""


class EventReader:
    """One worker. `seq` is the number up to which the index is told; None before the first snapshot."""

    def __init__(self, most_waiting: int = MOST_WAITING, most_waiting_names: int = MOST_WAITING_NAMES) -> None:
        self.seq: int | None = None
        self.gaps = 0
        """How often something was missing."""
        self.steps = 0
        """Messages that were given out."""
        self._highest = 0
        """The last number that is known to exist."""
        self._stale = False
        self._most, self._most_names = most_waiting, most_waiting_names
        self._waiting: OrderedDict[int, KvStep] = OrderedDict()
        self._waiting_names = 0
        self._ranks: set[int] = set()
        self._round: list[Part] | None = None
        """The parts of the snapshot that is being fetched."""

    @property
    def behind(self) -> bool:
        """Tell whether the index lacks something that the worker has said."""
        return self.seq is None or self._stale or self._highest > self.seq

    def heard(self, step: Step) -> list[KvStep]:
        """Take a message that came. Raises `ValueError` for one that can't be read; its number is then missing."""
        before = self.behind
        self._highest = max(self._highest, step.seq)
        steps = [] if step.beat else self._take(step.seq, _read(step))
        if self.behind and not before:
            self.gaps += 1
        return steps

    def lost(self) -> None:
        """Note that messages may have been dropped without a trace."""
        if not self.behind:
            self.gaps += 1
        self._stale = True

    def ask(self) -> tuple[int, int] | None:
        """Return the `[part, parts]` to ask for now; None where nothing is missing.

        Begins a snapshot, or goes on with it.
        """
        if self._round is None:
            if not self.behind:
                return None
            self._round, self._stale = [], False
        return len(self._round), self._round[0].parts if self._round else 0

    def answered(self, part: Part) -> list[KvStep]:
        """Take the part that was asked for.

        Raises `InvalidArgument` for another one, `ValueError` for an unreadable one.
        """
        if self._round is None:
            return []
        asked, parts = len(self._round), self._round[0].parts if self._round else part.parts
        if part.version != VERSION or part.part != asked or part.parts != parts or not 0 < parts <= MOST_PARTS:
            raise InvalidArgument(f"asked for part {asked} of {parts}, got {part.part} of {part.parts}")
        self._round.append(part)
        return self._complete(self._round) if len(self._round) == parts else []

    def failed(self) -> list[KvStep]:
        """Begin the snapshot again: the part that was asked for doesn't come, or is none."""
        self._round, self._stale = None, True
        return self._drain()

    def _take(self, seq: int, step: KvStep) -> list[KvStep]:
        if self.seq is not None and seq <= self.seq:
            return []  # a repeat
        if self._round is None and self.seq is not None and seq == self.seq + 1:
            self._next(step)
            return [step, *self._drain()]
        self._wait(seq, step)
        return []

    def _wait(self, seq: int, step: KvStep) -> None:
        if seq in self._waiting:
            return
        self._waiting[seq] = step
        self._waiting_names += _size(step)
        while len(self._waiting) > self._most or self._waiting_names > self._most_names:
            self._waiting_names -= _size(self._waiting.popitem(last=False)[1])

    def _drain(self) -> list[KvStep]:
        """Return what waited and is next."""
        steps: list[KvStep] = []
        if self.seq is None:
            return steps
        while (step := self._waiting.pop(self.seq + 1, None)) is not None:
            self._waiting_names -= _size(step)
            self._next(step)
            steps.append(step)
        return steps

    def _next(self, step: KvStep) -> None:
        self.seq = (self.seq or 0) + 1
        self.steps += 1
        self._ranks.add(step.dp_rank)

    def _complete(self, parts: list[Part]) -> list[KvStep]:
        self._round = None
        oldest = min(part.seq for part in parts)
        if self.seq is not None and oldest < self.seq:
            self._stale = True  # the answer to an older question: what came between is not there any more
            return self._drain()
        steps = self._replacement(parts)
        self.seq = oldest
        for seq in [seq for seq in self._waiting if seq <= oldest]:
            self._waiting_names -= _size(self._waiting.pop(seq))
        # The worker has just said its number: a higher one that somebody made up would keep us asking for ever. What
        # is really lost beyond it shows at the next step or beat.
        self._highest = max([part.seq for part in parts] + [*self._waiting])
        return steps + self._drain()

    def _replacement(self, parts: list[Part]) -> list[KvStep]:
        """Return steps that put the snapshot in place of what is known.

        For each rank one that clears it, then slices.
        """
        ranks: dict[int, list[Sequence[int]]] = {rank: [] for rank in self._ranks}
        for part in parts:
            for rank, hashes in part.ranks:
                ranks.setdefault(_checked(rank), []).append(unpack(hashes))
        total = sum(len(hashes) for pieces in ranks.values() for hashes in pieces)
        if total > MOST_NAMES:
            raise InvalidArgument(f"a snapshot of {total} blocks is more than is taken ({MOST_NAMES})")
        self._ranks = set(ranks)
        return [step for rank, pieces in ranks.items() for step in _slices(rank, pieces)]


def _slices(rank: int, pieces: list[Sequence[int]]) -> Iterator[KvStep]:
    yield KvStep((), (), rank, cleared=True)
    for hashes in pieces:
        for at in range(0, len(hashes), SLICE):
            yield KvStep(hashes[at : at + SLICE], (), rank)


def _read(step: Step) -> KvStep:
    return KvStep(unpack(step.stored), unpack(step.removed), _checked(step.dp_rank), step.cleared)


def _checked(rank: int) -> int:
    if not 0 <= rank < MOST_RANKS:
        raise ValueError(f"there is no data-parallel rank {rank}")
    return rank


def _size(step: KvStep) -> int:
    return len(step.stored) + len(step.removed)
