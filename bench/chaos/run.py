"""One seed's run, from an empty folder to its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.chaos import readings
from bench.chaos.asks import CHAT, make
from bench.chaos.client import Client
from bench.chaos.faults import BACK, Faults
from bench.chaos.leaks import Held, Servers, changed, left_over
from bench.chaos.oracle import RECOVERY, Facts, Violation, judge
from bench.chaos.processes import Site, until
from bench.chaos.report import Outcome
from bench.chaos.schedule import APART, Fault, schedule
from bench.chaos.traffic import Traffic

SETTLE: Final = 60.0
"""Seconds within which everything is as it was: the longest time that something is kept for somebody who died."""
CALM: Final = RECOVERY + 4.0
"""Seconds of traffic after the last fault."""
_SHOWN: Final = 50


@dataclass(frozen=True)
class Options:
    """How a run is made."""

    seconds: float
    rate: float
    apart: bool
    """It has a network of its own."""
    every: float
    """Seconds from fault to fault, at the mean."""
    warm: float
    """Seconds of traffic before everything is measured for the first time."""


async def run(seed: int, folder: Path, options: Options, say: Callable[[str], None]) -> Outcome:
    """Start everything, do what the seed says, stop everything. Raises `TimeoutError` where it doesn't even start."""
    site = Site(seed, folder)
    try:
        site.start()
        await site.ready(BACK)
        return await _Run(seed, site, options, say).run()
    finally:
        await asyncio.to_thread(site.close)


class _Run:
    def __init__(self, seed: int, site: Site, options: Options, say: Callable[[str], None]) -> None:
        self._seed, self._site, self._options, self._say = seed, site, options, say
        self._began = time.monotonic()
        self._faults = Faults(site, self._clock, say)
        self._traffic = self._new_traffic()
        pools = ", prefill and decode pools" if site.pools else ""
        network = "" if options.apart else ", no faults of the network"
        self._outcome = Outcome(seed, options.seconds, f"--router-mode {site.mode}{pools}{network}")

    def _clock(self) -> float:
        return time.monotonic() - self._began

    def _new_traffic(self) -> Traffic:
        return Traffic(self._site.of("frontend"), self._faults.windows, self._clock)

    async def run(self) -> Outcome:
        outcome, options = self._outcome, self._options
        overhead = await self._warm_up()
        outcome.first, servers = await self._settled(None)
        self._say(f"seed {self._seed}: {outcome.about}; ready, faults begin")
        self._began = time.monotonic()
        traffic = self._traffic = self._new_traffic()
        faults = self._planned()
        async with _beside(self._faults.watch(), traffic.watch()), asyncio.TaskGroup() as group:
            group.create_task(traffic.run(self._seed, options.rate, options.seconds))
            group.create_task(self._faults.run(faults))
        await self._afterwards(traffic, servers)
        outcome.faults, outcome.records, outcome.not_sent = self._faults.done, traffic.records, traffic.not_sent
        outcome.facts = Facts(self._faults.windows, traffic.stalls, overhead)
        outcome.violations += [*self._faults.violations, *judge(traffic.records, outcome.facts)]
        outcome.violations.sort(key=lambda one: one.at)
        return outcome

    def _planned(self) -> list[Fault]:
        without = () if self._options.apart else APART
        seconds = self._options.seconds - CALM
        return schedule(self._seed, seconds, list(self._site.parts), every=self._options.every, without=without)

    async def _warm_up(self) -> int:
        """Traffic that fills what is filled once; the tokens that the chat template adds."""
        await until("both frontends know all workers", lambda: known(self._site), BACK)
        added = await template_tokens(self._site, self._clock)
        await self._traffic.run(-self._seed, self._options.rate, self._options.warm)
        return added

    async def _afterwards(self, traffic: Traffic, servers: Servers) -> None:
        """All is well again: requests are answered, and nothing is left of those before."""
        outcome = self._outcome
        with contextlib.suppress(TimeoutError):
            await until("both frontends know all workers", lambda: known(self._site), SETTLE)
        await traffic.check(5)
        began = time.monotonic()
        outcome.last, _ = await self._settled(servers)
        outcome.settled = None if outcome.violations else time.monotonic() - began

    async def _settled(self, servers: Servers | None) -> tuple[Sequence[Held], Servers]:
        """What all hold once nothing is left of the requests; what is left after `SETTLE` seconds is a violation."""
        deadline, problems = time.monotonic() + SETTLE, ["nothing could be read"]
        found: tuple[Sequence[Held], Servers] | None = None
        while problems and time.monotonic() < deadline:
            await asyncio.sleep(1.0)
            try:
                found = now, there = await asyncio.to_thread(self._read)
            except OSError as error:
                problems = [str(error)]
                continue
            problems = left_over(self._outcome.first or now, now)
            problems += changed(servers or there, there, readings.instances(self._site))
        if found is None or (servers is None and problems):
            raise TimeoutError(f"not at rest {'after all' if servers else 'before anything'} was done: {problems}")
        self._outcome.violations += [Violation("leak", self._clock(), problem) for problem in problems[:_SHOWN]]
        return found

    def _read(self) -> tuple[Sequence[Held], Servers]:
        parts = [*self._site.of("worker"), *self._site.of("frontend")]
        return [readings.held(part) for part in parts], readings.servers(self._site)


def known(site: Site) -> bool:
    """Whether every frontend can route to every worker."""
    wanted = len(site.of("worker"))
    return all(readings.instances_of(part.port) == wanted for part in site.of("frontend"))


async def template_tokens(site: Site, clock: Callable[[], float]) -> int:
    """The tokens that the chat template adds to a prompt; raises `TimeoutError` where nothing is answered."""
    part = site.of("frontend")[0]
    record = await Client(clock).send(make(0, CHAT, "x", 1, stream=False), part.name, part.port)
    if record.usage is None:
        raise TimeoutError(f"the first request failed: {record.status} {record.errors} {record.broken}")
    return int(record.usage["prompt_tokens"]) - 1


@contextlib.asynccontextmanager
async def _beside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run the works until the block is left; what one of them raises is raised here."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
