"""One choice of one request: from a `Call` on some instance to text, through retries and migration.

`answers.py` starts one `Choice` per choice and listens. The runtime calls `on_item` once
per delta while it handles a message, so what happens per token is all in there.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Protocol

import msgspec

from dynamo.frontend.desk import Call, Desk
from dynamo.frontend.explaining import route_of
from dynamo.frontend.kv import Ticket
from dynamo.frontend.migrating import USED_UP, Kept
from dynamo.frontend.model_set import AnyRequest, Seat
from dynamo.frontend.retrying import Attempts, is_loss, may_go_on, patience, wait_before
from dynamo.frontend.routing import Counted
from dynamo.frontend.tracing import placed, routed
from dynamo.llm.detokenize import Detokenizer
from dynamo.llm.protocols import (
    CACHED_TOKENS,
    COMPLETION_TOKENS,
    ERROR,
    MESSAGE,
    PROMPT_TOKENS,
    STOP_REASON,
    PreprocessedRequest,
    RoutingHints,
    TextRequest,
    read_delta,
)  # fmt: skip
from dynamo.llm.request_options import field, stop_strings
from dynamo.llm.stopping import StopMatcher
from dynamo.runtime.errors import DynamoException, EngineError, NoInstances
from dynamo.runtime.names import InstanceKey

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who wants the text. Called on the loop, never after `finished` or `failed` of that choice."""

    def text(self, choice: Choice, text: str) -> None: ...

    def tokens(
        self, choice: Choice, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> None:
        """As `text`, where log probabilities were asked for."""

    def finished(self, choice: Choice) -> None: ...

    def failed(self, choice: Choice, error: Exception) -> None: ...


class Choice:
    """See the module."""

    __slots__ = (
        "_attempts", "_before", "_call", "_closed", "_counted", "_desk", "_detokenizer", "_emit", "_failing_since",
        "_floor", "_keep", "_kept", "_listener", "_logprobs", "_plain", "_request", "_seat", "_stop_reason", "_stops",
        "_ticket", "_timer", "_tried", "cached", "finish_reason", "index", "prompt_tokens",
    )  # fmt: skip

    def __init__(self, index: int, request: AnyRequest, desk: Desk, listener: Listener) -> None:
        self.index = index
        self._request, self._desk, self._listener = request, desk, listener
        on_long = partial(desk.meter.add, "model_migration_max_seq_len_exceeded_total")
        self._kept = Kept(request, desk.migration_limit, desk.migration_max_seq_len, on_long)
        self._keep = self._kept.add
        self._attempts = Attempts(migrations_left=desk.migration_limit)
        self._tried: set[InstanceKey] = set()
        self._call: Call | None = None
        self._seat: Seat | None = None
        self._ticket: Ticket | Counted | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._failing_since = 0.0
        self._detokenizer: Detokenizer | None = None
        self._logprobs = False
        self._emit = listener.text
        self._plain: Detokenizer | None = None
        self._counted = self._before = self.cached = self.prompt_tokens = 0
        self.finish_reason: str | None = None
        self._stop_reason: str | int | None = None
        self._stops: StopMatcher | None = None
        self._floor = 0
        if isinstance(request, PreprocessedRequest):
            model = desk.models.model
            assert model is not None
            assert model.preprocessor is not None
            self._detokenizer = Detokenizer.for_request(model.preprocessor.tokenizer, request, desk.shown)
            self._logprobs = request.output_options.logprobs is not None
            self.prompt_tokens = len(request.token_ids)
        elif isinstance(request, TextRequest):
            self._watch_for_stops(request.body)

    def _watch_for_stops(self, body: dict[str, Any]) -> None:
        """Stop strings are the same work for engines of either kind."""
        if stops := stop_strings(body.get("stop")):
            self._stops = StopMatcher(stops, bool(field(body, "include_stop_str_in_output")))
            self._floor = int(field(body, "min_tokens") or 0)

    @property
    def tokens(self) -> int:
        """Tokens produced so far."""
        return self._counted if self._detokenizer is None else self._detokenizer.tokens

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or token id that ended it."""
        return self._stop_reason if self._detokenizer is None else self._detokenizer.stop_reason

    def start(self) -> None:
        """Open a stream on some instance; failures come through the listener."""
        self._timer = None
        before = self._before = self.tokens  # of attempts before this one, whose answer is part of its prompt
        desk = self._desk
        span = None if desk.trace is None else desk.trace.route(self.index, self._attempts.made)
        try:
            models, hints = desk.models, desk.hints
            self._ticket = models.ticket(self._request, hints)
            seat = models.choose(self._tried, self._ticket, hints)
            if self._ticket is None:
                self._shorten()
            self._attempts.made += 1
            self._tried.add(_key(seat))
            self._seat = seat
            seat.open_streams += 1
            if isinstance(self._ticket, Ticket) and self._ticket.outputs is not None:
                self._ticket.watch(lambda: self.tokens - before)
            request, rank = self._request, 0 if seat.ranks == 1 else models.rank(seat, self._ticket, hints)
            if desk.explanation is not None or log.isEnabledFor(logging.DEBUG):
                self._explain(seat, rank)
            if rank is not None and seat.ranks > 1 and isinstance(request, PreprocessedRequest):
                request = msgspec.structs.replace(request, routing=RoutingHints(dp_rank=rank))
            context = desk.context if span is None else routed(span, desk.context, seat.id)
            self._call = desk.opener.open(
                _key(seat), request, context=context, on_item=self.on_item, on_end=self.on_end
            )
            placed(span)
            if desk.watch is not None:
                desk.watch.enter(self)
        except DynamoException as error:
            placed(span, error)
            self._failed(error)

    def _explain(self, seat: Seat, rank: int | None) -> None:
        desk = self._desk
        route = route_of(seat.id, desk.models.mode, desk.hints, self._ticket, rank)
        log.debug("[%s] choice %d goes to %s", desk.context.id(), self.index, route.line())
        if desk.explanation is not None:
            desk.explanation.routed(self.index, route)

    def cancel(self) -> None:
        """End it; the listener is not called any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._call is not None:
            self._call.cancel()
            self._call = None  # it holds this choice
        self._leave()

    def on_item(self, data: Any, last: bool) -> None:
        """One delta of the engine."""
        if self._closed:
            return
        try:
            plain, finish = self._plain, None
            if plain is not None and type(data) is int:
                # One token and nothing else, as nearly every delta is: the shortest way to its text.
                keep = self._keep
                if keep is not None:
                    keep(data)
                if text := plain.push_one(data):
                    emit = self._emit  # a function in a slot: called in one step, CPython looks it up as a method
                    emit(self, text)
                self.finish_reason = plain.finish_reason
            else:
                produced, finish, extras = read_delta(data)
                self._delta(produced, finish, extras)
        except DynamoException as error:
            self._end_with(error)
        except Exception as error:  # whatever a foreign engine put into the delta must end this stream only
            log.warning("[%s] unreadable delta", self._desk.context.id(), exc_info=True)
            self._end_with(EngineError(f"a worker sent what can't be read: {error}"))
        else:
            if self.finish_reason is not None:
                self._finish(abandon=finish is None and not last)

    def _delta(self, produced: Any, finish: str | None, extras: dict[str, Any] | None) -> None:
        read_delta([produced, finish, extras])
        if finish == ERROR:
            raise EngineError(str((extras or {}).get(MESSAGE) or "the engine failed"))
        if self._detokenizer is not None:
            self._tokens(self._detokenizer, produced, finish, extras)
        else:
            self._text(produced, finish, extras)

    def on_end(self, error: DynamoException | None) -> None:
        """The stream is over."""
        if self._closed:
            return
        self._call = None
        if error is not None:
            self._failed(error)
            return
        # A clean end without a reason: handlers of users often just return.
        self.on_item(["" if self._detokenizer is None else [], "stop", None], True)

    def _tokens(self, detokenizer: Detokenizer, ids: Any, finish: str | None, extras: dict[str, Any] | None) -> None:
        if type(ids) is not list:
            if ids:
                raise ValueError("text, from an engine that makes tokens")
            ids = []  # an end without tokens may come in either form
        if (keep := self._keep) is not None:
            for token in ids:
                keep(token)
        if extras and not self._before:  # later attempts find what was answered in their caches, too
            self.cached = extras.get(CACHED_TOKENS, self.cached)
        if self._ticket is not None and self._ticket.waits and ids:
            self._ticket.prefilled()
            self._shorten()
            if (gate := self._desk.models.gate) is not None:
                gate.eased()
        if self._logprobs:
            self._with_logprobs(detokenizer, ids, finish, extras)
            return
        text, self.finish_reason, _ = detokenizer.push(ids, finish)
        if text:
            self._emit(self, text)

    def _shorten(self) -> None:
        """From now on single tokens may take the shortest way: nothing else has to know of them."""
        if not self._logprobs:
            self._plain = self._detokenizer

    def _with_logprobs(
        self, detokenizer: Detokenizer, ids: list[int], finish: str | None, extras: dict[str, Any] | None
    ) -> None:
        text, used, offsets = "", [], []
        for token in ids:
            if detokenizer.finish_reason is not None:
                break
            offsets.append(detokenizer.length)
            text += detokenizer.push_one(token)
            used.append(token)
        rest, self.finish_reason, _ = detokenizer.push((), finish)
        if used or rest or extras:
            self._listener.tokens(self, text + rest, used, offsets, extras)

    def _text(self, text: Any, finish: str | None, extras: dict[str, Any] | None) -> None:
        if type(text) is not str:
            if text:
                raise ValueError("token ids, from an engine that makes text")
            text = ""
        if text:
            self._counted += 1
        if extras:
            self.cached = extras.get(CACHED_TOKENS, self.cached)
            self.prompt_tokens = extras.get(PROMPT_TOKENS, self.prompt_tokens)
            self._counted = extras.get(COMPLETION_TOKENS, self._counted)
            self._stop_reason = extras.get(STOP_REASON)
        if self._stops is not None:
            text = self._up_to_a_stop(self._stops, text, finish)
        if text:
            self._emit(self, text)
        if finish is not None and self.finish_reason is None:
            self.finish_reason = "length" if finish == "length" else "stop"

    def _up_to_a_stop(self, stops: StopMatcher, text: str, finish: str | None) -> str:
        text = stops.feed(text, self._counted > self._floor)
        if stops.matched is not None:
            self.finish_reason, self._stop_reason = "stop", stops.matched
            return text
        return text if finish is None else text + stops.flush()

    def _finish(self, *, abandon: bool) -> None:
        call, self._call = self._call, None
        self._closed = True
        if abandon and call is not None:
            # The engine's own end mostly comes with the same frame; then there is nothing to cancel any more.
            self._desk.opener.after_batch(call.cancel)
        self._leave()
        self._listener.finished(self)

    def stalled(self, error: DynamoException) -> None:
        """The instance has said nothing for too long: it is lost for this attempt."""
        self._end_with(error)

    def _end_with(self, error: DynamoException) -> None:
        """Fail because of what was received: the instance still works on it."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._failed(error)

    def _failed(self, error: DynamoException) -> None:
        self._leave()
        attempts = self._attempts
        attempts.produced, attempts.under_way = self.tokens > 0, self.tokens > self._before
        # A request to one worker is nobody else's.
        pinned = self._desk.hints.instance is not None
        if not pinned and may_go_on(error, attempts) and self._again(error):
            return
        self._closed = True
        self._listener.failed(self, error if pinned else self._told(error))

    def _again(self, error: DynamoException) -> bool:
        """Arrange another attempt; False where none is left."""
        if self._attempts.under_way and not self._migrate():
            return False
        wait = self._wait(error) if isinstance(error, NoInstances) or not self._has_another() else 0.0
        if wait is None:
            return False
        self._count_attempt(error)
        self._timer = asyncio.get_running_loop().call_later(wait, self.start)
        return True

    def _wait(self, error: DynamoException) -> float | None:
        """How long until all instances are tried again."""
        desk, attempts, now = self._desk, self._attempts, self._desk.clock()
        desk.renew()
        if attempts.waits == 0:
            self._failing_since = now
        left = None if desk.context.deadline is None else desk.context.deadline - now
        window = patience(bool(desk.models.seats), desk.hold_seconds)
        wait = wait_before(error, attempts, now - self._failing_since, left, window)
        attempts.waits += 1
        attempts.made = 0
        self._tried.clear()
        return wait

    def _has_another(self) -> bool:
        try:
            self._desk.models.choose(self._tried)
        except NoInstances:
            return False
        return True

    def _count_attempt(self, error: DynamoException) -> None:
        attempts, meter = self._attempts, self._desk.meter
        lost = is_loss(error, attempts)
        attempts.losses += lost
        if lost and attempts.produced:
            attempts.migrations_left -= 1
            meter.migrated("ongoing_request")
        elif not isinstance(error, NoInstances):
            meter.migrated("new_request")
        log.info("[%s] trying again elsewhere: %s", self._desk.context.id(), error)

    def _migrate(self) -> bool:
        """Turn the request into the rest of itself; False where it can't go on elsewhere."""
        if (rest := self._kept.rest(self._request)) is None:
            return False
        self._request = rest
        self._attempts.waits = self._attempts.made = 0
        return True

    def _told(self, error: DynamoException) -> DynamoException:
        """What the client is told: also why a stream that broke off did not go on elsewhere."""
        desk, attempts = self._desk, self._attempts
        if not (error.retryable and attempts.produced and is_loss(error, attempts) and desk.migration_limit):
            return error
        why = self._kept.barred
        if not why and not attempts.migrations_left:
            desk.meter.add("model_migration_exhausted_total")
            why = USED_UP.format(desk.migration_limit)
        return type(error)(f"{error.message}; {why}") if why else error

    def _leave(self) -> None:
        if self._desk.watch is not None:
            self._desk.watch.leave(self)
        if self._ticket is not None:
            self._ticket.close()
            self._ticket = None
        if self._seat is not None:
            self._seat.open_streams -= 1
            self._seat = None
            if self._desk.hints.session:
                self._desk.models.ended(self._desk.hints)
            if (gate := self._desk.models.gate) is not None:
                gate.eased()


def _key(seat: Seat) -> InstanceKey:
    assert seat.key is not None
    return seat.key
