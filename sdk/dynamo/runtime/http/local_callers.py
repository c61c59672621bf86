"""Whether a request was made on this machine, by nobody else's order. Pure.

What changes how a process works asks for it: the frontend's `/busy_threshold`, and `POST /engine/…` of
`system_server.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from typing import Final

OPEN_VARIABLE: Final = "DYN_SYSTEM_OPEN_ENGINE_ROUTES"
"""Whether other machines may call `/engine/…`, too."""
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
_SPEAKS_FOR: Final = frozenset({
    b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"true-client-ip", b"cf-connecting-ip",
    b"x-original-forwarded-for", b"x-original-url", b"x-rewrite-url", b"origin",
})  # fmt: skip
"""Headers of a proxy on this machine, and of a browser on it: both speak for somebody else."""
_SPEAKS_FOR_SO: Final = (b"x-forwarded-", b"x-envoy-", b"sec-fetch-")
"""How such headers begin. A sidecar of a service mesh speaks to its program from 127.0.0.6, or from 127.0.0.1."""


def is_loopback(address: str) -> bool:
    """Tell whether this is one of the two addresses of a program on this machine, as IPv4 in IPv6 or not.

    Not all of 127.0.0.0/8: proxies take the others to say that they are meant.
    """
    if address in _LOOPBACK:
        return True
    if ":" not in address:
        return False
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return isinstance(parsed, IPv6Address) and str(parsed.ipv4_mapped or parsed) in _LOOPBACK


def speaks_for_others(names: Iterable[bytes]) -> bool:
    """Tell whether one of these header names, in small letters, is that of a proxy or a browser."""
    return any(name in _SPEAKS_FOR or name.startswith(_SPEAKS_FOR_SO) for name in names)


def from_this_machine(address: str | None, names: Iterable[bytes]) -> bool:
    """Tell whether a request was made on this machine; one whose address nobody knows was not."""
    return address is not None and is_loopback(address) and not speaks_for_others(names)
