"""Whether the writers of all APIs say the same of one text, cut at random: `PYTHONPATH=. .venv/bin/python -m
bench.micro.cuts --count 10000`. Ends with 1 and the text, its pieces and its seed where two of them differ.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from typing import Final

from tests.frontend.responses.test_event_writers import HARMONY, HERMES, RECORDED, said

PARTS: Final = {
    ("qwen3", "hermes"): (
        "<think>", "</think>", HERMES, "<tool_call>", "</tool_call>", "\n", "a", "é😀", '"\\', "text ",
    ),
    ("gpt_oss", "harmony"): (
        "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|end|>", "<|start|>assistant", HARMONY,
        "Hm. ", "é😀", "\n",
    ),
    ("", ""): ("<think>", HERMES, "é😀", '"\\', "text ", "\n"),
}  # fmt: skip
"""By the parsers of a family: what made-up answers consist of."""


def drawn(rng: random.Random) -> tuple[tuple[str, str], list[str], str]:
    """Return a recorded or made-up answer of a family, in pieces, and how it ends."""
    parsers = rng.choice([*PARTS])
    if rng.random() < 0.4:
        text = rng.choice(RECORDED[parsers])
    else:
        text = "".join(rng.choices(PARTS[parsers], k=rng.randint(0, 12)))
    places = sorted({0, len(text), *(rng.randint(0, len(text)) for _ in range(rng.randint(1, 20)))})
    pieces = [text[begin:end] for begin, end in itertools.pairwise(places)]
    return parsers, pieces, rng.choice(("stop", "length", "none"))


def main() -> None:
    """Cut so many texts, and say how many agreed."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--count", type=int, default=10_000)
    asked.add_argument("--seed", type=int, default=0)
    options = asked.parse_args()
    rng = random.Random(options.seed)
    for number in range(options.count):
        parsers, pieces, finish = drawn(rng)
        try:
            said(parsers, pieces, finish)
        except AssertionError as error:
            print(f"cut {number} of seed {options.seed} ({parsers}, {finish}): {pieces!r}\n{error}")
            sys.exit(1)
    print(f"{options.count} random cuts of seed {options.seed}: all writers say the same")


if __name__ == "__main__":
    main()
