"""One dial of a NATS server by nats-py: its arguments, what a failure means, and what `NatsBus` takes over from it.

`nats.py` dials. nats-py's private names (its transport, its tasks) are used here and nowhere else.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.errors import ErrInvalidUserCredentials
from nats.aio.transport import TcpTransport

from dynamo.runtime.config import NatsConfig
from dynamo.runtime.errors import CannotConnect, InvalidArgument
from dynamo.runtime.transport.nats_protocol import NatsProtocol


class Refused(CannotConnect):
    """The server was reached and turned us away."""


def dial_order(servers: Sequence[str], lost: str, turn: float) -> list[str]:
    """Return servers in the order in which they are tried: from a place between 0 and 1 on, and the lost one last.

    Clients that begin at different places are spread over a cluster, and one whose server has just died asks the
    others first.
    """
    first = int(turn * len(servers))
    turned = [*servers[first:], *servers[:first]]
    return [*(server for server in turned if server != lost), *(server for server in turned if server == lost)]


def take_over(client: Client, protocol: NatsProtocol) -> None:
    """Put `protocol` where nats-py's own reader was. Pinned by tests/runtime/transport/test_nats_bus.py."""
    stop_tasks(client)
    transport = cast("TcpTransport", client._transport)
    reader, writer = transport._io_reader, transport._io_writer
    if reader is None or writer is None:
        raise CannotConnect("the connection was lost at once")
    unread = bytes(cast("Any", reader)._buffer)
    protocol.take_over(cast("asyncio.Transport", writer.transport), unread)
    if reader.at_eof():
        protocol.abort()


def stop_tasks(client: Client) -> None:
    """End the tasks by which nats-py would read and ping."""
    for task in (client._reading_task, client._ping_interval_task, client._flusher_task):
        if task is not None:
            task.cancel()


async def discard(client: Client) -> None:
    """Close what a failed attempt left open; nats-py's own close waits for ever where TLS failed."""
    stop_tasks(client)
    transport = client._transport
    if isinstance(transport, TcpTransport):
        for writer in (transport._io_writer, transport._bare_io_writer):
            if writer is not None:
                writer.transport.abort()
    await asyncio.sleep(0)


def collector(failures: list[Exception]) -> Any:
    """Return a callback for nats-py that keeps the errors that it reports."""

    async def collect(error: Exception) -> None:
        failures.append(error)

    return collect


def failure(error: BaseException, server: str) -> CannotConnect:
    """Say what went wrong; waiting does not help against a `Refused`."""
    if isinstance(error, ConnectionRefusedError):
        return CannotConnect("connection refused")
    text = str(error).removeprefix("nats: ").strip("'") or type(error).__name__
    if "authorization violation" in text.lower():
        return Refused(f"NATS at {plain_address(server)} refuses the credentials (NATS_AUTH_*)")
    if isinstance(error, ssl.SSLCertVerificationError):
        return Refused(f"NATS at {plain_address(server)} has a certificate that NATS_TLS_CA does not vouch for: {text}")
    if isinstance(error, (OSError, nats.errors.Error)) and not isinstance(error, ErrInvalidUserCredentials):
        return CannotConnect(text)
    return Refused(f"the credentials for NATS (NATS_AUTH_*) can't be used: {type(error).__name__}")


def full_url(url: str) -> str:
    """Return a server's address with its scheme."""
    return url if "://" in url else f"nats://{url}"


def plain_address(url: str) -> str:
    """Return a server's address without user and password."""
    return urlsplit(full_url(url)).netloc.rpartition("@")[2]


def dial_options(config: NatsConfig, server: str) -> dict[str, Any]:
    """Return nats-py's arguments; files are read now, so that rotated credentials count at the next dial."""
    if urlsplit(full_url(server)).scheme in ("ws", "wss"):
        raise Refused("NATS over WebSocket is not supported here: use a nats:// or tls:// address")
    try:
        config = config.with_files()
        options: dict[str, Any] = {
            "user": config.username,
            "password": config.password,
            "token": config.token,
            "user_credentials": _checked(config.credentials_file),
            "nkeys_seed_str": Path(config.nkey).read_text().strip() if config.nkey else None,
            "tls": _tls(config, server),
        }
    except (OSError, ValueError, InvalidArgument) as error:
        raise Refused(f"a file that NATS_AUTH_* or NATS_TLS_* names can't be used: {error}") from error
    return {name: value for name, value in options.items() if value is not None}


def _checked(credentials: str | None) -> str | None:
    """Return the file's name, where it is one of credentials; nats-py would read on for ever in another."""
    if credentials is not None:
        text = Path(credentials).read_text()
        if "BEGIN NATS USER JWT" not in text or "BEGIN USER NKEY SEED" not in text:
            raise ValueError(f"{credentials} holds no NATS credentials")
    return credentials


def _tls(config: NatsConfig, server: str) -> ssl.SSLContext | None:
    if not (config.tls_ca or config.tls_cert or urlsplit(full_url(server)).scheme == "tls"):
        return None
    context = ssl.create_default_context(cafile=config.tls_ca)
    if config.tls_cert:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    return context
