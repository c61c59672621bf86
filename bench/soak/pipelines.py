"""The operator while pipelines are made, changed and deleted: the soak's second half.

The control plane is that of `bench/operator`: real etcd, API server and controllers, fake nodes. A number of pipelines
stays the same; each step makes one, changes one and deletes the oldest.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.operator import subject
from bench.operator.client import NAMESPACES, PIPELINES, Client, mocker, opened
from bench.operator.plane import Plane
from bench.processes import rss_mb
from bench.soak.growth import Readings

TOLD_EACH: Final = 30
"""Readings after which the last one is shown."""
THERE: Final = 30
"""Pipelines that are there at any time."""
PACE: Final = 2.0
"""Seconds from step to step."""
READY_SECONDS: Final = 180.0
START_SECONDS: Final = 60.0


async def soak(folder: Path, seconds: float, sample: float, say: Callable[[str], None]) -> Pipelines:
    """Run it; raises `BenchError` where something doesn't start, or no pipeline becomes Ready any more."""
    plane = Plane(folder)
    starting = asyncio.ensure_future(asyncio.to_thread(plane.__enter__))
    try:
        await asyncio.shield(starting)
        plane.namespaces(NAMESPACES)
        operator = subject.start(plane)
        await subject.until_reconciled(operator, 0, START_SECONDS)
        return await Pipelines(plane, operator, say).run(seconds, sample)
    finally:
        await asyncio.wait([starting])  # a thread can't be cancelled: it goes on starting
        await asyncio.to_thread(plane.__exit__)


class Pipelines:
    """One run, with what was read."""

    def __init__(self, plane: Plane, operator: subject.Operator, say: Callable[[str], None]) -> None:
        self._plane, self._operator, self._say = plane, operator, say
        self._began = time.monotonic()
        self._there: deque[int] = deque()
        self.readings = Readings()
        self.made = 0

    async def run(self, seconds: float, sample: float) -> Pipelines:
        async with opened(self._plane) as client:
            reading = asyncio.ensure_future(self._read(sample))
            try:
                while time.monotonic() - self._began < seconds:
                    due = time.monotonic() + PACE
                    await self._step(client)
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    if reading.done():
                        reading.result()
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        return self

    async def _step(self, client: Client) -> None:
        namespace, body = mocker(self.made, "soak")
        await client.create(namespace, body)
        self._there.append(self.made)
        self.made += 1
        if len(self._there) <= THERE:
            return
        await self._change(client, self._there[len(self._there) // 2])
        oldest = self._there.popleft()
        key = _key(oldest)
        await client.until_ready([key], READY_SECONDS)
        await client.send("DELETE", _path(oldest))
        client.ready.pop(key)
        client.begun.pop(key)

    async def _change(self, client: Client, number: int) -> None:
        replicas = 1 + self.made % 3
        await client.send("PATCH", _path(number), {"spec": {"replicas": replicas}}, "application/merge-patch+json")

    async def _read(self, sample: float) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(sample)
            if number % TOLD_EACH == 0:
                self._say(f"{self.readings.line()}; {self.made} pipelines so far")
            self._plane.servers.check()
            self._look()

    def _look(self) -> None:
        (pid,) = self._plane.servers.pids(self._operator.role)
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        self.readings.add(
            time.monotonic() - self._began, "operator", megabytes=rss_mb([pid]),
            files=len(list(Path(f"/proc/{pid}/fd").iterdir())), threads=int(status["Threads"]),
        )  # fmt: skip


def _path(number: int) -> str:
    namespace, body = mocker(number, "soak")
    return f"{PIPELINES.format(namespace)}/{body['metadata']['name']}"


def _key(number: int) -> str:
    namespace, body = mocker(number, "soak")
    return f"{namespace}/{body['metadata']['name']}"
