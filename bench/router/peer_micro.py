"""What ai-dynamo's index costs as Python sees it; run by the Python that has it, so nothing of ours is imported.

Prints one JSON object: microseconds of CPU, of all threads, to name a prompt and find its holders, by workers; blocks a
second of events that store and remove. Prompts, holders and events are those of `micro.py`.
"""

import importlib
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

RUNS = 7
PROMPT_TOKENS = 8192
BLOCK = 64
WORKERS = (1, 8, 64, 512)
SIZES = (1, 8, 128)


def stored(number: int, hashes: list[int], parent: int | None) -> bytes:
    """An event; the engine's own hashes are made of the place and the block's."""
    blocks = [{"block_hash": name, "tokens_hash": name} for name in hashes]
    return event(number, {"stored": {"parent_hash": parent, "blocks": blocks}})


def event(number: int, data: dict[str, Any]) -> bytes:
    return json.dumps({"event_id": number, "data": data, "dp_rank": 0}).encode()


def cpu(work: Callable[[], object], times: int) -> float:
    """Microseconds of one call."""
    runs = []
    for _ in range(RUNS):
        begin = time.process_time()
        for _ in range(times):
            work()
        runs.append((time.process_time() - begin) / times)
    return statistics.median(runs) * 1e6


def finding(llm: Any, tokens: list[int], workers: int) -> float:
    """Half of the workers hold all of the prompt, the others half of it."""
    tree, hashes = llm.RadixTree(), llm.compute_block_hash_for_seq(tokens, BLOCK)
    for worker in range(workers):
        tree.apply_event(worker, stored(0, hashes[: len(hashes) // (1 + worker % 2)], None))
    return cpu(lambda: tree.find_matches(llm.compute_block_hash_for_seq(tokens, BLOCK)), 50)


def hearing(llm: Any, size: int) -> float:
    """Steps of eight workers that store and remove so many blocks each."""
    numbers, tree = random.Random(4), llm.RadixTree()
    held = []
    for worker in range(8):
        held.append([numbers.getrandbits(63) for _ in range(2_000)])
        for at in range(0, 2_000, size):
            tree.apply_event(worker, stored(at, held[worker][at : at + size], None))
    events = []
    for number in range(8_000 // size):
        worker = number % 8
        old, held[worker] = held[worker][:size], held[worker][size:]
        events.append((worker, stored(number, [numbers.getrandbits(63) for _ in range(size)], None)))
        events.append((worker, event(number, {"removed": {"block_hashes": old}})))
    begin = time.process_time()
    for worker, data in events:
        tree.apply_event(worker, data)
    return size * len(events) / (time.process_time() - begin)


def main() -> None:
    """Measure everything."""
    llm: Any = importlib.import_module("dynamo.llm")
    tokens = random.Random(1).choices(range(32_000), k=PROMPT_TOKENS)
    found = {f"name and find, {workers} workers": finding(llm, tokens, workers) for workers in WORKERS}
    found |= {f"events of {size} blocks": hearing(llm, size) for size in SIZES}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
