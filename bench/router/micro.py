"""What a decision, an event and a block cost the frontend, by workers: CPU of one thread, memory traced.

The measuring itself is `bench/micro/kv.py`'s; what is told here has bars.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.micro.kv import PROMPT_TOKENS, bytes_per_block, cpu, heard, name, router
from bench.peer import peer_environment, peer_python
from bench.processes import BenchError

from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.messages import KvStep
from dynamo.llm.kv.scheduler import KvScheduler

_DECISION_US = 150.0
_EVENTS = 100_000.0
_BYTES = {8: 100.0, 1000: 200.0}


@dataclass(frozen=True, slots=True)
class Figure:
    """One cost."""

    name: str
    value: float
    unit: str
    said: str = ""
    """Its bar, and whether it holds."""
    peer: float | None = None
    """The same of ai-dynamo, in the same minutes."""


def peer_costs() -> dict[str, float]:
    """What `peer_micro.py` measures; raises `BenchError`."""
    script = Path(__file__).with_name("peer_micro.py")
    command = [str(peer_python()), str(script)]
    done = subprocess.run(command, env=peer_environment(), capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise BenchError(f"{script.name} failed:\n{done.stderr[-1500:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def costs(peer: Mapping[str, float]) -> Iterator[Figure]:
    """All of them, one by one as they are measured; `peer` has the other side's by name."""
    tokens = random.Random(1).choices(range(32_000), k=PROMPT_TOKENS)
    at_64 = 0.0
    for workers in (1, 8, 64, 512):
        made, ranks = filled(tokens, workers)
        title = f"name and find, {workers} workers"
        finding = cpu(partial(_find, made, tokens), 50) * 1e6
        yield Figure(title, finding, "µs CPU", peer=peer.get(title))
        decision = cpu(partial(_decide, made, tokens, ranks), 50) * 1e6
        at_64 = decision if workers == 64 else at_64
        limit = {64: _DECISION_US, 512: 3 * at_64}.get(workers)
        yield Figure(f"decision, {PROMPT_TOKENS} tokens, {workers} workers", decision, "µs CPU", _said(decision, limit))
        tracked = cpu(partial(_life, made, tokens, ranks), 50) * 1e6
        yield Figure(f"the same, counted until its end, {workers} workers", tracked, "µs CPU")
    for size in (1, 8, 128):
        events, title = 2 * size / heard(size)[1], f"events of {size} blocks"
        said = _said(-events, -_EVENTS)
        yield Figure(f"{title} stored and removed, 8 workers", events, "blocks/s", said, peer.get(title))
    for workers, most in _BYTES.items():
        held = bytes_per_block(workers)
        yield Figure(f"index of a million blocks, {workers} workers", held, "bytes/block", _said(held, most))


def filled(tokens: list[int], workers: int) -> tuple[KvScheduler, list[Rank]]:
    """A router whose workers hold all of a prompt or half of it in turn, and run a request each."""
    made, ranks = router(), [Rank(number) for number in range(workers)]
    names = name(tokens)
    for rank in ranks:
        made.follow(rank.instance)
        made.apply(rank.instance, KvStep(names[: len(names) // (1 + rank.instance % 2)]))
        made.place(f"running {rank.instance}", made.prompt(tokens[rank.instance :][:640]), [rank], 0.0)
    return made, ranks


def _find(made: KvScheduler, tokens: list[int]) -> None:
    made.index.find(made.prompt(tokens).hashes)


def _decide(made: KvScheduler, tokens: list[int], ranks: list[Rank]) -> None:
    made.query(made.prompt(tokens), ranks)


def _life(made: KvScheduler, tokens: list[int], ranks: list[Rank]) -> None:
    made.place("x", made.prompt(tokens), ranks, 0.0)
    made.prefilled("x")
    made.ended("x")


def _said(value: float, limit: float | None) -> str:
    if limit is None:
        return ""
    sign = "<=" if limit > 0 else ">="
    return f"{sign} {abs(limit):,.0f} {'ok' if value <= limit else 'MISSED'}"
