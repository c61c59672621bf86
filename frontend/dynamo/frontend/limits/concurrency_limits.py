"""Bounds on requests side by side: of this process, of one model, of one caller. Pure: `routes/generate.py` asks.

What is refused here has cost nothing: the process's bound and a caller's are looked at before the body is read, a
model's before its tokenizer is. One model, or one caller, that takes all it can get leaves the rest to the others.
A request for several answers counts as so many once that is known: it may be the last that comes in, and is not cut.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from dynamo.frontend.errors import RATE_LIMITED, ApiError, over_quota, overloaded
from dynamo.frontend.http.requests import Scope, header
from dynamo.frontend.limits.settings import ConcurrencyLimits

FRONTEND_FULL: Final = "frontend_full"
MODEL_FULL: Final = "model_full"
_CALLER_HEADERS: Final = (b"x-tenant-id", b"authorization", b"x-api-key")
"""Who asks, the first that is there: what a gateway says of its tenants is finer than the key that it uses itself."""
K = TypeVar("K", bytes, str)


class LimitsInUse(NamedTuple):
    """How much of the limits is in use now."""

    inside: int
    callers: int
    busiest: list[int]
    """Requests of the callers that have most, without their names; empty where callers aren't counted."""


class Slot:
    """A request inside."""

    __slots__ = ("answers", "caller", "model")

    def __init__(self, caller: bytes | None) -> None:
        self.caller = caller
        self.model: str | None = None
        self.answers = 1


class ConcurrencyLimiter:
    """Counts who is inside. What it keeps of callers and models is bounded by the requests that are."""

    def __init__(
        self, limits: ConcurrencyLimits, refused: Callable[[str, str, str], None] = lambda reason, model, endpoint: None
    ) -> None:
        """`refused` hears of each refusal: why, and, where a model is full, which one and what was asked of it."""
        self.limits, self._refused = limits, refused
        self.inside = 0
        self._of_caller: dict[bytes, int] = {}
        self._of_model: dict[str, int] = {}

    def enter(self, scope: Scope) -> Slot:
        """Let a request in by its headers; raises the 503 or 429 that refuses it."""
        limits = self.limits
        if limits.requests is not None and self.inside >= limits.requests:
            raise self._full(f"this frontend has {self.inside} requests already", FRONTEND_FULL)
        caller = None
        if limits.per_client is not None:
            caller = caller_of(scope)
            if self._of_caller.get(caller, 0) >= limits.per_client:
                self._refused(RATE_LIMITED, "", "")
                raise over_quota(limits.per_client)
            self._of_caller[caller] = self._of_caller.get(caller, 0) + 1
        self.inside += 1
        return Slot(caller)

    def to_model(self, slot: Slot, model: str, endpoint: str, answers: int = 1) -> None:
        """Count a request as so many answers of a model; raises the 503 that refuses it."""
        most, there = self.limits.per_model, self._of_model.get(model, 0)
        if most is not None:
            if there >= most:
                raise self._full(f"model '{model}' has {there} requests here already", MODEL_FULL, model, endpoint)
            self._of_model[model] = there + answers
            slot.model = model
        if slot.caller is not None:
            self._of_caller[slot.caller] += answers - 1
        self.inside += answers - 1
        slot.answers = answers

    def _full(self, text: str, reason: str, model: str = "", endpoint: str = "") -> ApiError:
        self._refused(reason, model, endpoint)
        return overloaded(f"{text}; try again in a moment.", reason)

    def in_use(self, most: int) -> LimitsInUse:
        """Return how much is in use, with the requests of so many callers at most."""
        return LimitsInUse(self.inside, len(self._of_caller), heapq.nlargest(most, self._of_caller.values()))

    def leave(self, slot: Slot) -> None:
        """Count a request out that is over; once per slot."""
        self.inside -= slot.answers
        if slot.caller is not None:
            _less(self._of_caller, slot.caller, slot.answers)
        if slot.model is not None:
            _less(self._of_model, slot.model, slot.answers)


def caller_of(scope: Scope) -> bytes:
    """Name the caller: a tenant, else a key, else an address. Nobody checks keys here: that is a gateway's work."""
    for name in _CALLER_HEADERS:
        if given := header(scope, name):
            return given
    client = scope.get("client")
    return str(client[0]).encode() if client else b""


def _less(counts: dict[K, int], key: K, by: int) -> None:
    if counts[key] == by:
        del counts[key]
    else:
        counts[key] -= by
