"""Ports of this machine: which are free, and who holds one that isn't."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class PortPicker:
    """Free ports, each given once: two in a row must not be the same one."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def __call__(self) -> int:
        port = free_port()
        while port in self._given:
            port = free_port()
        self._given.add(port)
        return port


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Tell whether a server could listen there now; raises `PermissionError` where it never may."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        return True


def holder(port: int) -> str | None:
    """Return `python (pid 12)`, where this user may know it."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and _has_socket(folder, inodes):
            return f"{_name(folder)} (pid {folder.name})"
    return None


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            columns = row.split()
            if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{columns[9]}]")
    return inodes


def _has_socket(folder: Path, inodes: set[str]) -> bool:
    try:
        return any(os.readlink(fd) in inodes for fd in (folder / "fd").iterdir())
    except OSError:
        return False  # another user's process, or one that just ended


def _name(folder: Path) -> str:
    try:
        return (folder / "comm").read_text().strip()
    except OSError:
        return "a process"
