"""What is measured of routing, as data. Pure.

Workload e: conversations of three turns, each begun by one of 20 system prompts of 4,096 tokens. A turn sends the whole
conversation so far; what the assistant is made to have said is made up, so that both sides get the same prompts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SYSTEM_PROMPTS = 20
SYSTEM_TOKENS = 4096
TURNS = 3
ASKED_TOKENS = 96
ANSWER_TOKENS = 32
BLOCK_SIZE = 64
BLOCKS = 16_384
SIDES = ("ours", "peer", "plain")
"""`plain` is this project with round-robin: what the router is for."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit for a figure of ours; `ratio`: against the peer's in the same round."""

    figure: str
    limit: float
    ratio: bool = False
    at_least: bool = False

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        against = " of the peer's" if self.ratio else ""
        return f"{self.figure} {'>=' if self.at_least else '<='} {self.limit:g}{against}"


_HITS = Bar("hit_ratio", 1.0, ratio=True, at_least=True)
_QUICK = (Bar("ttft_p50_ms", 1.0, ratio=True), Bar("ttft_p99_ms", 1.0, ratio=True))
_AS_BEFORE = Bar("kept", 0.98, at_least=True)
_MANY_HITS = Bar("hit_ratio", 0.88, at_least=True)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Servers, and what is sent to them."""

    name: str
    note: str
    workers: int = 4
    frontends: int = 1
    blocks: int = BLOCKS
    """KV blocks of each worker."""
    restart: bool = False
    """Once caches hold the prompts, as many conversations before and after the frontend is killed and started again.

    The figures are those after it, from the first request that it takes."""
    conversations: int = 200
    at_once: int = 16
    sides: tuple[str, ...] = ("ours", "peer")
    bars: tuple[Bar, ...] = field(default=(_HITS,))


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("e4", "workload shared-prefix, 4 workers", sides=SIDES, bars=(_HITS, _MANY_HITS, *_QUICK)),
    Scenario("e8", "workload shared-prefix, 8 workers", workers=8, sides=SIDES, bars=(_HITS, _MANY_HITS, *_QUICK)),
    Scenario("evict", "caches of 600 blocks, where the prompts need 1,280", blocks=600, at_once=8),
    Scenario("two", "two frontends, turns of a conversation on either", frontends=2),
    Scenario("restart", "the frontend is killed and started again", restart=True, bars=(_HITS, _AS_BEFORE)),
)


def select(names: Sequence[str]) -> tuple[Scenario, ...]:
    """The scenarios with these names; all of them for none. Raises ValueError for an unknown name."""
    known = [scenario.name for scenario in SCENARIOS]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no scenario {', '.join(unknown)}; there are {', '.join(known)}")
    return tuple(scenario for scenario in SCENARIOS if not names or scenario.name in names)


def conversations(words: Sequence[str], count: int, prompts: str, seed: str) -> list[list[list[dict[str, Any]]]]:
    """`count` conversations, each the messages of its turns; the same for the same texts.

    `prompts` is the seed of the system prompts, so that two halves of a scenario can share them.
    """
    shared = random.Random(prompts)
    systems = [_text(shared, words, SYSTEM_TOKENS) for _ in range(SYSTEM_PROMPTS)]
    source = random.Random(seed)
    return [_turns(source, words, systems[number % SYSTEM_PROMPTS]) for number in _shuffled(source, count)]


def _shuffled(source: random.Random, count: int) -> list[int]:
    numbers = list(range(count))
    source.shuffle(numbers)
    return numbers


def _turns(source: random.Random, words: Sequence[str], system: str) -> list[list[dict[str, Any]]]:
    messages = [{"role": "system", "content": system}]
    turns = []
    for _ in range(TURNS):
        messages.append({"role": "user", "content": _text(source, words, ASKED_TOKENS)})
        turns.append(list(messages))
        messages.append({"role": "assistant", "content": _text(source, words, ANSWER_TOKENS)})
    return turns


def _text(source: random.Random, words: Sequence[str], tokens: int) -> str:
    return " ".join(source.choices(words, k=tokens))
