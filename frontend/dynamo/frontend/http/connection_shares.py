"""Who holds the connections of a port, by address, and who makes room for one more. Pure: a connection is a key here.

An address may hold all but an eighth of them, so that nobody fills a port alone. Where there is no room, a connection
on which nothing is answered goes, of the address that has most: so no client closes another's, and a flood ends its
own. All steps but `candidates` cost the same however many connections there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from ipaddress import IPv6Address, ip_address
from itertools import islice
from typing import Final, Generic, TypeVar

C = TypeVar("C")
_RESERVE: Final = 8
"""One part in so many is for other addresses than the one that has most."""
_LOOKED_AT: Final = 16
"""Addresses, and connections of each, among which one is looked for that can go."""
_NETWORK_BITS: Final = 64
"""A client of IPv6 has at least so many of its own to choose addresses from."""


class _Group(Generic[C]):
    """The connections of one address."""

    __slots__ = ("count", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0
        self.waiting: dict[C, None] = {}
        """Those on which nothing is answered, the one that waits longest first."""


class Crowd(Generic[C]):
    """Counts connections. `most`: how many there may be; None: any number."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._share = None if most is None else most - most // _RESERVE
        self._groups: dict[str, _Group[C]] = {}
        self._of: dict[C, _Group[C]] = {}
        self._by_count: dict[int, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def enter(self, who: C, address: str) -> bool:
        """Count a connection; True where somebody has to go for it."""
        name = network_of(address)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(name)
        self._count(group, 1)
        group.waiting[who] = None
        self._of[who] = group
        if self._most is None or self._share is None:
            return False
        return len(self._of) > self._most or group.count > self._share

    def leave(self, who: C) -> None:
        """Forget a connection that is gone; fine where it isn't counted."""
        if (group := self._of.pop(who, None)) is None:
            return
        group.waiting.pop(who, None)
        self._count(group, -1)
        if group.count == 0:
            del self._groups[group.name]

    def works(self, who: C) -> None:
        """Note that a request of a connection is whole, and is answered now."""
        if (group := self._of.get(who)) is not None:
            group.waiting.pop(who, None)

    def waits(self, who: C) -> None:
        """Note that a connection has its answers."""
        if (group := self._of.get(who)) is not None:
            group.waiting[who] = None

    def candidates(self, newcomer: C) -> Iterator[C]:
        """Yield who could make room for `newcomer`, the best first; none: nobody can."""
        own = self._of[newcomer]
        groups = [own]
        if self._share is None or own.count <= self._share:
            counts = nlargest(_LOOKED_AT, self._by_count)
            names = islice((name for count in counts for name in self._by_count[count]), _LOOKED_AT)
            groups = [group for name in names if (group := self._groups[name]).count >= own.count]
        for group in groups:
            yield from islice((who for who in group.waiting if who is not newcomer), _LOOKED_AT)

    def _count(self, group: _Group[C], change: int) -> None:
        if group.count:
            names = self._by_count[group.count]
            del names[group.name]
            if not names:
                del self._by_count[group.count]
        group.count += change
        if group.count:
            self._by_count.setdefault(group.count, {})[group.name] = None


def network_of(address: str) -> str:
    """Return what counts as one address: itself, or the /64 network of IPv6. Pure."""
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{int(parsed) >> (128 - _NETWORK_BITS):x}::/{_NETWORK_BITS}"
