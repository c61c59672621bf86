"""The `dynamo.router` process: flags, runtime, `KvRouter`, its endpoints; serves until it is told to leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Final

import click
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from dynamo.llm.kv_router.booking import FollowCounts
from dynamo.llm.kv_router.router import KvRouter
from dynamo.router.endpoints import RouterEndpoints
from dynamo.router.legacy_flags import FORMER
from dynamo.router.settings import RouterSettings
from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.errors import DynamoException
from dynamo.runtime.http.system_server import SystemServer, runtime_health
from dynamo.runtime.process import event_loop
from dynamo.runtime.process.logs import configure_logging
from dynamo.runtime.process.settings import command
from dynamo.runtime.request_plane.generator_handler import from_generator
from dynamo.runtime.runtime import DistributedRuntime

ENDPOINTS: Final = ("generate", "best_worker_id", "get_overlap_scores")
_HELP: Final = "Route requests to the workers of one endpoint by what their KV caches hold."
_EPILOG: Final = """\b
Examples:
  python -m dynamo.router --endpoint dynamo.backend.generate --router-block-size 64
  python -m dynamo.router --endpoint dynamo.prefill.generate --no-kv-events --system-port 9090

It serves NAMESPACE.router.generate, .best_worker_id and .get_overlap_scores. etcd and NATS are found by
ETCD_ENDPOINTS and NATS_SERVER. When it serves, one line 'ready {…}' is printed. Flags of older NVIDIA
Dynamo versions are understood: docs/reference/compatibility/index.md.
"""


def make_command() -> click.Command:
    """Return the click command; `-v` is added here since it is counted."""
    made = command(RouterSettings, run, name="dynamo.router", help=_HELP, epilog=_EPILOG, former=FORMER)
    made.params.append(click.Option(["-v", "--verbose"], count=True, help="More log lines; twice for all of them."))
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Run `python -m dynamo.router`."""
    make_command().main(None if argv is None else list(argv))


def run(settings: RouterSettings) -> None:
    """Run until told to leave; what goes wrong is one line on stderr: exit code 2 for flags, 1 for the rest."""
    try:
        configure_logging(settings.verbose)
        settings.check()
    except DynamoException as error:
        raise click.UsageError(error.message) from error
    try:
        event_loop.run(_work(settings))
    except DynamoException as error:
        raise click.ClickException(error.message) from error
    except KeyboardInterrupt:
        sys.exit(130)


@contextlib.asynccontextmanager
async def serving(runtime: DistributedRuntime, settings: RouterSettings) -> AsyncIterator[KvRouter]:
    """Return the router and its endpoints, registered; they leave with `runtime`."""
    router = KvRouter(runtime.endpoint(settings.workers()), settings.router_block_size, settings.config())
    await router.ready()
    endpoints = RouterEndpoints(router)
    for name in ENDPOINTS:
        await runtime.endpoint(settings.served(name)).start(from_generator(getattr(endpoints, name)))
    try:
        yield router
    finally:
        await router.close()


_COUNTERS: Final = {
    "kv_steps": "Engine steps whose KV events were applied.",
    "kv_gaps": "Gaps in the KV events of an instance.",
    "kv_snapshots": "Snapshots of an instance's KV cache that were applied.",
}


class _Figures(Collector):
    """`/metrics`: whose caches are known."""

    def __init__(self, counts: FollowCounts) -> None:
        self._counts = counts

    def collect(self) -> list[Metric]:
        unfollowed = GaugeMetricFamily(
            "dynamo_router_instances_without_kv_events",
            "Workers whose KV events are missing or unusable, by reason.",
            labels=["reason"],
        )
        for reason, count in self._counts.unfollowed.items():
            unfollowed.add_metric([reason], count)
        metrics: list[Metric] = [unfollowed]
        for name, text in _COUNTERS.items():
            value = self._counts.counters[f"model_{name}_total"]
            metrics.append(CounterMetricFamily(f"dynamo_router_{name}", text, value=value))
        return metrics


async def _work(settings: RouterSettings) -> None:
    config = replace(RuntimeConfig.from_env(), discovery_backend=settings.discovery_backend)
    stopped = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        runtime = await DistributedRuntime.create(config)
        stack.push_async_callback(runtime.shutdown)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        router = await stack.enter_async_context(serving(runtime, settings))
        port = await _system(runtime, settings, router, stack)
        _say_ready({"instance": runtime.id, "endpoint": str(settings.served("generate")), "system_port": port})
        await stopped.wait()
        await runtime.shutdown()  # running streams first; the router is needed until they end


async def _system(
    runtime: DistributedRuntime, settings: RouterSettings, router: KvRouter, stack: contextlib.AsyncExitStack
) -> int | None:
    if settings.system_port < 0:
        return None
    registry = CollectorRegistry()
    registry.register(_Figures(router.counts))
    server = SystemServer(
        lambda: runtime_health(runtime), registry, host=settings.system_host, port=settings.system_port
    )
    port = await server.start()
    stack.push_async_callback(server.stop)
    return port


def _say_ready(line: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # whoever read the line may have gone
        sys.stdout.write(f"ready {json.dumps(line)}\n")
        sys.stdout.flush()
