"""Measures names of KV blocks, events and the index alone: what one routing decision and one event cost the frontend.

Run: python bench/micro/kv.py
Prints one line per figure; times are the median of seven runs of CPU time on this thread, memory is traced.
"""

from __future__ import annotations

import random
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from dynamo.llm.kv.block_hash import block_hashes, sequence_hashes
from dynamo.llm.kv.cost import Weights
from dynamo.llm.kv.index import SECONDS, KvIndex, Rank
from dynamo.llm.kv.messages import KvStep, Part, Sender, decode_step
from dynamo.llm.kv.scheduler import KvScheduler
from dynamo.llm.kv_events.reader import EventReader
from dynamo.llm.kv_events.replica_protocol import ReplicaReceiver, ReplicaSender, decode_message

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
    for size in (1, 8, 128):
        hearing(size)
    catching_up()
    for prompt in (256, PROMPT_TOKENS):
        placing(prompt)
        sharing(prompt)
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


def hearing(size: int) -> None:
    """Messages of eight full workers, from bytes to the index: each step stores and removes so many blocks."""
    say, hear = heard(size)
    show(f"say, {size} stored and removed a step", say, "us/step")
    show(f"hear and apply, {size} stored and removed a step", hear, "us/step")
    print(f"{'  that is':45} {2 * size / hear:10.0f} blocks/s")


def heard(size: int) -> tuple[float, float]:
    """Seconds of CPU for such a step: the worker that says it, the frontend that hears it."""
    numbers = random.Random(4)
    sends = [Sender() for _ in range(8)]
    followed = [EventReader() for _ in sends]
    made = router()
    held: list[list[int]] = []
    for worker, sender in enumerate(sends):
        held.append([numbers.getrandbits(64) for _ in range(10_000)])
        sender.step(KvStep(held[-1]), worker, MILLION)
        apply(made, worker, followed[worker], sender.snapshot([0, 0], MILLION))
    steps = []
    for number in range(40_000 // size):
        worker = number % 8
        fresh, old = [numbers.getrandbits(64) for _ in range(size)], held[worker][:size]
        held[worker] = held[worker][size:] + fresh
        steps.append(KvStep(fresh, old))
    begin = time.thread_time()
    messages = [data for number, step in enumerate(steps) for data in sends[number % 8].step(step, number % 8, MILLION)]
    said = (time.thread_time() - begin) / len(steps)
    begin = time.thread_time()
    for data in messages:
        step = decode_step(data)
        for told in followed[step.worker].heard(step):
            made.apply(step.worker, told)
    seconds = time.thread_time() - begin
    assert not any(one.behind for one in followed)
    return said, seconds / len(messages)


def catching_up() -> None:
    """A snapshot of 100,000 blocks: what it costs the worker, and the frontend that already had most of it."""
    numbers = random.Random(5)
    sender, made, following = Sender(), router(), EventReader()
    sender.step(KvStep([numbers.getrandbits(64) for _ in range(100_000)]), 0, MILLION)

    def ask() -> list[Part]:
        first = sender.snapshot([0, 0], MILLION)
        return [first, *(sender.snapshot([part, first.parts], MILLION) for part in range(1, first.parts))]

    def take(parts: list[Part]) -> None:
        following.lost()
        for part in parts:
            apply(made, 0, following, part)
        while made.index.sweep():
            pass

    show("snapshot of 100,000 blocks, the worker", cpu(ask, 1), "us")
    parts = ask()
    show("snapshot of 100,000 blocks, the frontend", cpu(lambda: take(parts), 1), "us")


def placing(prompt: int) -> None:
    """A request's whole life in the router, eight workers, half of its prompt cached on one of them."""
    made, tokens, ranks = router(), list(range(prompt)), [Rank(number) for number in range(8)]
    names = made.prompt(tokens).hashes
    for rank in ranks:
        made.follow(rank.instance)
    made.apply(0, KvStep(names[: len(names) // 2]))

    def live() -> None:
        made.place("x", made.prompt(tokens), ranks, 0.0)
        made.prefilled("x")
        made.ended("x")

    show(f"a request of {prompt} tokens in the router", cpu(live, 500), "us")


def sharing(prompt: int) -> None:
    """The same request, told to another frontend: what it costs both, each event in a message of its own."""
    made, names = router(), router().prompt(range(prompt)).hashes
    speaker, listener = ReplicaSender(1), ReplicaReceiver(2, {0: made}.get)
    speaker.everything()

    def say() -> list[bytes]:
        number = speaker.added(Rank(0), names, prompt)
        said = list(speaker.take(MILLION))
        speaker.prefilled(number)
        said += speaker.take(MILLION)
        speaker.freed(number)
        return said + list(speaker.take(MILLION))

    def hear(count: int) -> float:
        messages = [data for _ in range(count) for data in say()]
        begin = time.thread_time()
        for data in messages:
            listener.heard(decode_message(data), 0.0)
        return (time.thread_time() - begin) / count

    show(f"a request of {prompt} tokens, told", cpu(say, 500), "us")
    show(f"a request of {prompt} tokens, heard", statistics.median(hear(500) for _ in range(RUNS)), "us")


def router() -> KvScheduler:
    return KvScheduler(BLOCK, Weights(), 0.0, random.Random(6).random, SECONDS)


def apply(made: KvScheduler, worker: int, following: EventReader, part: Part) -> None:
    following.ask()
    for told in following.answered(part):
        made.apply(worker, told)


def holding(workers: int) -> None:
    show(f"memory, {workers} workers", bytes_per_block(workers) * 1e-6, "bytes/block")


def bytes_per_block(workers: int) -> float:
    """Of an index with a million blocks, each with one worker of so many."""
    numbers = random.Random(3)
    tracemalloc.start()
    index = KvIndex()
    for number in range(workers):
        index.store(Rank(number), (numbers.getrandbits(64) for _ in range(MILLION // workers)))
    found = tracemalloc.get_traced_memory()[0] / len(index)
    tracemalloc.stop()
    return found


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
