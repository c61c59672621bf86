"""Measures names of KV blocks and the index alone: what one routing decision and one event cost the frontend.

Run: python bench/micro_kv.py
Prints one line per figure; times are the median of seven runs of CPU time on this thread, memory is traced.
"""

from __future__ import annotations

import random
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from dynamo.llm.kv.hashing import block_hashes, sequence_hashes
from dynamo.llm.kv.index import KvIndex, Rank

RUNS = 7
PROMPT_TOKENS = 8192
BLOCK = 64
MILLION = 1_000_000


def main() -> None:
    """Measure everything."""
    tokens = random.Random(1).choices(range(32_000), k=PROMPT_TOKENS)
    show(f"name {PROMPT_TOKENS} tokens, block {BLOCK}", cpu(partial(name, tokens), 200), "us")
    for workers in (1, 8, 64, 512, 1000):
        deciding(tokens, workers)
    for size in (1, 8, 128):
        storing(size)
    for workers in (8, 1000):
        holding(workers)


def name(tokens: list[int]) -> list[int]:
    return sequence_hashes(block_hashes(tokens, BLOCK))


def deciding(tokens: list[int], workers: int) -> None:
    """A prompt that everybody holds to the end, and one that half of them hold to the middle."""
    names = name(tokens)
    full, half = KvIndex(), KvIndex()
    for number in range(workers):
        full.store(Rank(number), names)
        half.store(Rank(number), names[: len(names) // (1 + number % 2)])
    for title, index in (("all hold all", full), ("half hold half", half)):
        show(f"find, {workers} workers, {title}", cpu(partial(index.find, names), 200), "us")
    show(f"name and find, {workers} workers", cpu(lambda: half.find(name(tokens)), 100), "us")


def storing(size: int) -> None:
    """Events of so many blocks each, from eight workers, as numbers that nobody had."""
    numbers = random.Random(2)
    events = [(Rank(i % 8), [numbers.getrandbits(64) for _ in range(size)]) for i in range(80_000 // size)]

    def apply() -> None:
        index = KvIndex()
        for rank, names in events:
            index.store(rank, names)

    show(f"store, {size} blocks an event", cpu(apply, 1) / (len(events) * size), "us/block")


def holding(workers: int) -> None:
    """A million blocks, each with one worker of so many."""
    numbers = random.Random(3)
    tracemalloc.start()
    index = KvIndex()
    for number in range(workers):
        index.store(Rank(number), (numbers.getrandbits(64) for _ in range(MILLION // workers)))
    show(f"memory, {workers} workers", tracemalloc.get_traced_memory()[0] / len(index) * 1e-6, "bytes/block")
    tracemalloc.stop()


def cpu(work: Callable[[], object], times: int) -> float:
    """Seconds of CPU for one call."""
    runs = []
    for _ in range(RUNS):
        begin = time.thread_time()
        for _ in range(times):
            work()
        runs.append((time.thread_time() - begin) / times)
    return statistics.median(runs)


def show(title: str, seconds: float, unit: str) -> None:
    print(f"{title:45} {seconds * 1e6:10.2f} {unit}")


if __name__ == "__main__":
    main()
