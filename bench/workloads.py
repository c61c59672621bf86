"""The workloads of the comparison, as data.

The letters are those of the project's performance notes: a prompt of so many tokens, so many tokens out, so many
requests at once, an engine at real speed or infinitely fast. `run.py` reads this table, `client.py` is given one row
of it, and `bench/RESULTS.md` explains the rows. Pure: nothing here touches a clock or a socket.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
    total_bar: float | None = None
    """Of the CPU time of all processes, ours to the peer's."""
    workers: int = 2
    wave_seconds: float = 0.0
    """Requests go out together, in waves that begin so many seconds apart; 0: each follows the one before."""
    long_tokens: int = 0
    """Tokens in of every tenth request; 0: as the others."""
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
        {"name": "p", **real, "at_once": 64, "requests": 192, "bar": 0.40, "total_bar": 0.45, "note": "64 streams"},
        {"name": "q", **real, "at_once": 8, "requests": 40, "bar": 0.75, "total_bar": 0.65, "note": "8 streams"},
        {"name": "P", **real, "at_once": 256, "requests": 512, "bar": 0.41, "total_bar": 0.40, "note": "256 streams"},
        {
            "name": "d",
            "tokens_in": 64,
            "tokens_out": 512,
            "at_once": 64,
            "requests": 256,
            "metric": "us/token",
            "bar": 0.40,
            "total_bar": 0.35,
            "note": "firehose: 64 streams, infinitely fast engine",
        },
        {"name": "r", **one, "at_once": 32, "requests": 3000, "bar": 0.45, "total_bar": 0.40, "note": "one token"},
        {"name": "a", **short, "bar": 0.40, "total_bar": 0.35, "note": "64 in, 64 out, streamed"},
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
            "total_bar": 0.55,
            "tokenizer": "fastokens",
            "note": "8,000 tokens in",
        },
        {"name": "rf", **one, "at_once": 32, "requests": 3000, "bar": None, "tokenizer": "fastokens", "note": "as r"},
        {"name": "af", **short, "bar": None, "tokenizer": "fastokens", "note": "as a"},
        {"name": "bf", **short, "bar": None, "tokenizer": "fastokens", "stream": False, "note": "as b"},
        *_whole_system(),
    ]
    return tuple(Workload(**row) for row in rows)  # type: ignore[arg-type]


def _whole_system() -> list[dict[str, object]]:
    """Rows by which the whole system is judged: bursts, one worker and four, long prompts, a rest before a request."""
    real = {"tokens_in": 64, "metric": "us/token", "speed": "real", "bar": None}
    return [
        {
            "name": "u", **real, "tokens_out": 64, "at_once": 256, "requests": 1280, "wave_seconds": 2.0,
            "note": "bursts of 256, every two seconds",
        },
        {"name": "w", **real, "tokens_out": 256, "at_once": 256, "requests": 512, "workers": 1, "note": "one worker"},
        {
            "name": "W", **real, "tokens_out": 128, "at_once": 1024, "requests": 2048, "workers": 4,
            "note": "1,024 streams over four workers",
        },
        {
            "name": "m", "tokens_in": 64, "tokens_out": 32, "at_once": 16, "requests": 400, "metric": "ms/request",
            "bar": None, "long_tokens": 8000, "tokenizer": "fastokens", "note": "every tenth prompt has 8,000 tokens",
        },
        {
            "name": "l", "tokens_in": 32000, "tokens_out": 16, "at_once": 4, "requests": 40, "metric": "ms/request",
            "bar": None, "tokenizer": "fastokens", "note": "32,000 tokens in",
        },
        {
            "name": "i", "tokens_in": 64, "tokens_out": 1, "at_once": 1, "requests": 8, "metric": "ms/request",
            "bar": None, "wave_seconds": 5.0, "note": "a request after five seconds of rest",
        },
    ]  # fmt: skip


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


class Group(NamedTuple):
    """What workloads must have in common to share running servers."""

    speed: Speed
    tokenizer: Tokenizer
    workers: int


def groups(workloads: Sequence[Workload]) -> Iterator[tuple[Group, tuple[Workload, ...]]]:
    """Workloads that can share running servers."""
    of = {w.name: Group(w.speed, w.tokenizer, w.workers) for w in workloads}
    for group in dict.fromkeys(of.values()):
        yield group, tuple(w for w in workloads if of[w.name] == group)


def prompts(words: Sequence[str], tokens: int, count: int, seed: str, long_tokens: int = 0) -> list[str]:
    """`count` texts nobody has seen before, of one token a word: the same ones for the same seed.

    Every tenth has `long_tokens`, where that isn't 0.
    """
    source = random.Random(seed)
    sizes = [long_tokens if long_tokens and number % 10 == 9 else max(1, tokens) for number in range(count)]
    return [" ".join(source.choices(words, k=size)) for size in sizes]
