"""A memory store with registries on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dynamo.runtime.discovery.memory import MemoryStore, StoreWorld
from dynamo.runtime.discovery.registry import Instance, InstanceView, Registry
from dynamo.runtime.names import EndpointPath, InstanceKey, client_key
from dynamo.runtime.transport.bus import Verdict

PATH = EndpointPath("ns", "backend", "generate")
KEY = InstanceKey(PATH, 5)


class Site:
    """One store and the registries on it, with what a ping answers."""

    def __init__(self) -> None:
        self.world = StoreWorld()
        self.verdict: Verdict | Exception = Verdict.ALIVE
        self.pings: list[InstanceKey] = []
        self._registries: list[Registry] = []

    async def ping(self, key: InstanceKey) -> Verdict:
        self.pings.append(key)
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    def registry(self, client: int = 1, ttl: float = 1.0) -> Registry:
        made = Registry(MemoryStore(self.world), self.ping, client, lease_ttl=ttl)
        self._registries.append(made)
        return made

    def client_record(self, client: int, namespace: str | None = "ns") -> dict[str, Any]:
        value = self.world.get(client_key(namespace, client))
        return {} if value is None else msgspec.json.decode(value)

    async def close(self) -> None:
        self.world.down = False
        for registry in self._registries:
            await registry.stop()


def play(case: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        site = Site()
        try:
            async with asyncio.timeout(30):
                await case(site)
        finally:
            await site.close()

    asyncio.run(main())


async def watching(registry: Registry, kind: str = "other", namespace: str | None = "ns") -> InstanceView:
    view = await registry.watch(namespace, kind)
    await view.wait_synced(5)
    return view


class Log:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def joined(self, instance: Instance) -> None:
        self.lines.append(f"joined {instance.id}")

    def changed(self, instance: Instance) -> None:
        self.lines.append(f"changed {instance.id}")

    def left(self, key: InstanceKey) -> None:
        self.lines.append(f"left {key.id}")
