"""Requests at a fixed rate, whatever becomes of them, and the clients' own standing still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from bench.chaos.asks import CHAT, TEXTS, Ask, draw, make
from bench.chaos.client import Client
from bench.chaos.oracle import Record, Window
from bench.chaos.processes import Part

MOST: Final = 64
"""Requests that are open at the same time."""
_TICK: Final = 0.1
_STALL: Final = 0.4
_STRAY: Final = 0.03
"""Share of requests that go to a frontend although it isn't there, as those of a slow load balancer."""
_GONE: Final = ("kill", "leave", "gone", "died")


class Traffic:
    """Sends, and keeps the records. `windows` is what the faults are doing: nobody asks a frontend that is away."""

    def __init__(self, frontends: Sequence[Part], windows: Sequence[Window], clock: Callable[[], float]) -> None:
        self._frontends, self._windows, self._clock = frontends, windows, clock
        self._client = Client(clock)
        self.records: list[Record] = []
        self.stalls: list[Window] = []
        self.not_sent = 0
        self._open = 0

    async def run(self, seed: int, rate: float, seconds: float) -> None:
        """Send for `seconds`; returns when every request has ended or was given up."""
        random, number, begun = Random(f"traffic {seed}"), len(self.records), time.monotonic()
        async with asyncio.TaskGroup() as group:
            due = begun
            while due < begun + seconds:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                ask, due, number = draw(random, number), due + random.expovariate(rate), number + 1
                part = self._choose(random)
                if self._open >= MOST:
                    self.not_sent += 1
                    continue
                self._open += 1
                group.create_task(self._one(ask, part))

    async def check(self, count: int) -> None:
        """A few of each kind, one after the other, to each frontend: nothing may be wrong with them."""
        for part in self._frontends:
            for at in range(count):
                number = len(self.records)
                ask = make(number, (CHAT, TEXTS)[at % 2], f"afterwards {at}", 20, stream=at % 4 > 1, seed=number)
                self._open += 1
                await self._one(ask, part)

    async def _one(self, ask: Ask, part: Part) -> None:
        try:
            self.records.append(await self._client.send(ask, part.name, part.port))
        finally:
            self._open -= 1

    def _choose(self, random: Random) -> Part:
        now, stray, first = self._clock(), random.random() < _STRAY, random.randrange(len(self._frontends))
        away = {window.target for window in self._windows if window.what in _GONE and window.start <= now <= window.end}
        rotated = [*self._frontends[first:], *self._frontends[:first]]
        return next((part for part in rotated if stray or part.name not in away), rotated[0])

    async def watch(self) -> None:
        """Note when this process itself stood still. Runs until it is cancelled."""
        last = self._clock()
        while True:
            await asyncio.sleep(_TICK)
            now = self._clock()
            if now - last > _TICK + _STALL:
                self.stalls.append(Window("clients", "stall", last, now))
            last = now
