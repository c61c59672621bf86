"""What the connections of a port share: their limits, their turns, and the places that there are, by address.

An address may hold all but an eighth of them, so that nobody fills a port alone. Where there is no room, a connection
on which nothing is answered goes, of the address that has most: so no client closes another's, and a flood ends its
own. All steps but `Crowd.candidates` cost the same however many connections there are.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from heapq import nlargest
from ipaddress import IPv6Address, ip_address
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from dynamo.frontend.errors import ApiError
from dynamo.frontend.http.requests import Scope, identified
from dynamo.frontend.metrics import Metrics

if TYPE_CHECKING:
    from dynamo.frontend.http.connection import Connection

log = logging.getLogger(__name__)

C = TypeVar("C")
InWords = Callable[[Scope, ApiError], ApiError]
"""What says an error, which no route has seen, in the shape of the API that a request is one of, and with its id."""
LARGEST_HEAD: Final = 64 << 10
AT_ONCE: Final = 32
"""Requests of one turn: ten milliseconds. Fewer would cost more where so many come at once: every turn has writes of
its own.
"""
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
    """Counts connections, which are keys here; pure. `most`: how many there may be; None: any number."""

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


class Limits(msgspec.Struct, frozen=True):
    """Time limits of one connection, in seconds."""

    headers: float = 10.0
    body: float = 30.0
    """All of a body, with as much again as it takes at `body_rate`."""
    keep_alive: float = 75.0
    silence: float = 60.0
    """A client that acknowledges nothing, not even a probe, is given up after this."""
    connections: int | None = None
    """Not seconds: how many at once; None: as many as come."""
    head: int = LARGEST_HEAD
    """Bytes of the headers, and what one read brings beyond them."""
    whole: int | None = None
    """Bytes of a request as it is sent: body, trailers and the frames of its chunks; None: any number."""
    body_rate: float = 64 << 10
    """Bytes of a body that earn it a second more."""


class RequestStarts:
    """Begins what comes at once by turns of the loop, in the order in which it came.

    A request is read, checked, tokenised and handed to its worker in one go, a third of a millisecond. A burst of
    hundreds would be begun in one turn, and only at its end would the first of it leave, or anything else be heard or
    written. Each of those that wait belongs to a connection, so there are no more of them.
    """

    def __init__(self) -> None:
        self._left = AT_ONCE
        self._turning = False
        self._waiting: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        """Count the requests that wait for their turn."""
        return len(self._waiting)

    def admit(self) -> bool:
        """Tell whether one more request may be begun in this turn, and count it; else call `defer`."""
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)
        if self._left == 0 or self._waiting:
            return False
        self._left -= 1
        return True

    def defer(self, begin: Callable[[], None]) -> None:
        """Call `begin` in one of the next turns, after those that came before."""
        self._waiting.append(begin)

    def clear(self) -> None:
        """Forget those that wait: their connections are being cut."""
        self._waiting.clear()

    def _turn(self) -> None:
        self._turning, self._left = False, AT_ONCE
        while self._waiting and self._left:
            self._left -= 1
            self._waiting.popleft()()
        if self._left < AT_ONCE:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)


class State(ServerState):
    """What all connections share, with the facts that uvicorn's lacks."""

    def __init__(self, limits: Limits, metrics: Metrics | None, in_words: InWords = identified) -> None:
        super().__init__()
        self.limits, self.in_words = limits, in_words
        self.metrics = metrics or Metrics()
        self.draining = False
        self.asked = -math.inf
        """When the last request for a model came since then, by the loop's clock; probes go on in any case."""
        self.crowd: Crowd[Connection] = Crowd(limits.connections)
        self.starts = RequestStarts()
        self.lingering = 0
        """Connections that count nowhere else, since they had to go."""


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


def _ended() -> RequestResponseCycle:
    """Return a request that is over, whose client has left."""
    nothing: Any = None
    cycle = RequestResponseCycle(
        scope=cast("Any", {}), transport=nothing, flow=nothing, logger=log, access_logger=log, access_log=False,
        default_headers=[], message_event=asyncio.Event(), expect_100_continue=False, keep_alive=False,
        on_response=lambda: None,
    )  # fmt: skip
    cycle.more_body, cycle.disconnected, cycle.response_started, cycle.response_complete = False, True, True, True
    return cycle


ENDED: Final = _ended()
"""In the place of the last request of a connection that is lost."""
