"""The `dynamo-frontend` process: flags, runtime, server; or a supervisor of several such processes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from dataclasses import replace
from typing import Final

import click

from dynamo.frontend.legacy_flags import FORMER, GROUPS
from dynamo.frontend.server import open_port, serve_http
from dynamo.frontend.settings import FrontendSettings, problem
from dynamo.frontend.supervisor import CHILD_PORT, CHILD_SOCKET, supervise
from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.errors import DynamoException, InvalidArgument
from dynamo.runtime.process import event_loop
from dynamo.runtime.process.logs import configure_logging
from dynamo.runtime.process.settings import command
from dynamo.runtime.process.shutdown import ShutdownSignal
from dynamo.runtime.process.tracing import tracing_from_env
from dynamo.runtime.runtime import DistributedRuntime

_HELP: Final = "Serve the OpenAI API in front of the workers that registered."
_EPILOG: Final = """\b
Examples:
  dynamo-frontend                                          all models of all namespaces, on port 8000
  dynamo-frontend --http-port 0 --router-mode kv           a free port, routing by KV caches
  dynamo-frontend --workers 4 --system-port 9090           four processes that share the port
  dynamo-frontend --tls-cert-path tls.crt --tls-key-path tls.key
  dynamo-frontend --kserve-grpc-server                     KServe's gRPC on port 8000, HTTP on 8788

etcd and NATS are found by ETCD_ENDPOINTS and NATS_SERVER (with ETCD_AUTH_*, NATS_AUTH_* where needed). When it
serves, one line 'ready {"url": …}' is printed. Flags of older NVIDIA Dynamo versions are understood:
docs/reference/compatibility/index.md.
"""
_CLOSE_SECONDS: Final = 5.0
_OPEN_FILES: Final = 65_536


def make_command() -> click.Command:
    """Return the click command; `-v` is added here since it is counted."""
    made = command(
        FrontendSettings, run, name="dynamo-frontend", help=_HELP, epilog=_EPILOG, former=FORMER, groups=GROUPS
    )
    made.params.append(click.Option(["-v", "--verbose"], count=True, help="More log lines; twice for all of them."))
    return made


def run(settings: FrontendSettings) -> None:
    """Run until told to leave; a user's mistake is one line on stderr and exit code 1."""
    try:
        configure_logging(settings.verbose)
        _raise_file_limit()
        # One prompt at a time: handing it to the tokenizer's thread pool costs more than it saves.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if reason := problem(settings):
            raise click.UsageError(reason)
        if settings.workers > 1:
            event_loop.run(supervise(settings, _ready))
        else:
            event_loop.run(_serve(settings))
    except DynamoException as error:
        raise click.ClickException(error.message) from error
    except KeyboardInterrupt:
        sys.exit(130)


async def _serve(settings: FrontendSettings) -> None:
    tracing = tracing_from_env("dynamo-frontend")
    sockets = _sockets(settings)
    try:
        config = RuntimeConfig.from_env().with_options(settings.discovery_backend, settings.direct_frames)
        runtime = await DistributedRuntime.create(config)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    runtime.tracing = tracing
    leaving = ShutdownSignal()
    try:
        with leaving.handling():
            if CHILD_SOCKET in os.environ:
                _leave_with_supervisor(leaving)
                # The system port is its supervisor's, whatever the environment says.
                settings = replace(settings, has_siblings=True, system_port=None)
            more: dict[str, str] = {}
            await serve_http(
                runtime, settings, on_ready=lambda url: _ready(url, more.get("system"), more.get("grpc")),
                sockets=sockets, leaving=leaving, on_grpc=lambda address: more.update(grpc=address),
                on_system=lambda url: more.update(system=url),
            )  # fmt: skip
    finally:
        await runtime.shutdown(_CLOSE_SECONDS)


def _leave_with_supervisor(leaving: ShutdownSignal) -> None:
    """Leave when stdin ends: a child's is a pipe that ends when the supervisor is gone, however it went."""
    loop = asyncio.get_running_loop()

    def gone() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            leaving.signal()

    loop.add_reader(0, gone)


def _sockets(settings: FrontendSettings) -> list[socket.socket]:
    """Return the port; for a supervisor's child a share of it, and a private socket for its figures."""
    private = os.environ.get(CHILD_SOCKET)
    if private is None:
        return [open_port(settings)]
    shared = open_port(replace(settings, http_port=int(os.environ[CHILD_PORT])), shared=True)
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        unix.bind(private)
    except OSError as error:
        shared.close()
        unix.close()
        raise InvalidArgument(f"can't listen on {private}: {error.strerror}") from error
    return [shared, unix]


def _raise_file_limit() -> None:
    """Allow as many connections as the system lets this user have; the usual 1,024 are few for streams."""
    try:
        import resource
    except ImportError:  # not there on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _ready(url: str, system_url: str | None = None, grpc: str | None = None) -> None:
    said = {"url": url, "system_url": system_url, "grpc": grpc}
    event_loop.calm_collector()
    sys.stdout.write(f"ready {json.dumps({name: value for name, value in said.items() if value})}\n")
    sys.stdout.flush()
