"""The gRPC server of a frontend: its port, its limits, and how it leaves. Loaded only where one is asked for.

`dynamo.frontend.server` starts it beside HTTP's, over the same services.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc  # type: ignore[import-untyped]

from dynamo.frontend.http.settings import TlsSettings
from dynamo.frontend.http.sockets import connections_of_each, most_connections
from dynamo.frontend.kserve.api_keys import KeyInterceptor
from dynamo.frontend.kserve.service import InferenceService
from dynamo.frontend.services import Services
from dynamo.frontend.settings import FrontendSettings
from dynamo.runtime.errors import InvalidArgument

log = logging.getLogger(__name__)
_LAST_WORDS_SECONDS: Final = 1.0
_MOST_PINGS_MS: Final = 10_000
"""Clients may ask this often whether we are there."""
MOST_CALLS: Final = 1024
"""Of one connection at once; a client waits with the next one, as HTTP/2 has it."""
LARGEST_METADATA: Final = 16 << 10
"""Bytes of a call's metadata, 32 more for each name, as HTTP/2 counts them."""
_AGE_SECONDS: Final = 3600
_OLD_AGE_SECONDS: Final = 7200
"""A connection takes no new calls after the first, and ends after both: calls whose client never reads have no other
end, as grpcio can't cut one. Clients dial again by themselves."""


class GrpcServer:
    """Serves the models of a frontend on a port that is bound when this is made; `InvalidArgument` where it can't."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self._service = InferenceService(services)
        most = connections_of_each(settings.max_connections, most_connections(), settings.ports)
        keys = [] if services.keys is None else [KeyInterceptor(services.keys, services.metrics.rejected)]
        self._server = grpc.aio.server(
            interceptors=keys, options=_options(settings, most), maximum_concurrent_rpcs=most
        )
        self._server.add_generic_rpc_handlers((self._service.handlers(),))
        self._stopping: asyncio.Task[None] | None = None
        self.address = _bound(self._server, settings)
        """HOST:PORT, as clients want it."""

    async def start(self) -> None:
        """Serve."""
        await self._server.start()

    @property
    def asked(self) -> float:
        """When the last request for a model came, by the loop's clock; minus infinity: none did."""
        return self._service.asked

    @property
    def running(self) -> int:
        """Return how many requests are being answered."""
        return self._service.running

    async def stop(self, grace: float, give_up: Callable[[], None] = lambda: None) -> bool:
        """Take no more requests, let running ones end within `grace`; True where all did.

        The others are cut, after `give_up` has told them.
        """
        self._service.halt.set()
        stopping = asyncio.ensure_future(self._server.stop(grace + _LAST_WORDS_SECONDS))
        try:
            ended = await self._idle(grace)
            if not ended:
                give_up()
                await self._idle(_LAST_WORDS_SECONDS)
            await stopping
        finally:
            stopping.cancel()
        return ended

    async def close(self) -> None:
        """Cut what is left."""
        self._service.halt.set()
        await self._server.stop(0)
        self._service.tasks.cancel()
        await self._service.tasks.ended()

    async def _idle(self, grace: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self._service.tasks:
                    await self._service.tasks.ended()
        return not self._service.tasks


def _options(settings: FrontendSettings, most: int | None) -> list[tuple[str, int]]:
    """Bounds of connections, calls and messages, and pings that find clients which are gone without a word."""
    half = max(1, round(settings.write_timeout_secs * 500))
    bounds = [] if most is None else [("grpc.max_allowed_incoming_connections", most)]
    return [
        *bounds,
        ("grpc.max_concurrent_streams", MOST_CALLS),
        ("grpc.max_metadata_size", LARGEST_METADATA),  # from here to the second one it would be a matter of luck
        ("grpc.absolute_max_metadata_size", LARGEST_METADATA),
        ("grpc.max_connection_age_ms", _AGE_SECONDS * 1000),
        ("grpc.max_connection_age_grace_ms", _OLD_AGE_SECONDS * 1000),
        ("grpc.so_reuseport", 0),  # else a second process would get a share of the port, without a word
        ("grpc.max_receive_message_length", settings.body_limit),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", half),
        ("grpc.keepalive_timeout_ms", half),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _MOST_PINGS_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.server_handshake_timeout_ms", round(settings.timeouts.header * 1000)),
        ("grpc.max_connection_idle_ms", round(settings.timeouts.keep_alive * 1000)),  # clients dial again by themselves
    ]


def _bound(server: Any, settings: FrontendSettings) -> str:
    host, port = settings.http_host, settings.http_port
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if settings.tls.cert_path:
            bound = server.add_secure_port(where, _credentials(settings.tls))
        else:
            bound = server.add_insecure_port(where)
    except RuntimeError as error:
        raise InvalidArgument(f"can't listen on {where} for gRPC: {error}") from error
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{shown}]:{bound}" if ":" in shown else f"{shown}:{bound}"


def _credentials(tls: TlsSettings) -> Any:
    """The files have been read by HTTP's part, which says what is wrong with one."""
    pair = (Path(tls.key_path).read_bytes(), Path(tls.cert_path).read_bytes())
    authority = tls.client_ca_cert_path
    return grpc.ssl_server_credentials(
        [pair], Path(authority).read_bytes() if authority else None, require_client_auth=bool(authority)
    )
