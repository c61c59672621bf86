"""What it costs to send a request to a rank, and the choice by it. Pure; the unit is a KV block.

NVIDIA Dynamo 1.6's terms and defaults (docs/design/serving/kv.md names older versions' words for them):
work that the rank has yet to prefill for this request and those before it, less what its cache
already holds, plus the blocks that it would then have to read at every decode step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from dynamo.llm.kv.index import Rank

_EVEN: Final = 1e-12


class Weights(msgspec.Struct, frozen=True):
    """Weights of the terms of the cost."""

    overlap_credit: float = 1.0
    """Of a block that the rank's cache holds: 1 counts all of its prefill as saved, 0 ignores caches."""
    overlap_credit_decay: float = 0.0
    """How fast the credit fades on ranks that have more to prefill than the least busy one."""
    prefill_load_scale: float = 1.0
    """Of a block that is to be prefilled, against one that is to be decoded over."""
    decode_request_weight: float = 0.0
    """Of every request that runs there, in blocks."""


class Candidate(NamedTuple):
    """One rank as it stands, for one request."""

    rank: Rank
    prefill_tokens: int = 0
    """Of other requests, still to be prefilled there."""
    decode_blocks: int = 0
    """Distinct blocks of all running requests, with this one's."""
    requests: int = 0
    overlap_blocks: int = 0
    """How much of this prompt's beginning its cache holds."""


def costs(
    candidates: Iterable[tuple[Rank, int, int, int, int]], tokens: int, block_size: int, weights: Weights
) -> list[float]:
    """Return one number for each `Candidate`, lower is better; `tokens` is the prompt's length.

    Plain tuples will do: a decision has one for every rank.
    """
    credit, decay, scale, per_request = (
        weights.overlap_credit,
        weights.overlap_credit_decay,
        weights.prefill_load_scale,
        weights.decode_request_weight,
    )
    if not decay:
        return [
            (scale * left if (left := (prefill + tokens) / block_size - credit * overlap) > 0.0 else 0.0)
            + (decode + per_request * requests)
            for _, prefill, decode, requests, overlap in candidates
        ]
    candidates = list(candidates)
    least = min((candidate[1] for candidate in candidates), default=0)
    costs = []
    for _, prefill, decode, requests, overlap in candidates:
        worth = credit * overlap / (1.0 + decay * (prefill - least) / max(tokens, 1))
        left = (prefill + tokens) / block_size - worth
        costs.append(scale * max(0.0, left) + (decode + per_request * requests))
    return costs


def choose(costs: Sequence[float], temperature: float, draw: Callable[[], float]) -> int:
    """Return the index of the choice; `draw` gives a number from 0 up to, but not, 1.

    At temperature 0 the lowest, ties by chance. Else softmax over the costs, scaled to 0..1 first, so that a
    temperature means the same for long prompts and short ones. Raises `ValueError` where there is none.
    """
    if not costs:
        raise ValueError("there is no candidate to choose from")
    low, high = min(costs), max(costs)
    if high - low < _EVEN:
        return int(draw() * len(costs))
    if temperature <= 0.0:
        lowest = [index for index, cost in enumerate(costs) if cost == low]
        return lowest[0] if len(lowest) == 1 else lowest[int(draw() * len(lowest))]
    spread = (high - low) * temperature
    return _weighted([math.exp(-(cost - low) / spread) for cost in costs], draw())


def _weighted(shares: Iterable[float], drawn: float) -> int:
    shares = list(shares)
    left = drawn * sum(shares)
    for index, share in enumerate(shares):
        left -= share
        if left < 0.0:
            return index
    return len(shares) - 1
