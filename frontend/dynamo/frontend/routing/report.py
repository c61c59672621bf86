"""Says why a request went where it went: one line in the log, and `nvext` of the answer.

Nothing of it is made unless the log is at debug or the request asks (`nvext.extra_fields`). The fields are the
original's; `routing` is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from dynamo.frontend.chunks import Identity
from dynamo.frontend.hints import Hints
from dynamo.frontend.kv import Ticket
from dynamo.frontend.routing import Counted
from dynamo.llm.protocols import PreprocessedRequest, TextRequest

FIELDS: Final = frozenset({"worker_id", "timing", "routing"})
"""What `extra_fields` may ask for; other names are not known here and change nothing."""


class Route(msgspec.Struct):
    """Where one attempt goes, and why."""

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
        """For the log."""
        rank = "any rank" if self.dp_rank is None else f"rank {self.dp_rank}"
        said = f"instance {self.instance:014x} ({self.instance}) {rank}, {self.reason} (mode {self.mode})"
        if self.cost is None:
            return said
        return f"{said}: {self.overlap_blocks} of {self.prompt_blocks} blocks cached, cost {self.cost:.3f}"


def route_of(instance: int, mode: str, hints: Hints, ticket: Ticket | Counted | None, dp_rank: int | None = 0) -> Route:
    """What is known once an attempt is placed."""
    reason = "pinned" if hints.instance is not None else "session" if hints.kept else "chosen"
    decision = ticket.decision if isinstance(ticket, Ticket) else None
    if decision is None or not isinstance(ticket, Ticket):
        return Route(instance, mode, reason, dp_rank)
    return Route(instance, mode, reason, dp_rank, decision.overlap_blocks, ticket.prompt_blocks, decision.cost)


class Explanation:
    """What one answer says of itself, per choice; `began` is when the request came, by `clock` and in Unix time."""

    def __init__(
        self, tells: frozenset[str], clock: Callable[[], float], began: tuple[float, float], depth: int
    ) -> None:
        self._tells, self._clock, self._depth = tells, clock, depth
        self._began, self._received = began
        self._routes: dict[int, tuple[Route, float]] = {}
        self._computed: dict[int, Route | None] = {}
        self._first: float | None = None

    def routed(self, choice: int, route: Route) -> None:
        """An attempt goes there now; the last one counts."""
        self._routes[choice] = (route, self._clock())

    def computed(self, choice: int, route: Route | None) -> None:
        """A prefill worker computes its prompt; None: no, the worker that decodes does."""
        self._computed[choice] = route

    def first_token(self) -> None:
        """Of the answer."""
        self._first = self._clock()

    def early(self, choice: int) -> dict[str, Any]:
        """What is known with the first token."""
        found = self._routes.get(choice)
        if found is None:
            return {}
        said: dict[str, Any] = {}
        if "worker_id" in self._tells:
            said["worker_id"] = worker_id(found[0], self._computed.get(choice))
        if "routing" in self._tells:
            said["routing"] = _given(msgspec.to_builtins(found[0]))
        return said

    def late(self, choice: int) -> dict[str, Any]:
        """What is known at the end."""
        found, said = self._routes.get(choice), self.early(choice)
        if "timing" in self._tells and found is not None:
            said["timing"] = self._timing(*found)
        return said

    def _timing(self, route: Route, placed: float) -> dict[str, Any]:
        rate = route.overlap_blocks / route.prompt_blocks if route.overlap_blocks and route.prompt_blocks else None
        if route.cost is not None and rate is None:
            rate = 0.0
        return _given(
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
    """One worker does both parts, unless another computed the prompt; ranks are only said where they are known."""
    first = computed or route
    return _given(
        {
            "prefill_worker_id": first.instance, "prefill_dp_rank": first.dp_rank,
            "decode_worker_id": route.instance, "decode_dp_rank": route.dp_rank,
        }
    )  # fmt: skip


def query_answer(
    who: Identity, kind: str, request: PreprocessedRequest | TextRequest, route: Route, computed: Route | None = None
) -> bytes:
    """The answer to a request that only asks where it would go; with its tokens, for who sends it on."""
    said: dict[str, Any] = {"worker_id": worker_id(route, computed), "routing": _given(msgspec.to_builtins(route))}
    if isinstance(request, PreprocessedRequest):
        said["token_ids"] = request.token_ids
    head = {"id": who.id, "object": kind, "created": who.created, "model": who.model}
    return msgspec.json.encode({**head, "choices": [], "nvext": said})


def spliced(chunk: bytes, said: dict[str, Any], tail: bytes = b"}\n\n") -> bytes:
    """A JSON object in bytes, which ends with `tail`, with `nvext` as its last field."""
    if not said:
        return chunk
    return chunk[: -len(tail)] + b',"nvext":' + msgspec.json.encode(said) + tail


def _ms(since: float, until: float | None) -> float | None:
    return None if until is None else round((until - since) * 1000, 3)


def _given(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}
