"""Records of requests: those under way, and ended ones, bounded in number and age. Pure.

No record holds a word of a prompt or an answer.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

KEPT_SECONDS: Final = 600.0
MOST_REQUESTS: Final = 100_000
"""A record of one choice takes a kilobyte, so all of them 100 MB at most."""
MOST_COMPARED: Final = 4
"""Workers that weren't chosen, whose costs are kept with the choice: the cheapest."""
MOST_EVENTS: Final = 64
"""Placements and failures of one request: a request of many choices, tried again and again, takes no more memory."""
MOST_SHOWN: Final = 16
"""Requests under way that are shown together: the oldest."""
_LONGEST_REASON: Final = 160
RUNNING: Final = 0
"""Status of a request that has not ended."""


class Placement(msgspec.Struct, frozen=True, gc=False):
    """An attempt has its worker."""

    at: float
    """Seconds of the clock that all times of a record have."""
    instance: int
    prefill: bool = False
    """The worker computes the prompt for another one."""
    overlap_blocks: int | None = None
    """The last three: router mode kv."""
    prompt_blocks: int | None = None
    cost: float | None = None
    others: tuple[tuple[int, float], ...] = ()
    """The cheapest workers that weren't chosen, each with its cost."""


class Failure(msgspec.Struct, frozen=True, gc=False):
    """An attempt failed, or found no worker."""

    at: float
    reason: str


class Wait(msgspec.Struct, frozen=True, gc=False):
    """A request waited for a worker."""

    at: float
    until: float
    what: str


Event = Placement | Failure | Wait


class RequestRecord(msgspec.Struct, frozen=True, gc=False):
    """A request; a time is 0 where its stage never began, or hasn't begun yet."""

    id: str
    endpoint: str
    model: str
    kind: str
    """`stream` or `unary`."""
    status: int
    """`RUNNING` where it has not ended; then `ended` is now, and tokens are those so far."""
    error: str
    began: float
    tokenized: float
    """When its template and tokens began."""
    ready: float
    """When its tokens were there."""
    first_token: float
    ended: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    events: tuple[Event, ...] = ()
    admitted: float = 0.0
    """When a worker had room for it; 0 where nobody asked, or none ever had."""
    caller: bytes | None = None
    """The name of the API key that it came with, where keys are asked for."""


def add_failure(events: list[Event], at: float, reason: str) -> None:
    """Add why an attempt failed to the events of a request under way, up to their bound."""
    if len(events) < MOST_EVENTS:
        events.append(Failure(at, reason[:_LONGEST_REASON]))


class UnderWay(Protocol):
    """A request that has not ended."""

    @property
    def id(self) -> str: ...
    @property
    def began(self) -> float: ...
    def so_far(self) -> RequestRecord:
        """Return what has become of it until now."""


class RequestLog:
    """The requests under way, and the last ones that have ended."""

    def __init__(self, size: int) -> None:
        self._records: deque[RequestRecord] = deque(maxlen=size)
        self._under_way: set[UnderWay] = set()
        self.add = self._records.append
        """Keep a record."""
        self.enter, self.leave = self._under_way.add, self._under_way.discard
        """Know a request from its beginning to its end."""

    def find(self, request_id: str, now: float) -> RequestRecord | None:
        """Return the latest record of an id that is young enough; clients choose ids, and may use one twice."""
        if running := [request for request in self._under_way if request.id == request_id]:
            return max(running, key=lambda request: request.began).so_far()
        for record in reversed(self._records):
            if record.ended < now - KEPT_SECONDS:
                return None
            if record.id == request_id:
                return record
        return None

    def running(self, sees: Callable[[RequestRecord], bool]) -> list[RequestRecord]:
        """Return the oldest requests under way, of those that whoever asks may see."""
        oldest = heapq.nsmallest(4 * MOST_SHOWN, self._under_way, key=lambda request: request.began)
        return [record for record in (request.so_far() for request in oldest) if sees(record)][:MOST_SHOWN]
