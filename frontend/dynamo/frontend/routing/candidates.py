"""Workers as the choice among them sees them: how busy each is, and what one attempt adds.

`dynamo.runtime.load_balancing` chooses by `load`, in every mode but `kv` (`kv_routing.py`).
"""

from __future__ import annotations

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
    """Of prompts without a first token, where `LoadTicket` requests run."""
    blocks: int = 0
    """KV blocks of the prompts of `LoadTicket` requests; shared ones count each time."""


class LoadTicket:
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
        """Count it on the worker that it goes to."""
        self._candidate = candidate
        candidate.prefill_tokens += self._tokens
        candidate.blocks += self._blocks

    def prefilled(self) -> None:
        """Take the prompt off the worker's load: its first token came."""
        if self.waits and self._candidate is not None:
            self._candidate.prefill_tokens -= self._tokens
        self.waits = False

    def close(self) -> None:
        """Take the rest off the worker's load, since it is over; fine where that was done already."""
        self.prefilled()
        if self._candidate is not None:
            self._candidate.blocks -= self._blocks
            self._candidate = None


def load(candidate: Candidate) -> float:
    """Return how busy an instance is: streams per slot where the slots are known."""
    # The published figures lag behind and hold our own streams too, so the larger of the two counts.
    busy = max(candidate.open_streams, candidate.running + candidate.waiting)
    return busy / candidate.capacity if candidate.capacity else float(busy)
