"""Says why a request went where it went: one line in the log, and `nvext` of the answer.

Nothing of it is made unless the log is at debug or the request asks (`nvext.extra_fields`). The fields are
NVIDIA Dynamo's; `routing` is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from dynamo.frontend.routing.candidates import LoadTicket
from dynamo.frontend.routing.hints import Hints
from dynamo.frontend.routing.kv_routing import KvAttempt

FIELDS: Final = frozenset({"worker_id", "timing", "routing"})
"""What `extra_fields` may ask for; other names are not known here and change nothing."""


class Route(msgspec.Struct):
    """Route of one attempt, and why."""

    instance: int
    mode: str
    reason: str
    """`pinned`, `session` or `chosen`."""
    dp_rank: int | None = 0
    """Of its data-parallel ranks; None: the worker chooses."""
    overlap_blocks: int | None = None
    """The last three: mode kv, requests with tokens."""
    prompt_blocks: int | None = None
    cost: float | None = None

    def line(self) -> str:
        """Return the line for the log."""
        rank = "any rank" if self.dp_rank is None else f"rank {self.dp_rank}"
        text = f"instance {self.instance:014x} ({self.instance}) {rank}, {self.reason} (mode {self.mode})"
        if self.cost is None:
            return text
        return f"{text}: {self.overlap_blocks} of {self.prompt_blocks} blocks cached, cost {self.cost:.3f}"


def route_of(
    instance: int, mode: str, hints: Hints, ticket: KvAttempt | LoadTicket | None, dp_rank: int | None = 0, *,
    in_session: bool = False,
) -> Route:  # fmt: skip
    """Return what is known once an attempt is placed; `in_session`: at the worker that its session is bound to."""
    reason = "pinned" if hints.instance is not None else "session" if in_session else "chosen"
    decision = ticket.decision if isinstance(ticket, KvAttempt) else None
    if decision is None or not isinstance(ticket, KvAttempt):
        return Route(instance, mode, reason, dp_rank)
    return Route(
        instance, mode, reason, dp_rank, overlap_blocks=decision.overlap_blocks, prompt_blocks=ticket.prompt_blocks,
        cost=decision.cost,
    )  # fmt: skip


class RoutingReport:
    """Report of one answer on itself, per choice; `began` is when the request came, by `clock` and in Unix time."""

    def __init__(
        self, tells: frozenset[str], clock: Callable[[], float], began: tuple[float, float], depth: int
    ) -> None:
        self._tells, self._clock, self._depth = tells, clock, depth
        self._began, self._received = began
        self._routes: dict[int, tuple[Route, float]] = {}
        self._computed: dict[int, Route | None] = {}
        self._first: float | None = None

    def routed(self, choice: int, route: Route) -> None:
        """Note where an attempt goes; the last one counts."""
        self._routes[choice] = (route, self._clock())

    def computed(self, choice: int, route: Route | None) -> None:
        """Note the prefill worker that computes its prompt; None: the worker that decodes does."""
        self._computed[choice] = route

    def first_token(self) -> None:
        """Note the first token of the answer."""
        self._first = self._clock()

    def early(self, choice: int) -> dict[str, Any]:
        """Return what is known with the first token."""
        placed = self._routes.get(choice)
        if placed is None:
            return {}
        fields: dict[str, Any] = {}
        if "worker_id" in self._tells:
            fields["worker_id"] = worker_id(placed[0], self._computed.get(choice))
        if "routing" in self._tells:
            fields["routing"] = given(msgspec.to_builtins(placed[0]))
        return fields

    def late(self, choice: int) -> dict[str, Any]:
        """Return what is known at the end."""
        placed, fields = self._routes.get(choice), self.early(choice)
        if "timing" in self._tells and placed is not None:
            fields["timing"] = self._timing(*placed)
        return fields

    def _timing(self, route: Route, placed: float) -> dict[str, Any]:
        rate = route.overlap_blocks / route.prompt_blocks if route.overlap_blocks and route.prompt_blocks else None
        if route.cost is not None and rate is None:
            rate = 0.0
        return given(
            {
                "request_received_ms": round(self._received * 1000),
                "prefill_wait_time_ms": _ms(self._began, placed),
                "prefill_time_ms": _ms(placed, self._first),
                "ttft_ms": _ms(self._began, self._first),
                "total_time_ms": _ms(self._began, self._clock()),
                "kv_hit_rate": rate,
                "router_queue_depth": self._depth,
            }
        )


def worker_id(route: Route, computed: Route | None = None) -> dict[str, Any]:
    """Return the worker's id: one does both parts, unless another computed the prompt.

    Ranks are only said where they are known.
    """
    first = computed or route
    return given(
        {
            "prefill_worker_id": first.instance, "prefill_dp_rank": first.dp_rank,
            "decode_worker_id": route.instance, "decode_dp_rank": route.dp_rank,
        }
    )  # fmt: skip


def spliced(chunk: bytes, fields: dict[str, Any], tail: bytes = b"}\n\n") -> bytes:
    """Return a JSON object in bytes, which ends with `tail`, with `nvext` as its last field."""
    if not fields:
        return chunk
    return chunk[: -len(tail)] + b',"nvext":' + msgspec.json.encode(fields) + tail


def _ms(since: float, until: float | None) -> float | None:
    return None if until is None else round((until - since) * 1000, 3)


def given(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
