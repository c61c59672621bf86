"""Made-up traces: as like real ones as their few figures say, the same for the same seed.

In all of them a conversation is one growing text: each prompt is the whole of it, so what was sent and answered before
comes again. Blocks that nobody shares have ids of their own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from dynamo.cli.simulation.trace import MOONCAKE_BLOCK, TraceLine

SMALL_BLOCK: Final = 64


@dataclass(frozen=True)
class Shape:
    """Shape of a workload's conversations; lengths in tokens."""

    block: int
    """Tokens of a hash id."""
    openings: int
    """Different beginnings; each conversation has one of them."""
    opening_tokens: int
    turns: tuple[int, int]
    """From and to."""
    asked: Callable[[Random], int]
    answered: Callable[[Random], int]
    pause: Callable[[Random], float]
    """Seconds between an answer and the next turn."""
    longest: int
    """A conversation ends before its prompt gets longer."""


def _spread(random: Random, median: float, sigma: float, low: int, high: int) -> int:
    """Log-normal, as lengths of real prompts are."""
    return max(low, min(high, round(median * math.exp(sigma * random.gauss(0.0, 1.0)))))


SHAPES: Final[dict[str, Shape]] = {
    # Workload e of the comparison with NVIDIA Dynamo: 20 shared system prompts of 4k tokens, three turns.
    "shared-prefix": Shape(
        SMALL_BLOCK, 20, 4096, (3, 3), lambda _: 128, lambda _: 64, lambda random: random.expovariate(1.0), 16_000
    ),
    # A coding agent: few large beginnings (instructions, tools), many turns with what a tool said, short answers.
    "agent": Shape(
        SMALL_BLOCK, 5, 8192, (5, 30), lambda random: _spread(random, 500, 1.0, 32, 8000),
        lambda random: _spread(random, 120, 0.8, 8, 2000), lambda random: 0.2 + random.expovariate(1 / 2.0), 100_000,
    ),
    # Of the size of Mooncake's published conversations: 12k tokens in, 340 out on average, some of it seen before.
    "conversation": Shape(
        MOONCAKE_BLOCK, 50, 1024, (1, 6), lambda random: _spread(random, 2100, 1.2, 16, 60_000),
        lambda random: _spread(random, 250, 0.8, 4, 2000), lambda random: 5 + random.expovariate(1 / 40.0), 120_000,
    ),
}  # fmt: skip


def generate(name: str, requests: int, per_second: float, seed: int) -> Iterator[TraceLine]:
    """Yield `requests` lines in the order in which conversations begin, `per_second` of these on average."""
    shape, random = SHAPES[name], Random(f"{name}/{seed}")
    fresh = itertools.count()
    length = -(-shape.opening_tokens // shape.block)
    openings = [[next(fresh) for _ in range(length)] for _ in range(shape.openings)]
    begins, made = 0.0, 0
    for session in itertools.count():
        begins += random.expovariate(per_second)
        for line in _conversation(shape, random, list(random.choice(openings)), fresh):
            line.session_id = session
            if line.delay is None:
                line.timestamp = round(begins * 1000, 3)
            yield line
            made += 1
            if made == requests:
                return


def _conversation(shape: Shape, random: Random, ids: list[int], fresh: Iterator[int]) -> Iterator[TraceLine]:
    tokens, delay = shape.opening_tokens, None
    for _ in range(random.randint(*shape.turns)):
        tokens += shape.asked(random)
        answer = shape.answered(random)
        if delay is not None and tokens + answer > shape.longest:
            return
        blocks, whole = -(-tokens // shape.block), -(-(tokens + answer) // shape.block)
        ids += itertools.islice(fresh, whole - len(ids))
        yield TraceLine(
            input_length=tokens, output_length=answer, hash_ids=ids[:blocks], output_hash_ids=ids[blocks:whole],
            delay=delay,
        )  # fmt: skip
        tokens += answer
        delay = round(shape.pause(random) * 1000, 3)
