"""`KvIndexer` and `ApproxKvIndexer`, which programs written for NVIDIA Dynamo 0.3 to 1.0 route by themselves with.

The first knows what workers say that they cache, the second what was sent where. Neither chooses: they say how much of
a prompt each worker holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from dynamo.llm.kv.block_hash import compute_block_hash_for_seq, sequence_hashes
from dynamo.llm.kv.cost import Weights
from dynamo.llm.kv.index import SECONDS, KvIndex, Predicted, Rank
from dynamo.llm.kv.scheduler import KvScheduler
from dynamo.llm.kv_events.subscriber import KvEventSubscriber
from dynamo.llm.kv_router.booking import FollowCounts
from dynamo.llm.kv_router.radix_tree import OverlapScores
from dynamo.runtime.discovery.registry import Instance
from dynamo.runtime.endpoint import Component, Endpoint
from dynamo.runtime.names import InstanceKey


class KvIndexer:
    """Index of what the workers of a component (or of one endpoint) cache, by their own events."""

    def __init__(self, component: Component | Endpoint, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self._source = component
        self.router = KvScheduler(block_size, Weights(), 0.0, lambda: 0.0, SECONDS)
        self.counts = FollowCounts()
        runtime = component.runtime
        self._events = KvEventSubscriber(runtime.bus, runtime.caller)
        self._followed: set[InstanceKey] = set()
        self._starting: asyncio.Task[None] | None = None

    def block_size(self) -> int:
        return self.router.block_size

    async def find_matches(self, sequence: Sequence[int]) -> OverlapScores:
        """Find matches by the local hashes of a prompt's blocks (`compute_block_hash_for_seq`)."""
        await self.ready()
        return _scores(self.router.index, sequence)

    async def find_matches_for_request(
        self, token_ids: Sequence[int], lora_id: int | None = None, lora_name: str | None = None
    ) -> OverlapScores:
        """Find matches by a prompt's tokens.

        `lora_id`, of older versions, stands for an adapter that is called by that number.
        """
        name = lora_name if lora_name is not None or lora_id is None else str(lora_id)
        return await self.find_matches(compute_block_hash_for_seq(token_ids, self.block_size(), lora_name=name))

    async def ready(self) -> None:
        """Return once the instances are known; the first call starts following them. `CannotConnect`: try again."""
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.get_running_loop().create_task(self._start(), name="kv indexer")
        await asyncio.shield(self._starting)

    async def close(self) -> None:
        """Follow nobody any more."""
        await self._events.stop()

    # -- who is there (`InstanceListener`)

    def joined(self, instance: Instance) -> None:
        """Note that an instance of the namespace is there."""
        if self._is_ours(instance.key) and instance.figures.get("kv_events"):
            self._followed.add(instance.key)
            self._events.joined(instance.key, instance.figures, self, self.counts)

    def changed(self, instance: Instance) -> None:
        """Note that it may have begun to publish."""
        if instance.key not in self._followed:
            self.joined(instance)

    def left(self, key: InstanceKey) -> None:
        """Note that it is gone."""
        if key in self._followed:
            self._followed.discard(key)
            self._events.left(key)
            self.router.left(key.id)

    def _is_ours(self, key: InstanceKey) -> bool:
        if isinstance(self._source, Endpoint):
            return key.path == self._source.path
        return key.path[:2] == (self._source.namespace, self._source.name)

    async def _start(self) -> None:
        runtime = self._source.runtime
        namespace = self._source.path.namespace if isinstance(self._source, Endpoint) else self._source.namespace
        await runtime.caller.listen(namespace)
        view = await runtime.registry.watch(namespace)
        await view.wait_synced()
        view.listen(self)
        runtime.on_close(self._leave)

    def _leave(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self.close(), name="kv indexer ends")


class ApproxKvIndexer:
    """Index of what caches probably hold, from what its user says was sent where, for `router_ttl_secs` each."""

    def __init__(self, endpoint: Component | Endpoint, kv_block_size: int, router_ttl_secs: float = SECONDS) -> None:
        if kv_block_size < 1:
            raise ValueError(f"kv_block_size must be at least 1, not {kv_block_size}")
        self._block_size = kv_block_size
        self._index = KvIndex()
        self._predicted = Predicted(self._index, router_ttl_secs)

    def block_size(self) -> int:
        return self._block_size

    async def find_matches_for_request(self, token_ids: Sequence[int], lora_name: str | None = None) -> OverlapScores:
        """Return how much of a prompt each worker was sent lately."""
        self._predicted.expire(time.monotonic())
        return _scores(self._index, compute_block_hash_for_seq(token_ids, self._block_size, lora_name=lora_name))

    async def process_routing_decision_for_request(
        self, tokens: Sequence[int], worker_id: int, dp_rank: int = 0, lora_name: str | None = None
    ) -> None:
        """Note that a prompt was sent to a worker."""
        local = compute_block_hash_for_seq(tokens, self._block_size, lora_name=lora_name)
        now = time.monotonic()
        self._predicted.expire(now)
        self._predicted.sent(Rank(worker_id, dp_rank), sequence_hashes(local), now)


def _scores(index: KvIndex, local: Sequence[int]) -> OverlapScores:
    depths = index.depths(sequence_hashes(local))
    return OverlapScores({(rank.instance, rank.dp_rank): depth for rank, depth in depths.items()})
