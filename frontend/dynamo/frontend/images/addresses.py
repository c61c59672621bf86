"""Which addresses images may be fetched from: public ones. Pure.

What an IPv6 address carries of IPv4 (mapped, 6to4, Teredo, NAT64) is looked at, too: it leads there.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address
_NEVER: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
            "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
            "168.63.129.16/32",  # Azure's metadata, behind a public number
        ),
    )
)  # fmt: skip
_ROUTED: Final = IPv6Network("2000::/3")
"""All that the internet routes of IPv6."""
_NEVER_SIX: Final = tuple(
    map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"))
)
_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


def is_public(text: str) -> bool:
    """Tell whether an address, as a resolver gives it, is one of the internet's."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return all(map(_is_public, _meant(address)))


def _meant(address: Address) -> Iterator[Address]:
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
            return
        if any(address in network for network in _NAT64):
            yield IPv4Address(int(address) & 0xFFFF_FFFF)
            return
    yield address


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address):
        return (
            address.scope_id is None
            and address in _ROUTED
            and address.is_global
            and not any(address in network for network in _NEVER_SIX)
        )
    return address.is_global and not address.is_multicast and not any(address in network for network in _NEVER)
