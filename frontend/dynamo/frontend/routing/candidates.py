"""Which instance gets a request: pure choices over what this frontend knows.

`select` is called once per attempt by `generation.py` (through `models.ModelSet.choose`).
A mode is a function of the candidates' loads; the KV-aware mode will be one more
entry here that also looks at the request's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec


class Candidate(msgspec.Struct, gc=False):
    """An instance as the selection sees it."""

    id: int
    open_streams: int = 0
    """Streams that this frontend has open there."""
    running: int = 0
    waiting: int = 0
    capacity: int = 0
    """`max_num_seqs` of its engine, of all its data-parallel ranks; 0: unknown."""
    prefill_tokens: int = 0
    """Of prompts without a first token, where `Counted` requests run."""
    blocks: int = 0
    """KV blocks of the prompts of `Counted` requests; shared ones count each time."""


class Counted:
    """One attempt of a request outside kv mode, counted on its worker: thresholds want to know.

    Made only where there are thresholds. Prompts count whole, since nobody knows what is cached.
    """

    __slots__ = ("_blocks", "_candidate", "_tokens", "waits")

    def __init__(self, tokens: int, block_size: int, *, computed_elsewhere: bool = False) -> None:
        self._tokens, self._blocks = 0 if computed_elsewhere else tokens, -(-tokens // block_size)
        self._candidate: Candidate | None = None
        self.waits = True
        """No token has come yet."""

    def placed(self, candidate: Candidate) -> None:
        """It goes there."""
        self._candidate = candidate
        candidate.prefill_tokens += self._tokens
        candidate.blocks += self._blocks

    def prefilled(self) -> None:
        """Its first token came."""
        if self.waits and self._candidate is not None:
            self._candidate.prefill_tokens -= self._tokens
        self.waits = False

    def close(self) -> None:
        """It is over; also where that was said already."""
        self.prefilled()
        if self._candidate is not None:
            self._candidate.blocks -= self._blocks
            self._candidate = None


class Turn(msgspec.Struct, gc=False):
    """Where the round-robin of one model set stands."""

    position: int = 0


def load(candidate: Candidate) -> float:
    """How busy an instance is: streams per slot where the slots are known."""
    # The published figures lag behind and hold our own streams too, so the larger of the two counts.
    busy = max(candidate.open_streams, candidate.running + candidate.waiting)
    return busy / candidate.capacity if candidate.capacity else float(busy)


Selector = Callable[[Sequence[Candidate], Turn, Random], Candidate]


def round_robin(candidates: Sequence[Candidate], turn: Turn, random: Random) -> Candidate:
    """Each in its turn."""
    turn.position += 1
    return candidates[turn.position % len(candidates)]


def uniform(candidates: Sequence[Candidate], turn: Turn, random: Random) -> Candidate:
    """Any, all equally likely."""
    return candidates[int(random.random() * len(candidates))]


def least_loaded(candidates: Sequence[Candidate], turn: Turn, random: Random) -> Candidate:
    """The least busy; equals take turns."""
    lowest = min(load(c) for c in candidates)
    return round_robin([c for c in candidates if load(c) == lowest], turn, random)


def power_of_two(candidates: Sequence[Candidate], turn: Turn, random: Random) -> Candidate:
    """The less busy of two random ones."""
    if len(candidates) < 2:
        return candidates[0]
    return min(random.sample(candidates, 2), key=load)


SELECTORS: Final[dict[str, Selector]] = {
    "round-robin": round_robin,
    "random": uniform,
    "least-loaded": least_loaded,
    "power-of-two": power_of_two,
    "kv": least_loaded,  # for requests without tokens; the others have a ticket (`kv.py`)
}
