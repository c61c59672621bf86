"""Looks that read the mirror, against an API server in memory: what they ask, what stale sight may not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from tests.operator.apiserver import ApiServer
from tests.operator.pipelines import SMALLEST, body
from tests.operator.test_reconcile import KEY, SETTINGS, TWO
from tests.operator.test_run import until

from dynamo.operator.dirty import Key
from dynamo.operator.kinds import CHILDREN, PIPELINES, PODS
from dynamo.operator.kube import Api
from dynamo.operator.mirror import Mirror
from dynamo.operator.mirroring import Mirroring
from dynamo.operator.reconcile import Outcome, Reconciler

KINDS = (*CHILDREN, PODS)


class Sight:
    """A reconciler with a mirror whose watches run."""

    def __init__(self, server: ApiServer, api: Api) -> None:
        self.server, self.mirror = server, Mirror()
        self.marked: list[Key] = []
        self.mirroring = Mirroring(api, self.mirror, self.marked.append)
        self.looks = Reconciler(api, SETTINGS, mirror=self.mirror)

    def live(self) -> bool:
        return all(self.mirror.of(kind, KEY) is not None for kind in KINDS)

    async def look(self) -> tuple[Outcome, list[tuple[str, str]]]:
        """One look, and what it asked."""
        before = len(self.server.requests)
        outcome = await self.looks.reconcile(KEY)
        return outcome, self.server.requests[before:]

    async def seen(self) -> None:
        """Until the mirror has what the server has."""
        count = sum(k != PIPELINES.kind for k, _, _ in self.server.objects)
        await until(lambda: self.live() and self.mirror.size() == count)
        await asyncio.sleep(0.05)

    async def settle(self) -> None:
        for _ in range(20):
            outcome, _ = await self.look()
            self.server.play()
            await self.seen()
            if not outcome.writes and not (await self.look())[0].writes:
                return
        raise AssertionError(f"no rest: {self.server.writes[-5:]}")


@asynccontextmanager
async def seeing(spec: dict[str, object] = SMALLEST) -> AsyncIterator[Sight]:
    async with ApiServer() as server, aiohttp.ClientSession() as session:
        server.put(body(spec))
        sight = Sight(server, Api(session, server.url))
        task = asyncio.create_task(sight.mirroring.run())
        await sight.mirroring.settled()
        try:
            yield sight
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def run(case: Callable[[Sight], Awaitable[None]], spec: dict[str, object] = SMALLEST) -> None:
    async def main() -> None:
        async with seeing(spec) as sight:
            await case(sight)

    asyncio.run(main())


def test_a_look_at_rest_asks_for_the_pipeline_only() -> None:
    """No LIST, no write."""

    async def case(sight: Sight) -> None:
        await sight.settle()
        outcome, asked = await sight.look()
        assert outcome == Outcome()
        assert asked == [("GET", PIPELINES.path("serving", "llama"))]

    run(case, TWO)
