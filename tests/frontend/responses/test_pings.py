"""A sign of life for each silent answer, and nobody else waits for it."""

from __future__ import annotations

import asyncio

import pytest

from dynamo.frontend.responses.pings import TURN, Pings

COST = TURN / 64
"""Seconds that one answer takes, by a clock that only it moves."""


class Answer:
    """One that counts how often it was looked at."""

    def __init__(self, told: list[Answer], fails: bool = False) -> None:
        self._told, self._fails = told, fails

    def still_here(self) -> None:
        self._told.append(self)
        if self._fails:
            raise ConnectionError("its client is gone")


async def test_many_answers_are_told_in_turns() -> None:
    """Each once a look, some in a turn of the loop, also behind one that fails; what can't be told isn't."""
    told: list[Answer] = []
    answers = [Answer(told, fails=number == 7) for number in range(640)]
    pings = Pings([object(), *answers], 0.01, lambda: len(told) * COST)
    turns, longest = 0, 0
    async with asyncio.timeout(10):
        while len(told) < len(answers):
            before = len(told)
            await asyncio.sleep(0)
            turns, longest = turns + (len(told) > before), max(longest, len(told) - before)
    assert set(told) == set(answers)
    assert (turns, longest) == (10, 64)
    pings.stop()


async def test_who_is_stopped_looks_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """Also in the middle of a look."""
    told: list[Answer] = []
    pings = Pings([Answer(told) for _ in range(640)], 0.0, lambda: len(told) * COST)
    for _ in range(4):
        await asyncio.sleep(0)
    pings.stop()
    before = len(told)
    await asyncio.sleep(0.05)
    assert 0 < before == len(told) < 640
    assert caplog.records == []
