"""The parts of a frontend, put together over a runtime: what `server.py` serves, and a conversation asks directly."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Literal, cast

from dynamo.frontend.console.feed import ConsoleFeed
from dynamo.frontend.console.paths import is_served
from dynamo.frontend.console.restarts import Restarts
from dynamo.frontend.console.snapshot import snapshot
from dynamo.frontend.generation.load_gauges import worker_gauges
from dynamo.frontend.generation.token_timeouts import TokenWatch, period
from dynamo.frontend.http.api_keys import ApiKeys
from dynamo.frontend.http.body_budget import BodyBudget
from dynamo.frontend.http.cors import Cors
from dynamo.frontend.images.loading import ImageLoader
from dynamo.frontend.limits.concurrency_limits import ConcurrencyLimiter
from dynamo.frontend.limits.memory import keep_large_blocks_apart
from dynamo.frontend.limits.request_threads import RequestThreads
from dynamo.frontend.metrics import Metrics
from dynamo.frontend.request_log.log import RequestLog
from dynamo.frontend.request_log.placements import RecentPlacements
from dynamo.frontend.responses.pings import Pings
from dynamo.frontend.responses.stream import BatchWriter
from dynamo.frontend.routing.busy_thresholds import BusyThresholds
from dynamo.frontend.routing.model_loader import Loader
from dynamo.frontend.routing.model_watcher import ModelWatcher
from dynamo.frontend.routing.session_affinity import Sessions
from dynamo.frontend.services import Lifecycle, RunningServer, Services
from dynamo.frontend.settings import FrontendSettings, disagg_rules, watched
from dynamo.frontend.stored.background import Background
from dynamo.frontend.stored.directory import ResponseDirectory
from dynamo.frontend.stored.peers import Peers
from dynamo.frontend.stored.store import StoredResponses
from dynamo.llm.kv_events.replica_sync import ReplicaSync
from dynamo.llm.kv_events.subscriber import KvEventSubscriber
from dynamo.llm.models.file_cache import FileCache
from dynamo.runtime.discovery.instance_view import InstanceView
from dynamo.runtime.load_balancing import RouterMode
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.process.event_loop import LateWatch
from dynamo.runtime.runtime import DistributedRuntime

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def frontend(runtime: DistributedRuntime, settings: FrontendSettings) -> AsyncIterator[Services]:
    """Build the parts of a frontend over a runtime, listening to its registry."""
    view = await runtime.registry.watch(watched(settings), "frontend")
    servers: list[RunningServer] = []
    recent, restarts = RecentPlacements(), Restarts(time.monotonic)
    live: list[ConsoleFeed] = []
    metrics = Metrics(lambda: float(sum(server.running for server in servers) - sum(map(len, live))))
    watcher = _watcher(runtime, view, metrics, settings)
    metrics.of_workers = partial(worker_gauges, watcher.pool)
    watch = _watch(settings, metrics)
    keep_large_blocks_apart()
    services = Services(
        pool=watcher.pool,
        opener=runtime.caller,
        writer=BatchWriter(runtime.caller.after_batch, time.monotonic),
        metrics=metrics, servers=servers,
        settings=settings,
        cors=Cors.of(settings.cors_origin),
        lifecycle=Lifecycle(), keys=ApiKeys(settings.access.api_keys_file) if settings.access.api_keys_file else None,
        limiter=_limiter(settings, metrics), watch=watch, tracing=runtime.tracing,
        request_log=RequestLog(settings.request_log_size) if settings.request_log_size else None,
        connected=lambda: runtime.bus.connected, bodies=BodyBudget(settings.body_budget, metrics.rejected),
        threads=RequestThreads(refused=metrics.rejected), stored=_stored(runtime, settings),
        images=ImageLoader.of(settings.images, metrics.rejected), recent=recent, restarts_of=restarts.of,
    )  # fmt: skip
    if is_served(settings.access):
        live.append(ConsoleFeed(partial(_snapshot, services), recent))
        services.live = live[0]
    stop_listening, pings = view.listen(watcher), Pings(services.answers)
    stop_counting, late = view.listen(restarts), LateWatch(metrics.loop_late)
    try:
        if namespace := watched(settings):
            await runtime.caller.listen(namespace)
        if services.stored is not None:
            await services.stored.open()
            servers.append(services.stored.background)
        await view.wait_synced()
        yield services
    finally:
        stop_listening()
        stop_counting()
        pings.stop()
        late.stop()
        if watch is not None:
            watch.stop()
        services.threads.close()
        services.images.close()
        if services.stored is not None:
            await services.stored.background.close()
        await watcher.stop()


def _snapshot(services: Services) -> bytes:
    """Return what the console shows now."""
    recent = services.recent.latest()
    return snapshot(services.pool, services.restarts_of, services.connected(), recent, services.limiter)


def _watcher(
    runtime: DistributedRuntime, view: InstanceView, metrics: Metrics, settings: FrontendSettings
) -> ModelWatcher:
    """Make what follows the models' instances, and the pool that it fills."""
    mode = cast("Literal['auto', 'default', 'fastokens']", settings.tokenizer)
    loader = Loader(runtime.caller, FileCache(), mode)
    watcher = ModelWatcher(
        view, loader, metrics, mode=RouterMode(settings.router_mode), random=random.Random(),
        busy_thresholds=_busy_thresholds(settings, metrics),
        sessions=None if settings.sessions.ttl is None else Sessions(settings.sessions), migration=settings.migration,
        kv=settings.kv, disagg=disagg_rules(settings),
        events=KvEventSubscriber(runtime.bus, runtime.caller) if settings.kv.follow_events else None,
        sharing=ReplicaSync(runtime.bus, runtime.client_id) if settings.kv.replica_sync else None,
        namespace_prefix=settings.namespace_prefix,
        only=EndpointPath.parse(settings.endpoint) if settings.endpoint else None,
    )  # fmt: skip
    watcher.pool.aliases = settings.model_aliases or {}
    return watcher


def _stored(runtime: DistributedRuntime, settings: FrontendSettings) -> ResponseDirectory | None:
    """Return what keeps responses; None where that is off."""
    if not settings.stored.ttl:
        return None
    store = StoredResponses(settings.stored)
    return ResponseDirectory(store, Background(store), Peers(runtime, watched(settings) or ""))


def _limiter(settings: FrontendSettings, metrics: Metrics) -> ConcurrencyLimiter | None:
    limits = settings.concurrency
    return ConcurrencyLimiter(limits, metrics.rejected) if limits.any else None


def _watch(settings: FrontendSettings, metrics: Metrics) -> TokenWatch | None:
    limits = settings.token_limits
    return None if period(limits) is None else TokenWatch(limits, metrics.hit, time.monotonic)


def _busy_thresholds(settings: FrontendSettings, metrics: Metrics) -> BusyThresholds:
    busy_thresholds = BusyThresholds(metrics, settings.thresholds, settings.queue)
    for line in busy_thresholds.said_at_start(settings.router_mode):
        log.warning(line)
    return busy_thresholds
