"""`WorkerMetricsPublisher`: what a program's engine is doing, in the record of its instance.

Routers of ours read `running` and `waiting` there (`least-loaded`, `power-of-two`). A record is etcd's, so it is
written once a second at most, with the newest values.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from dynamo.llm.kv_events.publisher import endpoint_of
from dynamo.runtime.endpoint import Component, Endpoint

SECONDS: Final = 1.0
"""Between two writes."""


class WorkerStats(msgspec.Struct, frozen=True):
    """Requests of one rank, as programs for NVIDIA Dynamo 0.x say them."""

    request_active_slots: int
    request_total_slots: int
    num_requests_waiting: int
    data_parallel_rank: int | None = None


class KvStats(msgspec.Struct, frozen=True):
    """The KV cache of one rank, in those versions."""

    kv_active_blocks: int
    kv_total_blocks: int
    gpu_cache_usage_perc: float = 0.0
    gpu_prefix_cache_hit_rate: float = 0.0


class SpecDecodeStats(msgspec.Struct, frozen=True):
    """Speculative decoding of one rank, in those versions; taken, and told to nobody."""

    num_spec_tokens: int | None = None
    num_drafts: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    num_accepted_tokens_per_pos: list[int] | None = None


class ForwardPassMetrics(msgspec.Struct, frozen=True):
    """Figures of both, together what 0.x's `publish` took."""

    worker_stats: WorkerStats
    kv_stats: KvStats
    spec_decode_stats: SpecDecodeStats | None = None


class WorkerMetricsPublisher:
    """Publish what a program's engine is doing, in the record of its instance, at most once a second.

    Routers read `running` and `waiting` there (`least-loaded`, `power-of-two`). `publish` may be called from any
    thread, however often.
    """

    def __init__(self) -> None:
        self._endpoint: Endpoint | None = None
        self._loop: asyncio.AbstractEventLoop
        self._ranks: dict[int, dict[str, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._fresh = False

    async def create_endpoint(self, endpoint: Endpoint | Component, metrics_labels: Any = None) -> None:
        """Publish of `endpoint`, which may be served before or after; 0.x gives its component.

        `metrics_labels`, of 0.x, has no effect.
        """
        self._endpoint, self._loop = endpoint_of(endpoint), asyncio.get_running_loop()
        self._endpoint.runtime.on_close(self._stop)

    def publish(
        self,
        dp_rank: int | ForwardPassMetrics | None = None,
        active_decode_blocks: int | None = None,
        kv_used_blocks: int | None = None,
    ) -> None:
        """Publish what one rank does now; None leaves a figure as it was. A `ForwardPassMetrics` alone is 0.x's form.

        Raises `ValueError` before `create_endpoint`, and for figures that can't be.
        """
        if self._endpoint is None:
            raise ValueError("await create_endpoint(endpoint) before publish")
        if isinstance(dp_rank, ForwardPassMetrics):
            rank, figures = _of_older(dp_rank)
        else:
            rank = dp_rank or 0
            figures = {"active_decode_blocks": active_decode_blocks, "used_kv_blocks": kv_used_blocks}
        given = {name: value for name, value in figures.items() if value is not None}
        if any(type(value) is not int or value < 0 for value in (rank, *given.values())):
            raise ValueError(f"a rank and its figures are whole numbers that are not negative: {rank}, {given}")
        self._loop.call_soon_threadsafe(self._take, rank, given)

    def _take(self, rank: int, figures: dict[str, int]) -> None:
        self._ranks.setdefault(rank, {}).update(figures)
        self._fresh = True
        if self._timer is None:
            self._write()

    def _write(self) -> None:
        self._timer = None
        if not self._fresh or self._endpoint is None:
            return
        self._fresh = False
        sums: dict[str, int] = {}
        for figures in self._ranks.values():
            for name, value in figures.items():
                sums[name] = sums.get(name, 0) + value
        self._endpoint.runtime.announce(self._endpoint.path, sums)
        self._timer = self._loop.call_later(SECONDS, self._write)

    def _stop(self) -> None:
        self._fresh = False
        if self._timer is not None:
            self._timer.cancel()


def _of_older(metrics: ForwardPassMetrics) -> tuple[int, dict[str, int | None]]:
    worker, cache = metrics.worker_stats, metrics.kv_stats
    return worker.data_parallel_rank or 0, {
        "running": worker.request_active_slots,
        "waiting": worker.num_requests_waiting,
        "max_num_seqs": worker.request_total_slots,
        "used_kv_blocks": cache.kv_active_blocks,
        "total_kv_blocks": cache.kv_total_blocks,
    }
