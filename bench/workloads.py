"""The workloads of the comparison, as data.

The letters are those of the project's performance notes: a prompt of so many tokens, so many tokens out, so many
requests at once, an engine at real speed or infinitely fast. `run.py` reads this table, `client.py` is given one row
of it, and `bench/RESULTS.md` explains the rows. Pure: nothing here touches a clock or a socket.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Speed = Literal["real", "fast"]
Tokenizer = Literal["default", "fastokens"]
Metric = Literal["us/token", "ms/request"]

# The peer's documentation calls 0 infinite, and treats it as 1; this is what makes its mocker not wait at all.
INFINITELY_FAST = 1_000_000.0
REAL_SPEED = 1.0


@dataclass(frozen=True, slots=True)
class Workload:
    """One row: what a client sends, and how long."""

    name: str
    tokens_in: int
    tokens_out: int
    at_once: int
    requests: int
    metric: Metric
    bar: float | None
    speed: Speed = "fast"
    tokenizer: Tokenizer = "default"
    stream: bool = True
    quick_ack: bool = False
    note: str = ""

    @property
    def warm_up(self) -> int:
        """Requests sent before measuring: every connection is open and every worker has been used."""
        return min(self.requests, max(2 * self.at_once, 8)) if self.speed == "fast" else self.at_once


def _table() -> tuple[Workload, ...]:
    real = {"tokens_in": 64, "tokens_out": 256, "metric": "us/token", "speed": "real"}
    short = {"tokens_in": 64, "tokens_out": 64, "at_once": 32, "requests": 800, "metric": "ms/request"}
    one = {"tokens_in": 64, "tokens_out": 1, "metric": "ms/request"}
    rows: list[dict[str, object]] = [
        {"name": "p", **real, "at_once": 64, "requests": 192, "bar": 0.40, "note": "64 streams, engine at real speed"},
        {"name": "q", **real, "at_once": 8, "requests": 40, "bar": 0.75, "note": "8 streams, engine at real speed"},
        {"name": "P", **real, "at_once": 256, "requests": 512, "bar": 0.41, "note": "256 streams, real speed"},
        {
            "name": "d",
            "tokens_in": 64,
            "tokens_out": 512,
            "at_once": 64,
            "requests": 256,
            "metric": "us/token",
            "bar": 0.40,
            "note": "firehose: 64 streams, infinitely fast engine",
        },
        {"name": "r", **one, "at_once": 32, "requests": 3000, "bar": 0.45, "note": "one token: cost of a request"},
        {"name": "a", **short, "bar": 0.40, "note": "64 in, 64 out, streamed"},
        {"name": "b", **short, "bar": 0.45, "stream": False, "note": "64 in, 64 out, not streamed"},
        {"name": "s", **one, "at_once": 1, "requests": 400, "bar": None, "note": "one at a time, ordinary client"},
        {
            "name": "sq",
            **one,
            "at_once": 1,
            "requests": 400,
            "bar": None,
            "quick_ack": True,
            "note": "one at a time, client acknowledges at once",
        },
        {
            "name": "c",
            "tokens_in": 8000,
            "tokens_out": 32,
            "at_once": 8,
            "requests": 160,
            "metric": "ms/request",
            "bar": 0.50,
            "tokenizer": "fastokens",
            "note": "8,000 tokens in",
        },
        {"name": "rf", **one, "at_once": 32, "requests": 3000, "bar": None, "tokenizer": "fastokens", "note": "as r"},
        {"name": "af", **short, "bar": None, "tokenizer": "fastokens", "note": "as a"},
        {"name": "bf", **short, "bar": None, "tokenizer": "fastokens", "stream": False, "note": "as b"},
    ]
    return tuple(Workload(**row) for row in rows)  # type: ignore[arg-type]


WORKLOADS: tuple[Workload, ...] = _table()

# Bars that are not a ratio to the peer: workload, figure, limit.
ABSOLUTE_BARS: tuple[tuple[str, str, float], ...] = (
    ("s", "ttft_p50_ms", 0.8),
    ("s", "ttft_p99_ms", 2.0),
    ("p", "worker_us_per_token", 10.0),
    ("p", "rss_beyond_tokenizer_mb", 120.0),
)


def select(names: Sequence[str]) -> tuple[Workload, ...]:
    """The rows with these names in the table's order; all of them for none. Raises ValueError for an unknown name."""
    known = [w.name for w in WORKLOADS]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no workload {', '.join(unknown)}; there are {', '.join(known)}")
    return tuple(w for w in WORKLOADS if not names or w.name in names)


def groups(workloads: Sequence[Workload]) -> Iterator[tuple[Speed, Tokenizer, tuple[Workload, ...]]]:
    """Workloads that can share running servers: one engine speed, one tokenizer."""
    keys = dict.fromkeys((w.speed, w.tokenizer) for w in workloads)
    for speed, tokenizer in keys:
        yield speed, tokenizer, tuple(w for w in workloads if (w.speed, w.tokenizer) == (speed, tokenizer))


def prompts(words: Sequence[str], tokens: int, count: int, seed: str) -> list[str]:
    """`count` texts nobody has seen before, of one token a word: the same ones for the same seed."""
    source = random.Random(seed)
    return [" ".join(source.choices(words, k=max(1, tokens))) for _ in range(count)]
