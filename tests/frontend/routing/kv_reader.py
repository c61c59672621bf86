"""A worker's KV publisher and a frontend's reader without the rest of either: what the tests of KV events run on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from tests.fixtures_nats import NatsServer

from dynamo.frontend.metrics import ModelMeter
from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.frontend.routing.kv_routing import KvRouting
from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.messages import KvStep
from dynamo.llm.kv_events.publisher import KvPublisher
from dynamo.llm.kv_events.subscriber import KvEventSubscriber
from dynamo.runtime import DistributedRuntime, MemoryWorld
from dynamo.runtime.backends import Backends
from dynamo.runtime.config import NatsConfig, RuntimeConfig
from dynamo.runtime.discovery.memory import MemoryStore
from dynamo.runtime.names import EndpointPath, InstanceKey, new_id
from dynamo.runtime.transport.nats import NatsBus
from dynamo.worker.engine import KvListener

BLOCK = 16
FOLLOWED = {"kv_events": True, "kv_cache_block_size": BLOCK, "total_kv_blocks": 1000}


class Engine:
    """Says what the test tells it to."""

    def __init__(self) -> None:
        self.listener: KvListener | None = None

    def on_kv(self, listener: KvListener) -> None:
        self.listener = listener

    def step(self, stored: Any = (), removed: Any = (), **more: Any) -> None:
        assert self.listener is not None
        self.listener(KvStep(list(stored), list(removed), **more))


class Worker:
    """A served engine and its publisher."""

    def __init__(self, runtime: DistributedRuntime, key: InstanceKey) -> None:
        self.runtime, self.key = runtime, key
        self.engine = Engine()
        self.publisher = KvPublisher.serve(runtime, key.path)
        self.engine.on_kv(self.publisher.step)


class Reader:
    """What a frontend in kv mode has of this."""

    def __init__(self, runtime: DistributedRuntime, **options: Any) -> None:
        self.runtime = runtime
        self.events = KvEventSubscriber(runtime.bus, runtime.caller, **options)
        self.routing = KvRouting(KvOptions(), BLOCK, Random(1), lambda: 0.0)
        self.meter = ModelMeter("m")

    def join(self, key: InstanceKey, **figures: Any) -> None:
        self.events.joined(key, FOLLOWED | figures, self.routing, self.meter)

    def holds(self, key: InstanceKey, dp_rank: int = 0) -> set[int]:
        return set(self.routing.router.index.blocks_of(Rank(key.id, dp_rank)))

    def predicts(self, key: InstanceKey) -> bool:
        """Whether what is sent there counts as cached."""
        router = self.routing.router
        before = router.index.count(Rank(key.id))
        router.place("x", router.prompt(range(BLOCK)), [Rank(key.id)], 0.0)
        router.ended("x")
        return router.index.count(Rank(key.id)) > before


class Site:
    """Runtimes that see each other over one bus or another."""

    def __init__(self, server: NatsServer | None) -> None:
        self.server, self.world = server, MemoryWorld()
        self.path = EndpointPath(f"t{new_id():x}", "backend", "generate")
        self._runtimes: list[DistributedRuntime] = []
        self._readers: list[Reader] = []
        self._publishers: list[KvPublisher] = []

    async def runtime(self) -> DistributedRuntime:
        if self.server is None:
            made = await DistributedRuntime.in_memory(self.world)
        else:
            bus = NatsBus(NatsConfig(servers=(self.server.url,)))
            await bus.connect()
            made = DistributedRuntime.over(Backends(MemoryStore(self.world.store), bus, RuntimeConfig()))
        self._runtimes.append(made)
        return made

    async def worker(self) -> Worker:
        runtime = await self.runtime()
        worker = Worker(runtime, InstanceKey(self.path, runtime.id))
        self._publishers.append(worker.publisher)
        await runtime.endpoint(self.path).start(lambda incoming: incoming.finish())
        return worker

    async def reader(self, **options: Any) -> Reader:
        self._readers.append(Reader(await self.runtime(), **options))
        return self._readers[-1]

    async def close(self) -> None:
        for publisher in self._publishers:
            publisher.stop()
        for reader in self._readers:
            await reader.events.stop()
        for runtime in self._runtimes:
            await runtime.shutdown(0)


def run(case: Callable[[Site], Awaitable[None]], server: NatsServer | None) -> None:
    async def main() -> None:
        site = Site(server)
        try:
            async with asyncio.timeout(60):
                await case(site)
        finally:
            await site.close()

    asyncio.run(main())
