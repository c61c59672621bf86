"""Frontend and worker while others beside them come and go: the soak's first half.

The site, its traffic and its oracle are those of the chaos run. One frontend and one worker live from the first to the
last minute, and are read; the others leave, are killed and come back in turns, and now and then etcd and NATS do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from bench.chaos import readings
from bench.chaos.faults import BACK, Faults
from bench.chaos.oracle import Facts, judge
from bench.chaos.processes import Part, Site, until
from bench.chaos.run import known, template_tokens
from bench.chaos.schedule import Fault
from bench.chaos.traffic import Traffic
from bench.soak.growth import Readings

STAY: Final = ("frontend-1", "worker-1")
"""What lives all the time."""
COME_AND_GO: Final = ("worker-2", "frontend-2", "worker-3", "worker-4")
SERVERS: Final = ("nats", "etcd")
EVERY: Final = 20.0
"""Seconds from one that goes to the next."""
SERVER_EACH: Final = 10
"""Each tenth time a server is killed instead."""
AWAY: Final = 1.0
TOLD_EACH: Final = 30
"""Readings after which the last one is shown."""
QUIET: Final = 30.0
"""Seconds at the end in which nothing happens, so that all is as it was."""
SEED: Final = 2
"""KV routing, whose index is told of every worker that comes and goes."""


def churn(seconds: float) -> list[Fault]:
    """Who goes when, and how: each in turn, now by itself and next time outright. Pure."""
    names, servers = itertools.cycle(COME_AND_GO), itertools.cycle(SERVERS)
    faults: list[Fault] = []
    for number in itertools.count(1):
        at = number * EVERY
        if at + AWAY > seconds - QUIET:
            return faults
        if number % SERVER_EACH == 0:
            faults.append(Fault(at, "kill", next(servers), AWAY))
        else:
            kind = ("leave", "kill")[number // len(COME_AND_GO) % 2]
            faults.append(Fault(at, kind, next(names), AWAY))
    raise AssertionError("a count has no end")


async def soak(folder: Path, seconds: float, rate: float, sample: float, say: Callable[[str], None]) -> Serving:
    """Run it; raises `TimeoutError` where something doesn't even start."""
    site = Site(SEED, folder)
    try:
        site.start()
        await site.ready(BACK)
        await until("both frontends know all workers", lambda: known(site), BACK)
        return await Serving(site, say).run(seconds, rate, sample)
    finally:
        await asyncio.to_thread(site.close)


class Serving:
    """One run, with what was read and what was wrong."""

    def __init__(self, site: Site, say: Callable[[str], None]) -> None:
        self._site, self._say, self._began = site, say, time.monotonic()
        self._faults = Faults(site, self._clock, say)
        self._traffic = Traffic(site.of("frontend"), self._faults.windows, self._clock)
        self.readings = Readings()
        self.violations: list[str] = []
        self.requests = 0

    def _clock(self) -> float:
        return time.monotonic() - self._began

    async def run(self, seconds: float, rate: float, sample: float) -> Serving:
        overhead = await template_tokens(self._site, self._clock)
        beside = [asyncio.ensure_future(work) for work in (self._faults.watch(), self._traffic.watch())]
        beside.append(asyncio.ensure_future(self._read(sample)))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._traffic.run(SEED, rate, seconds))
                group.create_task(self._faults.run(churn(seconds)))
        finally:
            for task in beside:
                task.cancel()
            ended = await asyncio.gather(*beside, return_exceptions=True)
        if failed := [error for error in ended if isinstance(error, Exception)]:
            raise failed[0]
        records = self._traffic.records
        self.requests = len(records)
        facts = Facts(self._faults.windows, self._traffic.stalls, overhead)
        self.violations = [str(violation) for violation in [*self._faults.violations, *judge(records, facts)]]
        return self

    async def _read(self, sample: float) -> None:
        looks: list[Callable[[float], None]] = [partial(self._note, self._site.parts[name]) for name in STAY]
        looks.append(self._note_servers)
        for number in itertools.count(1):
            await asyncio.sleep(sample)
            if number % TOLD_EACH == 0:
                self._say(self.readings.line())
            for look in looks:
                with contextlib.suppress(OSError, KeyError):  # one that is away for a moment; `judged` counts them
                    await asyncio.to_thread(look, self._clock())

    def _note_servers(self, now: float) -> None:
        there = readings.servers(self._site)
        listened = sum(map(len, there.subjects))
        self.readings.add(now, "etcd", keys=len(there.keys))
        self.readings.add(now, "nats", connections=len(there.subjects), subscriptions=listened)

    def _note(self, part: Part, now: float) -> None:
        held = readings.held(part)
        self.readings.add(
            now, part.name, megabytes=held.megabytes, files=held.files, threads=held.threads, tasks=held.tasks
        )
