"""Requests in two parts: a prefill worker computes the prompt, a decode worker goes on with what that hands out.

The way of the original's prefill router: the request goes to the prefill pool with `max_tokens` 1, its
`disaggregated_params` go with the request to the decode pool, and its one token is not used. Where that fails, or
nobody is there for it, the decode worker computes the prompt itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from dynamo.frontend.explaining import route_of
from dynamo.frontend.generation import Call, Choice, Desk, Listener
from dynamo.frontend.hints import NO_HINTS
from dynamo.frontend.kv import KvRouting, Ticket
from dynamo.frontend.model_set import ModelSet, Seat
from dynamo.frontend.routing import Counted
from dynamo.llm.card import ModelCard
from dynamo.llm.protocols import (
    DISAGGREGATED_PARAMS,
    ERROR,
    MESSAGE,
    PrefillResult,
    PreprocessedRequest,
    RoutingHints,
    TextRequest,
    read_delta,
)
from dynamo.runtime.errors import DynamoException, EngineError
from dynamo.runtime.names import InstanceKey

log = logging.getLogger(__name__)


class Prefills:
    """The prefill workers that are there, as sets of one namespace and card."""

    def __init__(
        self, make: Callable[[ModelCard], ModelSet], follow: Callable[[Any, KvRouting, str], None]
    ) -> None:  # fmt: skip
        self._make, self._follow = make, follow
        self._sets: dict[tuple[str, str], ModelSet] = {}
        self._of: dict[InstanceKey, tuple[str, str]] = {}

    def joined(self, card: ModelCard, instance: Any) -> None:
        """One is there."""
        key: InstanceKey = instance.key
        place = self._of[key] = (key.path.namespace, card.digest)
        found = self._sets.get(place)
        if found is None:
            found = self._sets[place] = self._make(card)
        seat = found.seats[key] = Seat(id=key.id, instance=instance, key=key)
        found.figured(seat, instance.figures)
        found.changed()
        if found.kv is not None:
            self._follow(instance, found.kv, found.name)

    def left(self, key: InstanceKey) -> bool:
        """It is gone; False where it was none of them."""
        place = self._of.pop(key, None)
        if place is None:
            return False
        found = self._sets[place]
        found.left(key)
        if not found.seats:
            del self._sets[place]
        return True

    def of(self, models: ModelSet) -> ModelSet | None:
        """Those that make the tokens of these workers, in a namespace of theirs; None: there are none."""
        if not self._sets:
            return None
        namespaces = {key.path.namespace for key in models.seats}
        for (namespace, _), found in self._sets.items():
            if namespace in namespaces and found.card.same_tokens(models.card):
                return found
        return None


def new_choice(
    prefill: ModelSet | None, index: int, request: PreprocessedRequest | TextRequest, desk: Desk, listener: Listener
) -> Choice:
    """A choice of a request, in two parts where there is a prefill pool for it."""
    if prefill is None or not isinstance(request, PreprocessedRequest) or request.stop_conditions.max_tokens == 0:
        return Choice(index, request, desk, listener)
    return TwoPartChoice(prefill, index, request, desk, listener)


class TwoPartChoice(Choice):
    """See the module. What was handed out is for the first attempt; any other computes the prompt itself."""

    __slots__ = ("_half",)

    def __init__(
        self, prefill: ModelSet, index: int, request: PreprocessedRequest, desk: Desk, listener: Listener
    ) -> None:
        super().__init__(index, request, desk, listener)
        self._half: Half | None = Half(prefill, index, request, desk, self._go_on)

    def start(self) -> None:
        if self._half is None:
            super().start()
        else:
            self._half.start()

    def cancel(self) -> None:
        if self._half is not None:
            self._half.cancel()
        super().cancel()

    def _go_on(self, params: dict[str, Any] | None) -> None:
        self._half, whole = None, self._request
        if params is not None and isinstance(whole, PreprocessedRequest):
            self._request = msgspec.structs.replace(whole, prefill_result=PrefillResult(disaggregated_params=params))
        super().start()
        self._request = whole


class Half:
    """The first part: one attempt at a prefill worker. `done` hears once what it handed out, None where it failed."""

    def __init__(
        self, models: ModelSet, index: int, request: PreprocessedRequest, desk: Desk,
        done: Callable[[dict[str, Any] | None], None],
    ) -> None:  # fmt: skip
        ends = msgspec.structs.replace(request.stop_conditions, max_tokens=1, min_tokens=None)
        self._request = msgspec.structs.replace(request, stop_conditions=ends)
        self._models, self._index, self._desk, self._done = models, index, desk, done
        self._ticket: Ticket | Counted | None = None
        self._seat: Seat | None = None
        self._call: Call | None = None
        self._params: dict[str, Any] | None = None
        self._over = False

    def start(self) -> None:
        """Send it."""
        desk, models = self._desk, self._models
        try:
            self._ticket = models.ticket(self._request, desk.hints)
            seat = self._seat = models.choose((), self._ticket)
            seat.open_streams += 1
            assert seat.key is not None
            self._call = desk.opener.open(
                seat.key, self._to_rank(seat), context=desk.context, on_item=self._on_item, on_end=self._on_end
            )
        except DynamoException as error:
            self._on_end(error)

    def cancel(self) -> None:
        """End it; `done` hears nothing more."""
        if not self._over:
            self._leave()
            if self._call is not None:
                self._call.cancel()

    def _to_rank(self, seat: Seat) -> PreprocessedRequest:
        desk, rank = self._desk, 0 if seat.ranks == 1 else self._models.rank(seat, self._ticket, NO_HINTS)
        route = route_of(seat.id, self._models.mode, NO_HINTS, self._ticket, rank)
        log.debug("[%s] choice %d has its prompt computed by %s", desk.context.id(), self._index, route.line())
        if desk.explanation is not None:
            desk.explanation.computed(self._index, route)
        if rank is None or seat.ranks == 1:
            return self._request
        return msgspec.structs.replace(self._request, routing=RoutingHints(dp_rank=rank))

    def _on_item(self, data: Any, last: bool) -> None:
        if self._over:
            return
        try:
            produced, finish, extras = read_delta(data)
        except ValueError as error:
            self._give_up(EngineError(f"a prefill worker sent what can't be read: {error}"))
            return
        if finish == ERROR:
            self._give_up(EngineError(str((extras or {}).get(MESSAGE) or "the prefill engine failed")))
            return
        if produced and self._ticket is not None and self._ticket.waits:
            self._ticket.prefilled()
        found = (extras or {}).get(DISAGGREGATED_PARAMS)
        if isinstance(found, dict):
            self._params = found

    def _on_end(self, error: DynamoException | None) -> None:
        if self._over:
            return
        self._leave()
        if error is not None or self._params is None:
            self._params = None
            reason = error or "the prefill worker handed nothing out"
            log.info("[%s] the decode worker computes the prompt: %s", self._desk.context.id(), reason)
            self._desk.meter.add("model_prefill_fallbacks_total")
            if self._desk.explanation is not None:
                self._desk.explanation.computed(self._index, None)
        self._done(self._params)

    def _give_up(self, error: EngineError) -> None:
        if self._call is not None:
            self._call.cancel()
        self._on_end(error)

    def _leave(self) -> None:
        self._over = True
        if self._ticket is not None:
            self._ticket.close()
        if self._seat is not None:
            self._seat.open_streams -= 1
