"""Programs over memory: workers that publish what they cache and answer what they are told, and who asks them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tests.waiting import until

from dynamo.llm import (
    KvEventPublisher,
    KvPushRouter,
    KvRouterConfig,
    compute_block_hash_for_seq,
)
from dynamo.llm.kv.block_hash import sequence_hashes
from dynamo.llm.protocols import delta
from dynamo.runtime import Context, DistributedRuntime, MemoryWorld
from dynamo.runtime.request_plane.generator_handler import from_generator

BLOCK = 4
PATH = "ns.backend.generate"
PROMPT = list(range(16))


class Site:
    """Runtimes that see each other, workers that answer with what they were asked."""

    def __init__(self) -> None:
        self.world = MemoryWorld()
        self.runtimes: list[DistributedRuntime] = []
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.cancelled = 0
        self.failing: dict[int, Exception] = {}

    async def runtime(self) -> DistributedRuntime:
        self.runtimes.append(await DistributedRuntime.in_memory(self.world))
        return self.runtimes[-1]

    async def worker(self, *, dp_ranks: int = 1) -> tuple[DistributedRuntime, list[KvEventPublisher]]:
        runtime = await self.runtime()
        endpoint = runtime.endpoint(PATH)
        publishers = [KvEventPublisher(endpoint, None, BLOCK, dp_rank=rank) for rank in range(dp_ranks)]

        async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[Any]:
            self.asked.append((runtime.id, request))
            if (error := self.failing.get(runtime.id)) is not None:
                raise error
            try:
                yield 7
                if request.get("model") == "slow":
                    await asyncio.sleep(60)
                yield delta([8], "stop", {"cached_tokens": 4})
            except (asyncio.CancelledError, GeneratorExit):
                self.cancelled += 1
                raise

        figures = {"data_parallel_size": dp_ranks} if dp_ranks > 1 else None
        await endpoint.start(from_generator(generate), figures=figures)
        return runtime, publishers

    async def router(self, **config: Any) -> KvPushRouter:
        router = KvPushRouter((await self.runtime()).endpoint(PATH), BLOCK, KvRouterConfig(**config))
        await router.ready()
        await until("all workers are known", lambda: len(router._figures) == len(set(self._workers())))
        return router

    def _workers(self) -> list[int]:
        return [runtime.id for runtime in self.runtimes if runtime.served]

    async def close(self) -> None:
        for runtime in self.runtimes:
            await runtime.shutdown(0)


def play(case: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        site = Site()
        try:
            async with asyncio.timeout(60):
                await case(site)
        finally:
            await site.close()

    asyncio.run(main())


def store(publisher: KvEventPublisher, tokens: list[int], first: int = 100, parent: int | None = None) -> None:
    count = len(tokens) // BLOCK
    publisher.publish_stored(tokens, [BLOCK] * count, list(range(first, first + count)), parent)


def names(tokens: list[int], **more: Any) -> set[int]:
    return set(sequence_hashes(compute_block_hash_for_seq(tokens, BLOCK, **more)))
