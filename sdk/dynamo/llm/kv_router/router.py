"""`KvRouter` as in NVIDIA Dynamo: KV-aware routing to one endpoint's instances, for programs and `dynamo.router`.

The shell around `scheduler.KvRouter` (which chooses), `subscriber` (the workers' events) and `replica_sync` (what other
routers and frontends sent). It starts at the first question, and ends with its runtime.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from random import Random
from typing import Any, Final

from dynamo.llm.kv.cost import Weights
from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.scheduler import KvScheduler as Router
from dynamo.llm.kv.scheduler import Prompt, rank_count
from dynamo.llm.kv_events.replica_sync import ReplicaSync, Sharing
from dynamo.llm.kv_events.subscriber import KvEventSubscriber
from dynamo.llm.kv_router.booking import ANYWHERE, Booking, FollowCounts, Target, prompt_of
from dynamo.llm.kv_router.config import KvRouterConfig
from dynamo.llm.kv_router.prompt_reports import overlap_scores, potential_loads
from dynamo.llm.protocols import output_dict
from dynamo.runtime.client import Client
from dynamo.runtime.context import Context
from dynamo.runtime.discovery.registry import Instance, InstanceView
from dynamo.runtime.endpoint import Endpoint
from dynamo.runtime.errors import DynamoException, InvalidArgument, NoInstances
from dynamo.runtime.names import InstanceKey

log = logging.getLogger(__name__)

ATTEMPTS: Final = 3
"""Instances that a request is sent to before its first output, where each fails in a way that another might not."""
MOST_BOOKED: Final = 65_536
"""Requests booked by `best_worker(request_id=…)` that nobody has freed; the oldest is freed then."""
_LOOKED_AT: Final = ("kv_events", "data_parallel_size")
_OPTIONS: Final = ("stop_conditions", "sampling_options", "output_options")


class KvRouter:
    """Route requests to one endpoint's instances by what their KV caches hold; it starts at the first question.

    Methods raise `NoInstances` where nobody serves the endpoint, `InvalidArgument` for bad requests.

    Not here yet, and refused: `ais_perf_config`, session affinity, thresholds.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        block_size: int,
        kv_router_config: KvRouterConfig | None = None,
        ais_perf_config: Any = None,
        session_affinity_ttl_secs: int | None = None,
        *,
        load_threshold_config: Any = None,
        session_affinity_mode: str = "hard",
    ) -> None:
        for name, value in (
            ("ais_perf_config", ais_perf_config),
            ("session_affinity_ttl_secs", session_affinity_ttl_secs),
            ("load_threshold_config", load_threshold_config),
        ):
            if value is not None:
                raise ValueError(f"KvRouter can't do {name} yet")
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self._endpoint, self._config = endpoint, kv_router_config or KvRouterConfig()
        self._random = Random()
        config = self._config
        self.router = Router(
            block_size, config.weights(), config.router_temperature, self._random.random, config.router_ttl_secs
        )
        self.counts = FollowCounts()
        runtime = endpoint.runtime
        self._events = KvEventSubscriber(runtime.bus, runtime.caller) if config.use_kv_events else None
        self._replicas = ReplicaSync(runtime.bus, runtime.client_id) if config.router_replica_sync else None
        self.sharing: Sharing | None = self._replicas
        self._figures: dict[InstanceKey, dict[str, Any]] = {}
        self._numbers = itertools.count()
        self._booked: OrderedDict[str, Booking] = OrderedDict()
        self._starting: asyncio.Task[None] | None = None
        self._client: Client
        self._view: InstanceView

    # -- life

    async def ready(self) -> None:
        """Return once the instances are known; the first call starts following them. `CannotConnect`: try again."""
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.get_running_loop().create_task(self._start(), name="kv router")
        await asyncio.shield(self._starting)

    async def close(self) -> None:
        """Follow nobody any more."""
        for part in (self._events, self._replicas):
            if part is not None:
                await part.stop()

    async def _start(self) -> None:
        runtime, path = self._endpoint.runtime, self._endpoint.path
        self._client = await runtime.client(path)
        self._view = await runtime.registry.watch(path.namespace)
        self._view.listen(self)
        runtime.on_close(self._leave)

    def _leave(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self.close(), name="kv router ends")

    # -- who is there (`InstanceListener`)

    def joined(self, instance: Instance) -> None:
        """Note that an instance of the namespace is there."""
        if instance.key.path != self._endpoint.path:
            return
        self._figures[instance.key] = instance.figures
        self.router.has_ranks(instance.key.id, rank_count(instance.figures))
        if self._events is not None:
            self._events.joined(instance.key, instance.figures, self, self.counts)
        if self._replicas is not None:
            self._replicas.joined(instance.key, self)

    def changed(self, instance: Instance) -> None:
        """Note that its record is another one: it may have begun to publish events, or have other ranks."""
        known = self._figures.get(instance.key)
        if known is not None and any(known.get(name) != instance.figures.get(name) for name in _LOOKED_AT):
            self.joined(instance)

    def left(self, key: InstanceKey) -> None:
        """Note that it is gone."""
        if self._figures.pop(key, None) is None:
            return
        if self._events is not None:
            self._events.left(key)
        if self._replicas is not None:
            self._replicas.left(key)
        self.router.left(key.id)

    # -- requests

    async def generate(
        self,
        token_ids: Sequence[int],
        model: str,
        stop_conditions: Mapping[str, Any] | None = None,
        sampling_options: Mapping[str, Any] | None = None,
        output_options: Mapping[str, Any] | None = None,
        router_config_override: Mapping[str, Any] | None = None,
        worker_id: int | None = None,
        dp_rank: int | None = None,
        extra_args: Mapping[str, Any] | None = None,
        block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None,
        multi_modal_data: Mapping[str, Any] | None = None,
        mm_routing_info: Mapping[str, Any] | None = None,
        routing_constraints: Any = None,
        response_buffer_size: int = 100,
    ) -> AsyncIterator[Any]:
        """Send a request to the best worker, or to `worker_id` and `dp_rank`; iterate over what this returns."""
        if routing_constraints is not None:
            raise ValueError("KvRouter can't do routing_constraints yet")
        given = {
            "stop_conditions": stop_conditions, "sampling_options": sampling_options, "output_options": output_options,
            "router_config_override": router_config_override, "extra_args": extra_args,
            "multi_modal_data": multi_modal_data, "mm_routing_info": mm_routing_info,
        }  # fmt: skip
        request = {"token_ids": list(token_ids), "model": model} | {k: v for k, v in given.items() if v is not None}
        if block_mm_infos is not None and mm_routing_info is None:
            request["mm_routing_info"] = {"routing_token_ids": list(token_ids), "block_mm_infos": list(block_mm_infos)}
        if worker_id is not None or dp_rank is not None:
            request["routing"] = {"backend_instance_id": worker_id, "dp_rank": dp_rank}
        return await self.generate_from_request(request, response_buffer_size)

    async def generate_from_request(
        self, request: Mapping[str, Any], response_buffer_size: int = 100, *, context: Context | None = None
    ) -> AsyncIterator[Any]:
        """Do the same for a whole `PreprocessedRequest` as a dict, which goes to the worker as it is.

        Outputs are NVIDIA Dynamo's dicts (`token_ids`, `finish_reason`, …); what a worker sends in a form of
        its own is handed on. Closing the iterator cancels the request. `response_buffer_size` has no effect: a
        reader may be 10,000 items behind.
        """
        if not isinstance(request, Mapping):
            raise InvalidArgument(f"a request is a dict with token_ids, not {type(request).__name__}")
        config = self._chosen(request.get("router_config_override"))
        prompt = self._prompt_of(request)
        sent = {"model": "unknown"} | dict(request)
        for name in _OPTIONS:
            if isinstance(sent.get(name), Mapping):
                sent[name] = {key: value for key, value in sent[name].items() if value is not None}
        await self.ready()
        target = Target.of(request)
        if target.dp_rank is not None:
            self._ranks(target)  # a bad one is refused now, not at the first output
        return self._stream(sent, prompt, target, context or Context(), config)

    async def _stream(
        self, request: dict[str, Any], prompt: Prompt, target: Target, context: Context, config: KvRouterConfig
    ) -> AsyncIterator[Any]:
        failed: set[int] = set()
        while True:
            booking = self._book(f"#{next(self._numbers)}", prompt, target, failed, config)
            silent = True
            try:
                rank = booking.rank
                items = self._client.direct(
                    self._to_rank(request, rank), rank.instance, annotated=False, context=context
                )
                async with aclosing(items):
                    async for item in items:
                        if silent:
                            silent = False
                            booking.prefilled()
                        yield output_dict(item)
                return
            except DynamoException as error:
                failed.add(booking.rank.instance)
                if not (silent and error.retryable and len(failed) < ATTEMPTS and self._candidates(target, failed)):
                    raise
                log.debug("instance %014x: %s; another is tried", booking.rank.instance, error)
            finally:
                booking.free()

    # -- questions

    async def best_worker(
        self,
        token_ids: Sequence[int],
        router_config_override: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        update_indexer: bool = False,
        block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None,
        lora_name: str | None = None,
        routing_constraints: Any = None,
        strict_priority: int = 0,
        policy_class: str | None = None,
        cache_namespace: str | None = None,
    ) -> tuple[int, int, int]:
        """Return `(worker_id, dp_rank, overlap_blocks)`.

        With `request_id` the request counts there until `free` is called.

        `update_indexer` has no effect of its own: a booked request is predicted to be cached where nobody says
        what is.
        """
        config = self._chosen(router_config_override)
        if routing_constraints is not None:
            raise ValueError("KvRouter can't do routing_constraints yet")
        prompt = self._prompt(token_ids, block_mm_infos, lora_name, cache_namespace)
        await self.ready()
        if request_id is None:
            decision = self.router.query(prompt, self._ranks(), self._weighing(config))
            return decision.rank.instance, decision.rank.dp_rank, decision.overlap_blocks
        await self.free(request_id)
        booking = self._book(f"b:{request_id}", prompt, Target(), (), config)
        self._booked[request_id] = booking
        if len(self._booked) > MOST_BOOKED:
            await self.free(next(iter(self._booked)))
        return booking.rank.instance, booking.rank.dp_rank, booking.overlap_blocks

    async def mark_prefill_complete(self, request_id: str) -> None:
        """Note that the first token of a booked request came; fine where it is unknown."""
        if (booking := self._booked.get(request_id)) is not None:
            booking.prefilled()

    async def free(self, request_id: str) -> None:
        """Free a booked request that is over; fine where that was said already."""
        if (booking := self._booked.pop(request_id, None)) is not None:
            booking.free()

    async def get_potential_loads(
        self, token_ids: Sequence[int], block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None,
        lora_name: str | None = None, cache_namespace: str | None = None,
    ) -> list[dict[str, int]]:  # fmt: skip
        """Return what each worker would have to do with this prompt: tokens to prefill, blocks in use.

        And its requests.
        """
        prompt = self._prompt(token_ids, block_mm_infos, lora_name, cache_namespace)
        await self.ready()
        return potential_loads(self.router, prompt, self._ranks())

    async def get_overlap_scores(
        self, token_ids: Sequence[int], router_config_override: Mapping[str, Any] | None = None,
        block_mm_infos: Sequence[Mapping[str, Any] | None] | None = None, lora_name: str | None = None,
        include_shared: bool = True, cache_namespace: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return how many blocks of the prompt each worker holds. Only the device's tier is known; the others say 0."""
        prompt = self._prompt(token_ids, block_mm_infos, lora_name, cache_namespace)
        await self.ready()
        return overlap_scores(self.router, prompt, self._ranks())

    # -- inside

    def _prompt_of(self, request: Mapping[str, Any]) -> Prompt:
        media, routing = request.get("mm_routing_info") or {}, request.get("routing") or {}
        if not isinstance(media, Mapping) or not isinstance(routing, Mapping):
            raise InvalidArgument("mm_routing_info and routing are dicts")
        tokens = media.get("routing_token_ids") or request.get("token_ids")
        return self._prompt(
            tokens, media.get("block_mm_infos"), routing.get("lora_name"),
            routing.get("cache_namespace") or routing.get("cache_salt"),
        )  # fmt: skip

    def _prompt(
        self, tokens: Any, infos: Sequence[Mapping[str, Any] | None] | None, lora: str | None, namespace: str | None
    ) -> Prompt:
        return prompt_of(tokens, self.router.block_size, infos or (), lora, namespace)

    def _to_rank(self, request: dict[str, Any], rank: Rank) -> dict[str, Any]:
        """Return the request as it is sent: to a worker of several ranks with the one that was chosen."""
        if rank.instance not in self.router.spread:
            return request
        return request | {"routing": dict(request.get("routing") or {}) | {"dp_rank": rank.dp_rank}}

    def _ranks(self, target: Target = ANYWHERE, failed: Iterable[int] = ()) -> Sequence[Rank]:
        """Return where a request may go, one at least."""
        ranks, wanted = self.router.ranks(self._instances(target, failed)), target.dp_rank
        if wanted is not None and not (ranks := [rank for rank in ranks if rank.dp_rank == wanted]):
            raise InvalidArgument(f"dp_rank: there is no data-parallel rank {wanted}")
        return ranks

    def _candidates(self, target: Target, failed: Iterable[int]) -> list[int]:
        path, wanted = self._endpoint.path, target.instance
        if wanted is not None:
            return [wanted] if self._view.serves(InstanceKey(path, wanted)) and wanted not in failed else []
        instances = [key.id for key in self._view.routable(path) if key.id not in failed]
        allowed = target.allowed
        return instances if allowed is None else [instance for instance in instances if instance in allowed]

    def _instances(self, target: Target, failed: Iterable[int]) -> list[int]:
        ranks = self._candidates(target, failed)
        if not ranks:
            wanted = "" if target.instance is None else f" as instance {target.instance}"
            raise NoInstances(f"nobody serves {self._endpoint.path}{wanted} now")
        return ranks

    def _chosen(self, override: Any) -> KvRouterConfig:
        """Return the configuration, as one request wants it."""
        if not override:
            return self._config
        if not isinstance(override, Mapping):
            raise InvalidArgument("router_config_override is a dict")
        try:
            return self._config.with_overrides(**override)
        except (ValueError, TypeError) as error:
            raise InvalidArgument(f"router_config_override: {error}") from error

    def _weighing(self, config: KvRouterConfig) -> tuple[Weights, float] | None:
        return None if config is self._config else (config.weights(), config.router_temperature)

    def _book(
        self, request: str, prompt: Prompt, target: Target, failed: Iterable[int], config: KvRouterConfig
    ) -> Booking:
        ranks = self._ranks(target, failed)
        decision = self.router.place(request, prompt, ranks, time.monotonic(), self._weighing(config))
        hashes, left = prompt.hashes, decision.to_prefill
        if not config.router_track_active_blocks:
            hashes = []
        elif not config.router_assume_kv_reuse:
            hashes = [self._random.getrandbits(64) for _ in hashes]
        if not config.router_track_prefill_tokens:
            left = 0
        if hashes is not prompt.hashes or left != decision.to_prefill:
            self.router.activity.add(request, decision.rank, hashes, left)
        shared = None if self.sharing is None else self.sharing.sent(decision.rank, hashes, left)
        return Booking(self.router, request, decision, shared)


class KvPushRouter(KvRouter):
    """The name up to 0.9, with that age's extra question."""

    async def best_worker_id(
        self, token_ids: Sequence[int], router_config_override: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> tuple[int, int]:  # fmt: skip
        """Return `(worker_id, overlap_blocks)`."""
        worker, _, overlap = await self.best_worker(token_ids, router_config_override, request_id)
        return worker, overlap
