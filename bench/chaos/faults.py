"""Doing the faults of a schedule to the processes of a site, and saying what was done when."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from bench.chaos import network
from bench.chaos.oracle import Violation, Window
from bench.chaos.processes import GRACE, Part, Site, until
from bench.chaos.schedule import Fault

BACK: Final = 90.0
"""Seconds that a process may take to serve again, on a busy machine."""
LEAVING: Final = GRACE + 30.0
ACCEPTS: Final = 5.0
"""Seconds for which a frontend that leaves goes on accepting, at least."""
_REPLACING = ("kill", "empty", "leave")
_RUN, _STAND = 0.03, 0.06
"""A slowed process runs and stands still for so long, in turns."""


class Faults:
    """Runs faults side by side. `windows` is what the oracle is told; `violations` what a process did wrong itself."""

    def __init__(self, site: Site, clock: Callable[[], float], say: Callable[[str], None]) -> None:
        self._site, self._clock, self._say = site, clock, say
        self.windows: list[Window] = []
        self.violations: list[Violation] = []
        self.done: list[Fault] = []
        self._replaced: set[str] = set()
        """Parts that are being ended and started again."""

    async def run(self, faults: list[Fault]) -> None:
        """All of them, each at its time; returns when everything is as before."""
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, fault.at - self._clock()))
                group.create_task(self._one(fault))

    async def _one(self, fault: Fault) -> None:
        part = self._site.parts[fault.target]
        if part.code is not None or part.name in self._replaced:
            return  # not back yet from what was before, on a machine that stood still
        self._say(f"{fault}")
        self.done.append(fault)
        async with self._window(part, fault) as window:
            if fault.kind in _REPLACING:
                self._replaced.add(part.name)
            if fault.kind in ("kill", "empty"):
                await self._kill(part, fault, window)
            elif fault.kind == "leave":
                await self._leave(part, fault)
            elif fault.kind == "pause":
                await _pause(part, fault.seconds)
            elif fault.kind == "slow":
                await _slow(part, fault.seconds)
            else:
                await self._cut(part, fault)

    @contextlib.asynccontextmanager
    async def _window(self, part: Part, fault: Fault) -> AsyncIterator[Window]:
        window = Window(part.name, fault.kind, self._clock(), late=fault.kind in ("pause", "slow"))
        self.windows.append(window)
        try:
            yield window
        except TimeoutError as error:
            self.violations.append(Violation("not back", self._clock(), f"{part.name} after {fault}: {error}"))
        finally:
            window.end = self._clock() + (0.5 if window.late else 0.0)
            if fault.kind in _REPLACING:
                self._replaced.discard(part.name)

    async def _kill(self, part: Part, fault: Fault, window: Window) -> None:
        if part.name == "etcd":
            await until("etcd serves", lambda: healthy(part), BACK)  # half a data folder would never serve again
        window.dead = True
        await asyncio.to_thread(part.kill)
        await asyncio.sleep(fault.seconds)
        if fault.kind == "empty":
            self._site.empty_etcd()
        await self._again(part)

    async def _leave(self, part: Part, fault: Fault) -> None:
        # Before it serves, SIGTERM ends it as any program.
        await until(f"{part.name} is ready: {part.tail()}", part.said, BACK)
        began, at = time.monotonic(), self._clock()
        if not await part.leave(LEAVING):
            said = f"exit code {part.code}" if part.code is not None else f"still there after {LEAVING:g} s"
            self.violations.append(Violation("leaving", at, f"{part.name}: {said}: {part.tail()}"))
            await asyncio.to_thread(part.kill)
        in_order = time.monotonic() - began < GRACE
        # It accepts for some seconds more, then only ends what it has.
        gone = Window(part.name, "gone", min(at + ACCEPTS, self._clock()), dead=True, owed=at if in_order else 0.0)
        self.windows.append(gone)
        await asyncio.sleep(fault.seconds)
        try:
            await self._again(part)
        finally:
            gone.end = self._clock()

    async def _again(self, part: Part) -> None:
        part.start()
        if part.sort in ("worker", "frontend"):
            await until(f"{part.name} is ready: {part.tail()}", part.said, BACK)
        elif part.name == "etcd":
            await until(f"etcd serves: {part.tail()}", lambda: healthy(part), BACK)

    async def _cut(self, part: Part, fault: Fault) -> None:
        rules = network.rules(fault.kind, *self._site.links(part.name))
        await asyncio.to_thread(network.change, "-A", rules)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            await asyncio.to_thread(network.change, "-D", rules)

    async def watch(self) -> None:
        """Say of each process that dies by itself, and start it again. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(0.25)
            for part in self._site.parts.values():
                if part.wanted and part.code is not None:
                    now = self._clock()
                    self.violations.append(Violation("died", now, f"{part.name} ({part.code}): {part.tail()}"))
                    self.windows.append(Window(part.name, "died", now - 1.0, now + BACK, dead=True))
                    part.start()


async def _pause(part: Part, seconds: float) -> None:
    part.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        part.signal(signal.SIGCONT)


async def _slow(part: Part, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await _pause(part, _STAND)
        await asyncio.sleep(_RUN)


def healthy(part: Part) -> bool:
    """Whether etcd answers."""
    connection = http.client.HTTPConnection("127.0.0.1", part.port, timeout=2)
    try:
        connection.request("GET", "/health")
        return b'"true"' in connection.getresponse().read()
    except http.client.HTTPException:
        return False
    finally:
        connection.close()
