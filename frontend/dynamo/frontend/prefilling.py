"""Requests in two parts: a prefill worker computes the prompt, a decode worker goes on with it.

The way of the original's prefill router: the request goes to the prefill pool with `max_tokens` 1, and its one token is
not used. Then there are two forms, as the prefill worker has it: *hand-over*, its `disaggregated_params` go with the
request to the decode pool once they are there; *bootstrap*, both requests are sent at once with the same room, and the
engines meet there. Where the first part fails, or nobody is there for it, the decode worker computes the prompt itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import getrandbits
from typing import Any, Final

import msgspec

from dynamo.frontend.desk import Call, Desk
from dynamo.frontend.disaggregation import MOST_PARTS, tries_another
from dynamo.frontend.explaining import route_of
from dynamo.frontend.generation import Choice, Listener
from dynamo.frontend.kv import Ticket
from dynamo.frontend.model_set import ModelSet, Seat
from dynamo.frontend.prefill_pools import UNREACHABLE, Prefills, prefill_hints
from dynamo.frontend.routing import Counted
from dynamo.llm.protocols import (
    DISAGGREGATED_PARAMS,
    ERROR,
    MESSAGE,
    BootstrapInfo,
    PrefillResult,
    PreprocessedRequest,
    RoutingHints,
    TextRequest,
    read_delta,
)
from dynamo.runtime.errors import DynamoException, EngineError
from dynamo.runtime.names import InstanceKey

log = logging.getLogger(__name__)
FALLBACKS: Final = "model_prefill_fallbacks_total"
Hand = Callable[[dict[str, Any] | None], None]
"""Hears what the decode worker's request needs beside the rest; None: the prompt is computed nowhere else."""


def new_choice(
    prefills: Prefills, index: int, request: PreprocessedRequest | TextRequest, desk: Desk, listener: Listener
) -> Choice:
    """A choice of a request, in two parts where there are prefill workers."""
    return (TwoPartChoice(prefills, index, request, desk, listener) if prefills.any else
            Choice(index, request, desk, listener))  # fmt: skip


class TwoPartChoice(Choice):
    """See the module. Each attempt has its own first part, until one fails or two were in vain."""

    __slots__ = ("_alone", "_half", "_in_vain", "_prefills")

    def __init__(
        self, prefills: Prefills, index: int, request: PreprocessedRequest | TextRequest, desk: Desk, listener: Listener
    ) -> None:
        super().__init__(index, request, desk, listener)
        self._prefills, self._alone = prefills, False
        self._in_vain = (0, 0)
        """Tokens that there were, and first parts since."""
        self._half: Half | None = None

    def start(self) -> None:
        self._timer = None
        self._drop()
        desk, request, pool = self._desk, self._request, None
        if self._worth_it():
            pool, reason = self._prefills.for_prompt(desk.models, request, desk.hints)
            if reason:
                log.debug(
                    "[%s] choice %d: the decode worker computes the prompt: %s", desk.context.id(), self.index, reason
                )
                desk.meter.add(FALLBACKS if reason == UNREACHABLE else "model_local_prefills_total")
        if pool is None or not isinstance(request, PreprocessedRequest):
            if desk.explanation is not None:
                desk.explanation.computed(self.index, None)
            self._begin(None)
        else:
            tokens, parts = self._in_vain
            self._in_vain = (tokens, parts + 1)
            self._half = Half(pool, self.index, request, desk, self._handed)
            self._half.start()

    def _worth_it(self) -> bool:
        """Whether a prefill worker should be asked again: a way to the decode pool may be broken for good."""
        if self._in_vain[0] != self.tokens:
            self._in_vain = (self.tokens, 0)
        if not self._alone and self._in_vain[1] >= MOST_PARTS:
            self._alone = True
            self._desk.meter.add(FALLBACKS)
        return not self._alone

    def cancel(self) -> None:
        self._drop()
        super().cancel()

    def _drop(self) -> None:
        """What was computed for an attempt before is for nobody else."""
        half, self._half = self._half, None
        if half is not None:
            half.cancel()

    def _handed(self, changes: dict[str, Any] | None) -> None:
        if changes is None:
            self._alone = True
        has_it = self._seat is not None and self.tokens != self._in_vain[0]
        if self._closed or self._timer is not None or has_it:
            return  # it is over, or will begin anew by itself, or has what it needs
        if changes is None:
            self._desk.meter.add(FALLBACKS)
            if self._desk.explanation is not None:
                self._desk.explanation.computed(self.index, None)
        self._withdraw()
        self._begin(changes)

    def _withdraw(self) -> None:
        """The decode worker waits for what will not come; it may well be the one that computes it now."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        if self._seat is not None and self._seat.key is not None:
            self._tried.discard(self._seat.key)
        self._leave()

    def _begin(self, changes: dict[str, Any] | None) -> None:
        if changes is None:
            super().start()
            return
        self._request = msgspec.structs.replace(self._request, **changes)
        super().start()
        # A hand-over is for one attempt; whatever that made of the request otherwise stays.
        self._request = msgspec.structs.replace(self._request, **dict.fromkeys(changes))


class Half:
    """The first part: up to two attempts at prefill workers. `hand` hears in time what the second part needs."""

    def __init__(self, models: ModelSet, index: int, request: PreprocessedRequest, desk: Desk, hand: Hand) -> None:
        ends = msgspec.structs.replace(request.stop_conditions, max_tokens=1, min_tokens=None)
        self._request = msgspec.structs.replace(request, stop_conditions=ends)
        self._models, self._index, self._desk, self._hand = models, index, desk, hand
        self._hints = prefill_hints(desk.hints)
        self._tried: set[InstanceKey] = set()
        self._ticket: Ticket | Counted | None = None
        self._seat: Seat | None = None
        self._call: Call | None = None
        self._params: dict[str, Any] | None = None
        self._met: BootstrapInfo | None = None
        self._over = False
        self.tokens = 0
        """It gives one, and ends with it."""

    def start(self) -> None:
        """Send it to a worker that hasn't failed it yet."""
        desk, models = self._desk, self._models
        self._params = self._met = None
        try:
            self._ticket = models.ticket(self._request, self._hints)
            seat = self._seat = models.choose(self._tried, self._ticket, self._hints)
            seat.open_streams += 1
            assert seat.key is not None
            self._tried.add(seat.key)
            self._met = _meeting(seat)
            self._call = desk.opener.open(
                seat.key, self._addressed(seat), context=desk.context, on_item=self._on_item, on_end=self._on_end
            )
            if desk.watch is not None and self._met is None:
                desk.watch.enter(self)
        except DynamoException as error:
            self._on_end(error)
            return
        if self._met is not None:
            self._hand({"bootstrap_info": self._met})

    def cancel(self) -> None:
        """End it; `hand` hears nothing more."""
        if not self._over:
            self._leave()
            if self._call is not None:
                self._call.cancel()
            self._end()

    def _addressed(self, seat: Seat) -> PreprocessedRequest:
        desk, request = self._desk, self._request
        rank = 0 if seat.ranks == 1 else self._models.rank(seat, self._ticket, self._hints)
        route = route_of(seat.id, self._models.mode, self._hints, self._ticket, rank)
        log.debug("[%s] choice %d has its prompt computed by %s", desk.context.id(), self._index, route.line())
        if desk.explanation is not None:
            desk.explanation.computed(self._index, route)
        if self._met is not None:
            request = msgspec.structs.replace(request, bootstrap_info=self._met)
        if rank is None or seat.ranks == 1:
            return request
        return msgspec.structs.replace(request, routing=RoutingHints(dp_rank=rank))

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
        if error is None and (self._params is not None or self._met is not None):
            self._done()
        elif tries_another(error, len(self._tried), self._time_left()):
            log.info("[%s] another prefill worker is tried: %s", self._desk.context.id(), error)
            self.start()
        else:
            reason = error or "the prefill worker handed nothing out"
            log.info("[%s] the decode worker computes the prompt: %s", self._desk.context.id(), reason)
            self._end()(None)

    def _done(self) -> None:
        self._desk.meter.add("model_remote_prefills_total")
        hand = self._end()
        if self._met is None and self._params is not None:
            hand({"prefill_result": PrefillResult(disaggregated_params=self._params)})

    def _end(self) -> Hand:
        """It is over, and lets go of those who hold it; who heard what it handed out."""
        hand, self._hand = self._hand, _nobody
        self._over, self._call = True, None
        return hand

    def stalled(self, error: DynamoException) -> None:
        """The prefill worker has said nothing for too long."""
        self._give_up(error)

    def _give_up(self, error: DynamoException) -> None:
        if self._call is not None:
            self._call.cancel()
        self._on_end(error)

    def _time_left(self) -> float | None:
        deadline = self._desk.context.deadline
        return None if deadline is None else deadline - self._desk.clock()

    def _leave(self) -> None:
        if self._desk.watch is not None:
            self._desk.watch.leave(self)
        if self._ticket is not None:
            self._ticket.close()
            self._ticket = None
        if self._seat is not None:
            self._seat.open_streams -= 1
            self._seat = None


def _nobody(changes: dict[str, Any] | None) -> None:
    """Hears nothing more."""


def _meeting(seat: Seat) -> BootstrapInfo | None:
    """Where the engines of a request meet, if its prefill worker is for that; None: it hands over."""
    figures = seat.instance.figures
    port = figures.get("bootstrap_port")
    if port is None or seat.key is None:
        return None
    host = figures.get("bootstrap_host") or f"{seat.key.path}/{seat.key.id:x}"
    return BootstrapInfo(bootstrap_host=str(host), bootstrap_port=int(port), bootstrap_room=getrandbits(63))
