"""A frontend in one process: serves what `assembly.py` builds, leaves in order.

`main.py` calls it with a runtime of its own, `dynamo-run in=http` with the runtime of
its process (which may be in memory). Whoever brings the runtime closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from dynamo.frontend.anthropic.errors import identified
from dynamo.frontend.app import Application
from dynamo.frontend.assembly import frontend
from dynamo.frontend.errors import unavailable
from dynamo.frontend.http.connection_shares import LARGEST_HEAD, Limits
from dynamo.frontend.http.server import HttpServer
from dynamo.frontend.http.settings import KB
from dynamo.frontend.http.sockets import bind, connections_of_each, most_connections, url_of
from dynamo.frontend.http.tls import context as tls_context
from dynamo.frontend.routes.cold_app import cold_app
from dynamo.frontend.services import RunningServer, Services
from dynamo.frontend.settings import FrontendSettings, problem
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.http.server import ProbeServer
from dynamo.runtime.process.shutdown import ShutdownSignal
from dynamo.runtime.runtime import DistributedRuntime

if TYPE_CHECKING:
    from dynamo.frontend.kserve.server import GrpcServer

log = logging.getLogger(__name__)
OPEN_SECONDS: Final = 60.0
"""How long the word that it is ready waits for the models whose workers are there already."""
GRACEFUL_SHUTDOWN: Final = "graceful_shutdown"
LONGEST: Final = 3.0
"""Times the seconds that a frontend accepts for after SIGTERM, it accepts at most."""


async def serve_http(
    runtime: DistributedRuntime,
    settings: FrontendSettings,
    *,
    on_ready: Callable[[str], None],
    leaving: ShutdownSignal | None = None,
    sockets: Sequence[socket.socket] | None = None,
    on_grpc: Callable[[str], None] = lambda address: None,
    on_system: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until `leaving` says so (default: SIGTERM and SIGINT). `on_ready(url)` once requests are answered, for
    the models whose workers are there, too; right before, `on_grpc(HOST:PORT)` where gRPC is asked for. The system
    port, where there is one, answers from the beginning: `on_system(url)`.

    Raises `InvalidArgument` where the settings can't be served (port in use, kv mode).
    """
    if reason := problem(settings):
        raise InvalidArgument(reason)
    own = list(sockets) if sockets is not None else [open_port(settings)]
    leaving_ = leaving or ShutdownSignal()
    with contextlib.ExitStack() as stack:
        for sock in own:
            stack.callback(sock.close)
        tls = tls_context(settings.tls)
        system = None if settings.system_port is None else stack.enter_context(open_system_port(settings))
        if leaving is None:
            stack.enter_context(leaving_.handling())
        async with frontend(runtime, settings) as services:
            application = Application(services, cold_app(services))
            async with _system(application, system, on_system):
                server = HttpServer(application, _limits(settings), services.metrics, tls, identified)
                await _serve(services, server, own, on_ready=on_ready, on_grpc=on_grpc, leaving=leaving_)


def open_port(settings: FrontendSettings, *, shared: bool = False) -> socket.socket:
    """Open HTTP's socket, bound; `InvalidArgument` says why it can't be had."""
    return _opened(settings, *settings.web_port, shared)


def open_system_port(settings: FrontendSettings) -> socket.socket:
    """Return the bound socket of the system port; `InvalidArgument` says why it can't be had."""
    return _opened(settings, settings.system_port or 0, "--system-port")


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


def _limits(settings: FrontendSettings) -> Limits:
    """Return the bounds of clients' connections."""
    return Limits(
        settings.timeouts.header,
        settings.timeouts.body,
        settings.timeouts.keep_alive,
        settings.write_timeout_secs,
        connections_of_each(settings.max_connections, most_connections(), settings.ports),
        whole=2 * settings.body_limit + LARGEST_HEAD,
        body_rate=settings.timeouts.body_min_rate_kb * KB,
    )


async def _serve(
    services: Services,
    server: HttpServer,
    sockets: list[socket.socket],
    *,
    on_ready: Callable[[str], None],
    on_grpc: Callable[[str], None],
    leaving: ShutdownSignal,
) -> None:
    async with _grpc(services) as grpc:
        servers = services.servers
        servers += [server, *grpc]
        try:
            await server.start(sockets)
            await _unless(leaving.asked, services.pool.opened(OPEN_SECONDS))
            for grpc_server in grpc:
                await grpc_server.start()
                on_grpc(grpc_server.address)
            on_ready(url_of(sockets[0], services.settings.tls.scheme))
            await leaving.asked.wait()
            await _leave(services, server, servers, leaving)
        finally:
            server.close()
            await server.settled()


async def _leave(
    services: Services,
    http: HttpServer,
    servers: Sequence[RunningServer],
    leaving: ShutdownSignal,
) -> None:
    # After Ctrl-C there is no proxy that would go on sending requests here.
    accept = 0.0 if leaving.number == signal.SIGINT else services.settings.shutdown_delay_secs
    grace = services.settings.graceful_shutdown_timeout_secs
    log.info("leaving: accepting for %g s or until none come, then %g s to end", accept, grace)
    services.lifecycle.draining = True
    if services.live is not None:
        services.live.close()
    http.drain()
    await _unless(leaving.now, _accept(servers, accept))
    give_up = cache(partial(_give_up, services, grace))  # once, whichever server asks first
    stopping = asyncio.gather(*(server.stop(grace, give_up) for server in servers))
    await _unless(leaving.now, stopping)


@contextlib.asynccontextmanager
async def _system(
    application: Application, sock: socket.socket | None, on_system: Callable[[str], None]
) -> AsyncIterator[None]:
    """Serve the system port while the block runs: it answers however full the port of clients is."""
    if sock is None:
        yield
        return
    server = ProbeServer(application.system)
    await server.start(sock)
    on_system(url_of(sock))
    try:
        yield
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def _grpc(services: Services) -> AsyncIterator[list[GrpcServer]]:
    """Make the gRPC server where one is asked for, with its port; else nothing of it is loaded."""
    settings = services.settings
    if not settings.kserve_grpc_server:
        yield []
        return
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it writes lines of its own to stderr; read when it is imported
    try:
        from dynamo.frontend.kserve.server import GrpcServer
    except ModuleNotFoundError as error:
        raise InvalidArgument(f"--kserve-grpc-server needs {error.name}: pip install grpcio protobuf") from error
    _opened(settings, settings.http_port, "--http-port").close()  # gRPC doesn't say why it can't have a port
    made = GrpcServer(services)
    try:
        yield [made]
    finally:
        await made.close()


def _give_up(services: Services, grace: float) -> None:
    """Tell those who are not done."""
    text = f"This frontend leaves, and its {grace:g} s for running requests have passed; try again in a moment."
    for answer in [*services.answers]:
        services.metrics.hit(GRACEFUL_SHUTDOWN)
        answer.refused(unavailable(text, "shutdown"))


async def _accept(servers: Sequence[RunningServer], seconds: float) -> None:
    """Go on until nobody sends here any more."""
    clock = asyncio.get_running_loop().time
    began, wait = clock(), seconds
    while wait > 0:
        await asyncio.sleep(wait)
        now = clock()
        wait = longer(seconds, now - began, now - max(server.asked for server in servers))


def longer(seconds: float, elapsed: float, since_asked: float) -> float:
    """Return how much longer a frontend that leaves accepts, after `elapsed` of at least `seconds`. Pure.

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
