"""One attempt of a request at one worker: choose it, count there, send, watch, leave.

`retries.py` makes one after the other for a choice or a request for vectors, `prefill.py` for a prompt. Nothing of it
runs per token: a worker's items go straight to the attempt's owner.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import msgspec

from dynamo.frontend.generation.request_scope import Call, RequestScope
from dynamo.frontend.generation.token_timeouts import Watched
from dynamo.frontend.limits.deadly_requests import OnItem
from dynamo.frontend.request_log.log import MOST_COMPARED, MOST_EVENTS, Placement
from dynamo.frontend.routing.candidates import LoadTicket
from dynamo.frontend.routing.hints import Hints
from dynamo.frontend.routing.kv_routing import KvAttempt
from dynamo.frontend.routing.model_set import AnyRequest, ModelSet, Worker
from dynamo.frontend.routing.report import Route, route_of
from dynamo.llm.protocols import PreprocessedRequest, RoutingHints
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException
from dynamo.runtime.names import InstanceKey


class AttemptOwner(Watched, Protocol):
    """Hears what a worker sends: a choice, a request for vectors, or a prefill stage."""

    def on_item(self, data: Any, last: bool) -> None:
        """Take one delta."""

    def on_end(self, error: DynamoException | None) -> None:
        """Hear that the stream is over."""


class Attempt:
    """One attempt of a request at one worker, from its choice until `leave`."""

    __slots__ = (
        "_call", "_hints", "_in_session", "_models", "_owner", "_scope", "_suspect", "_ticket", "key", "rank", "sent",
        "worker",
    )  # fmt: skip

    def __init__(
        self, owner: AttemptOwner, scope: RequestScope, models: ModelSet, hints: Hints, suspect: bytes | None = None
    ) -> None:
        """Begin an attempt; `suspect` is the digest of a request that may take workers down, None for any other."""
        self._owner, self._scope, self._models, self._hints = owner, scope, models, hints
        self._suspect = suspect
        self._in_session = False
        self._ticket: KvAttempt | LoadTicket | None = None
        self._call: Call | None = None
        self.worker: Worker | None = None
        """Set while the attempt counts as one of the worker's open streams."""
        self.key: InstanceKey | None = None
        """The worker's; kept after `leave`."""
        self.rank: int | None = 0
        """The data-parallel rank; None lets the worker choose."""
        self.sent = 0.0

    def choose(self, request: AnyRequest, excluded: Collection[InstanceKey]) -> Worker:
        """Choose a worker, and count the attempt there; raises `NoInstances` where none is left."""
        models, hints = self._models, self._hints
        self._ticket = models.ticket(request, hints)
        bound = models.bound(hints) if hints.session else None
        worker = models.choose(excluded, self._ticket, hints)
        self.worker, self.key, self.sent = worker, worker.key, self._scope.clock()
        self._in_session = worker.id == bound
        worker.open_streams += 1
        if worker.ranks > 1:
            self.rank = models.rank(worker, self._ticket, hints)
        return worker

    def count_output(self) -> None:
        """Let routing count the blocks that the answer fills, where it wants to know them."""
        ticket, owner = self._ticket, self._owner
        if isinstance(ticket, KvAttempt) and ticket.outputs is not None:
            before = owner.tokens
            ticket.watch(lambda: owner.tokens - before)

    def route(self) -> Route:
        """Return where the attempt goes, and why."""
        assert self.worker is not None
        return route_of(
            self.worker.id, self._models.mode.value, self._hints, self._ticket, self.rank, in_session=self._in_session
        )

    def placement(self, prefill: bool) -> Placement:
        """Return where the attempt goes, as a request's record keeps it; `prefill`: to compute a prompt for another."""
        worker, ticket = self.worker, self._ticket
        assert worker is not None
        if not isinstance(ticket, KvAttempt) or (decision := ticket.decision) is None:
            return Placement(self.sent, worker.id, prefill)
        return Placement(
            self.sent, worker.id, prefill, decision.overlap_blocks, ticket.prompt_blocks, decision.cost,
            ticket.others(MOST_COMPARED),
        )  # fmt: skip

    def note(self, *, prefill: bool, again: bool) -> None:
        """Keep where the attempt goes, for those who will ask and those who look now; `again`: another has failed."""
        scope = self._scope
        events, recent = scope.events, scope.recent
        if events is not None and len(events) >= MOST_EVENTS:
            events = None
        if events is None and recent is None:
            return
        placement = self.placement(prefill)
        if events is not None:
            events.append(placement)
        if recent is not None:
            hints, models = self._hints, self._models
            chosen = "again" if again else "session" if self._in_session else "chosen"
            reason = "pinned" if hints.instance is not None else chosen
            recent.add(models.name, models.mode.value, reason, placement)

    def open(self, request: AnyRequest, context: Context) -> None:
        """Send the request to the worker that was chosen; the owner hears its items and its end."""
        worker, key, owner = self.worker, self.key, self._owner
        assert worker is not None
        assert key is not None
        if self.rank is not None and worker.ranks > 1 and isinstance(request, PreprocessedRequest):
            request = msgspec.structs.replace(request, routing=_to_rank(request.routing, self.rank))
        on_item: OnItem = owner.on_item
        if self._suspect is not None and self._models.suspects is not None:
            on_item = self._models.suspects.trial(self._suspect, key, on_item)
        self._call = self._scope.opener.open(key, request, context=context, on_item=on_item, on_end=owner.on_end)

    def watch(self) -> None:
        """Apply the time limits on tokens, where there are any."""
        if self._scope.watch is not None:
            self._scope.watch.enter(self._owner)

    @property
    def awaits_first_token(self) -> bool:
        """Tell whether routing wants to hear of the first token (`prefilled`)."""
        return self._ticket is not None and self._ticket.waits

    def prefilled(self) -> None:
        """Take the prompt off the worker's load: its first token came."""
        if self._ticket is not None and self._ticket.waits:
            self._ticket.prefilled()
            if self._models.gate is not None:
                self._models.gate.eased()

    def cancel(self) -> None:
        """End the stream at once, and leave."""
        if self._call is not None:
            self._call.cancel()
        self.leave()

    def abandon(self) -> None:
        """End the stream after the messages at hand, and leave: the engine's own end mostly comes with them."""
        if self._call is not None:
            self._scope.opener.after_batch(self._call.cancel)
        self.leave()

    def leave(self) -> None:
        """Count the attempt no more: its stream is over, or never began."""
        self._call = None  # it holds the owner
        models, worker = self._models, self.worker
        if self._scope.watch is not None:
            self._scope.watch.leave(self._owner)
        if self._ticket is not None:
            self._ticket.close()
            self._ticket = None
        if worker is None:
            return
        self.worker = None
        if self._suspect is not None and self.key is not None and models.suspects is not None:
            models.suspects.left(self._suspect, self.key)
        worker.open_streams -= 1
        if self._hints.session:
            models.ended(self._hints)
        if models.gate is not None:
            models.gate.eased()


def _to_rank(routing: RoutingHints | None, rank: int) -> RoutingHints:
    """Return what a request says to its worker, with the rank that was chosen."""
    return RoutingHints(dp_rank=rank, cache_salt=None if routing is None else routing.cache_salt)
