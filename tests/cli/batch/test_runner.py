"""Many entries at once: bounded, in order where that is asked for, and each written once."""

import asyncio
import random

import pytest

from dynamo.cli.batch.input_lines import Entry, Prompt
from dynamo.cli.batch.output_lines import Outcome
from dynamo.cli.batch.progress import bar_text
from dynamo.cli.batch.runner import AHEAD, ask_all


class Answers:
    """Answers after as many turns of the loop as chance says, and remembers how many were open."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.open = self.most = self.started = 0
        self.written: list[int] = []
        self.furthest = 0

    async def answer(self, entry: Entry) -> Outcome:
        self.open += 1
        self.started = max(self.started, entry.number)
        self.most = max(self.most, self.open)
        self.furthest = max(self.furthest, self.started - len(self.written))
        for _ in range(self._random.choice((0, 0, 1, 5, 100))):
            await asyncio.sleep(0)
        self.open -= 1
        return Outcome(entry.number, {})

    def write(self, outcome: Outcome) -> None:
        self.written.append(outcome.number)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_each_entry_is_written_once(seed: int, ordered: bool) -> None:
    """All are answered, never more than allowed at once; in the input's order where asked; memory stays bounded."""
    answers = Answers(seed)
    entries = [Prompt(number, "") for number in range(1, 301)]
    asyncio.run(ask_all(entries, answers.answer, answers.write, concurrency=7, ordered=ordered))
    assert sorted(answers.written) == list(range(1, 301))
    assert answers.most == 7
    assert answers.furthest <= 7 * AHEAD
    assert (answers.written == sorted(answers.written)) is ordered


def test_a_full_disk_ends_the_run() -> None:
    """What `write` raises comes out as it is, and nothing goes on behind it."""

    def full(outcome: Outcome) -> None:
        raise OSError("no space")

    answers = Answers(0)
    entries = [Prompt(number, "") for number in range(300)]
    with pytest.raises(OSError, match="no space"):
        asyncio.run(ask_all(entries, answers.answer, full, concurrency=3, ordered=False))


def test_progress_is_told_with_its_rate() -> None:
    """Where there is no terminal, a line says how far it is, how fast, and how long it will take."""
    assert bar_text(600, 1000, 400, 10.0) == "batch: 600 of 1000 lines (40.0/s, about 10 s left)"
    assert bar_text(0, 1000, 0, 5.0) == "batch: 0 of 1000 lines (0.0/s)"
