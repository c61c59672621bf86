"""A frontend in one process: builds everything, serves, leaves in order.

`main.py` calls it with a runtime of its own, `dynamo-run in=http` with the runtime of
its process (which may be in memory). Whoever brings the runtime closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import random
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

from dynamo.frontend.admission import Thresholds
from dynamo.frontend.affinity import Sessions
from dynamo.frontend.app import Application
from dynamo.frontend.cors import Cors
from dynamo.frontend.door import Bounds, Door
from dynamo.frontend.errors import unavailable
from dynamo.frontend.gate import QueueOptions
from dynamo.frontend.gates import Gates
from dynamo.frontend.http_server import LARGEST_HEAD, HttpServer, Limits
from dynamo.frontend.kv import KvOptions
from dynamo.frontend.loading import Loader
from dynamo.frontend.metrics import Metrics
from dynamo.frontend.models import ModelPool
from dynamo.frontend.services import Lifecycle, Policy, Services
from dynamo.frontend.settings import FrontendSettings, disagg_rules, problem, watched
from dynamo.frontend.sockets import bind, connections_of_each, most_connections, url_of
from dynamo.frontend.stream import BatchWriter
from dynamo.frontend.time_limits import TokenLimits, TokenWatch
from dynamo.frontend.tls import context as tls_context
from dynamo.frontend.tls import scheme
from dynamo.llm.files import FileCache
from dynamo.llm.kv.followers import KvEvents
from dynamo.llm.kv.replicas import KvSharing
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.leaving import Leaving
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.runtime import DistributedRuntime

if TYPE_CHECKING:
    from dynamo.frontend.kserve.server import GrpcServer

log = logging.getLogger(__name__)
OPEN_SECONDS: Final = 60.0
"""How long the word that it is ready waits for the models whose workers are there already."""
DRAIN: Final = "drain"
LONGEST: Final = 3.0
"""Times the seconds that a frontend accepts for after SIGTERM, it accepts at most."""


class _Server(Protocol):
    """HTTP's, and gRPC's."""

    @property
    def asked(self) -> float: ...

    @property
    def running(self) -> int: ...

    async def stop(self, grace: float, give_up: Callable[[], None]) -> bool: ...


async def serve_http(
    runtime: DistributedRuntime,
    settings: FrontendSettings,
    *,
    on_ready: Callable[[str], None],
    leaving: Leaving | None = None,
    sockets: Sequence[socket.socket] | None = None,
    on_grpc: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until `leaving` says so (default: SIGTERM and SIGINT). `on_ready(url)` once requests are answered, for
    the models whose workers are there, too; right before, `on_grpc(HOST:PORT)` where gRPC is asked for.

    Raises `InvalidArgument` where the settings can't be served (port in use, kv mode).
    """
    if reason := problem(settings):
        raise InvalidArgument(reason)
    own = list(sockets) if sockets is not None else [open_port(settings)]
    leaving_ = leaving or Leaving()
    with contextlib.ExitStack() as stack:
        for sock in own:
            stack.callback(sock.close)
        tls = tls_context(settings)
        if leaving is None:
            stack.enter_context(leaving_.handling())
        async with frontend(runtime, settings) as services:
            await _serve(services, settings, own, on_ready, leaving_, tls, on_grpc)


@contextlib.asynccontextmanager
async def frontend(runtime: DistributedRuntime, settings: FrontendSettings) -> AsyncIterator[Services]:
    """The parts of a frontend over a runtime, listening to its registry."""
    view = await runtime.registry.watch(watched(settings), "frontend")
    metrics = Metrics()
    mode = cast("Literal['auto', 'default', 'fastokens']", settings.tokenizer)
    loader = Loader(runtime.caller, FileCache(), mode)
    pool = ModelPool(
        view, loader, metrics, mode=settings.router_mode, random=random.Random(), gates=_gates(settings, metrics),
        sessions=_sessions(settings), migration_limit=settings.migration_limit,
        **_kv_routing(runtime, settings), disagg=disagg_rules(settings),
        namespace_prefix=settings.namespace_prefix,
        only=EndpointPath.parse(settings.endpoint) if settings.endpoint else None,
    )  # fmt: skip
    watch = _watch(settings, metrics)
    services = Services(
        pool=pool,
        opener=runtime.caller,
        writer=BatchWriter(runtime.caller.after_batch, time.monotonic),
        metrics=metrics,
        policy=Policy(
            body_limit=settings.body_limit, hold_seconds=settings.hold_seconds,
            migration_max_seq_len=settings.migration_max_seq_len, stall_seconds=settings.stall_seconds,
            strict_fields=settings.strict_fields, admin_api=not settings.disable_admin_api,
            open_admin_api=settings.open_admin_api, request_seconds=settings.request_timeout_secs,
            has_siblings=settings.has_siblings, sessions=settings.router_session_affinity_ttl_secs is not None,
            defaults=settings.request_defaults,
        ),
        cors=Cors(settings.cors_origin),
        lifecycle=Lifecycle(), door=_door(settings, metrics), watch=watch, tracing=runtime.tracing,
        connected=lambda: runtime.bus.connected,
    )  # fmt: skip
    stop_listening = view.listen(pool)
    try:
        if namespace := watched(settings):
            await runtime.caller.listen(namespace)
        await view.wait_synced()
        yield services
    finally:
        stop_listening()
        if watch is not None:
            watch.stop()
        await pool.stop()


def _door(settings: FrontendSettings, metrics: Metrics) -> Door | None:
    bounds = Bounds(settings.max_concurrent_requests, settings.max_requests_per_model, settings.max_requests_per_client)
    return Door(bounds, metrics.refused) if bounds.any else None


def _watch(settings: FrontendSettings, metrics: Metrics) -> TokenWatch | None:
    limits = TokenLimits(settings.first_token_timeout_secs, settings.backend_stream_timeout_secs)
    return None if limits.period is None else TokenWatch(limits, metrics.hit, time.monotonic)


def _gates(settings: FrontendSettings, metrics: Metrics) -> Gates:
    thresholds = Thresholds(**{name: getattr(settings, name) for name in Thresholds.__struct_fields__})
    queue = QueueOptions(
        settings.router_queue_threshold, settings.router_queue_policy, settings.router_queue_limit,
        settings.router_queue_timeout_secs,
    )  # fmt: skip
    gates = Gates(metrics, thresholds, queue)
    for line in gates.said_at_start(settings.router_mode):
        log.warning(line)
    return gates


def _sessions(settings: FrontendSettings) -> Sessions | None:
    ttl = settings.router_session_affinity_ttl_secs
    if ttl is None:
        return None
    moves = settings.router_session_affinity_mode == "soft"
    return Sessions(ttl, settings.router_session_affinity_limit, moves=moves)


def _kv_routing(runtime: DistributedRuntime, settings: FrontendSettings) -> dict[str, Any]:
    """What the pool needs in kv mode, which a model may ask for by itself."""
    return {
        "kv": KvOptions(
            settings.overlap_score_weight,
            settings.router_temperature,
            settings.router_ttl_secs,
            settings.router_kv_overlap_score_credit,
            settings.router_kv_overlap_score_credit_decay,
            settings.router_decode_active_request_weight,
            settings.router_track_output_blocks,
        ),
        "events": KvEvents(runtime.bus, runtime.caller) if settings.use_kv_events else None,
        "sharing": KvSharing(runtime.bus, runtime.client_id) if settings.router_replica_sync else None,
    }


def open_port(settings: FrontendSettings, *, shared: bool = False) -> socket.socket:
    """HTTP's bound socket; `InvalidArgument` says why it can't be had."""
    return _opened(settings, *settings.web_port, shared)


def _opened(settings: FrontendSettings, port: int, flag: str, shared: bool = False) -> socket.socket:
    where = f"{settings.http_host}:{port}"
    try:
        return bind(settings.http_host, port, shared=shared)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = f"another process listens there; choose another {flag}, or 0 for a free one"
        else:
            hint = error.strerror or str(error)
        raise InvalidArgument(f"can't listen on {where}: {hint}") from error


async def _serve(
    services: Services,
    settings: FrontendSettings,
    sockets: list[socket.socket],
    on_ready: Callable[[str], None],
    leaving: Leaving,
    tls: ssl.SSLContext | None,
    on_grpc: Callable[[str], None],
) -> None:
    limits = Limits(
        settings.header_timeout,
        settings.body_timeout,
        settings.keep_alive_timeout,
        settings.stall_seconds,
        connections_of_each(settings.max_connections, most_connections(), settings.ports),
        whole=2 * settings.body_limit + LARGEST_HEAD,
    )
    server = HttpServer(Application(services), limits, services.metrics, tls)
    async with _grpc(services, settings) as grpc:
        servers: list[_Server] = [server, *grpc]
        services.metrics.active = lambda: float(sum(one.running for one in servers))
        try:
            await server.start(sockets)
            await _unless(leaving.asked, services.pool.opened(OPEN_SECONDS))
            for one in grpc:
                await one.start()
                on_grpc(one.address)
            on_ready(url_of(sockets[0], scheme(settings)))
            await leaving.asked.wait()
            await _leave(services, settings, server, servers, leaving)
        finally:
            server.close()
            await server.settled()


async def _leave(
    services: Services, settings: FrontendSettings, http: HttpServer, servers: Sequence[_Server], leaving: Leaving
) -> None:
    # After Ctrl-C there is no proxy that would go on sending requests here.
    accept = 0.0 if leaving.number == signal.SIGINT else settings.drain_seconds
    log.info("leaving: accepting for %g s or until none come, then %g s to end", accept, settings.grace_seconds)
    services.lifecycle.draining = True
    http.drain()
    await _unless(leaving.now, _accept(servers, accept))
    give_up = cache(partial(_give_up, services, settings.grace_seconds))  # once, whichever server asks first
    stopping = asyncio.gather(*(one.stop(settings.grace_seconds, give_up) for one in servers))
    await _unless(leaving.now, stopping)


@contextlib.asynccontextmanager
async def _grpc(services: Services, settings: FrontendSettings) -> AsyncIterator[list[GrpcServer]]:
    """The gRPC server where one is asked for, with its port; else nothing of it is loaded."""
    if not settings.kserve_grpc_server:
        yield []
        return
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it writes lines of its own to stderr; read when it is imported
    try:
        from dynamo.frontend.kserve.server import GrpcServer
    except ModuleNotFoundError as error:
        raise InvalidArgument(f"--kserve-grpc-server needs {error.name}: pip install grpcio protobuf") from error
    _opened(settings, settings.http_port, "--http-port").close()  # gRPC doesn't say why it can't have a port
    made = GrpcServer(services, settings)
    try:
        yield [made]
    finally:
        await made.close()


def _give_up(services: Services, grace: float) -> None:
    """Tell those who are not done."""
    text = f"This frontend leaves, and its {grace:g} s for running requests have passed; try again in a moment."
    for answer in [*services.answers]:
        services.metrics.hit(DRAIN)
        answer.refused(unavailable(text, "shutdown"))


async def _accept(servers: Sequence[_Server], seconds: float) -> None:
    """Go on until nobody sends here any more."""
    clock = asyncio.get_running_loop().time
    began, wait = clock(), seconds
    while wait > 0:
        await asyncio.sleep(wait)
        now = clock()
        wait = longer(seconds, now - began, now - max(one.asked for one in servers))


def longer(seconds: float, elapsed: float, since_asked: float) -> float:
    """How much longer a frontend that leaves accepts, after `elapsed` of at least `seconds`. Pure.

    Proxies of a busy cluster learn late that it leaves: so it goes on for as long again after each request, up to three
    times as long. That also outlives what clients keep open (httpx: 5 s): none sends into a connection that is closed.
    """
    return max(0.0, min(seconds - since_asked, LONGEST * seconds - elapsed))


async def _unless(event: asyncio.Event, work: Awaitable[Any]) -> None:
    """Do `work`, or stop doing it when `event` is set."""
    tasks = (asyncio.ensure_future(work), asyncio.ensure_future(event.wait()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
