"""Sockets that the frontend listens on: bound, named, and how many connections they may have."""

from __future__ import annotations

import socket
from typing import Final

_PROBES: Final = 3
_OTHER_FILES: Final = 448
"""What a process opens beside its clients: 128 connections of the system port, 64 that are told to go, files, NATS."""


def connections_of_each(wanted: int | None, files: int | None, ports: int) -> int | None:
    """Return how many connections each of `ports` may have, where the process has `files` for all of them. Pure.

    What is wanted counts, but two ports share the files, so that a flood of one leaves the other its own.
    """
    if ports == 1 or files is None:
        return wanted or files
    return min(wanted or files, files // ports)


def most_connections() -> int | None:
    """Count connections: as many as this process may open files for, less what else it opens.

    None where nobody says.
    """
    try:
        import resource
    except ImportError:  # not there on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else max(_OTHER_FILES, soft - _OTHER_FILES)


def notice_silence(sock: socket.socket, seconds: float) -> None:
    """Have the kernel end connections whose other side is gone without a word; accepted ones inherit it.

    Unacknowledged bytes last `seconds`; where nothing is to be sent, probes begin after half of that.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    values = {
        "TCP_KEEPIDLE": max(1, round(seconds / 2)), "TCP_KEEPINTVL": max(1, round(seconds / 2 / _PROBES)),
        "TCP_KEEPCNT": _PROBES, "TCP_USER_TIMEOUT": max(1, round(seconds * 1000)),
    }  # fmt: skip
    for name, value in values.items():
        if hasattr(socket, name):  # not all of them on macOS
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a bound TCP socket; `shared` lets other processes bind the same port. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    """Return the address of a bound socket as a URL that can be pasted."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
