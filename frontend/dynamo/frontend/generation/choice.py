"""One choice of one request: the deltas of workers become text.

`responses/response.py` starts one `Choice` per choice and listens. The runtime calls `on_item` once per delta while it
handles a message, so what happens per token is all in there. `retries.py` sends the request, again where need be.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from dynamo.frontend.generation.migration import OTHER, MigrationState, Replay
from dynamo.frontend.generation.request_scope import Listener, RequestScope
from dynamo.frontend.generation.retries import Retries
from dynamo.frontend.routing.model_set import AnyRequest
from dynamo.llm.processing.detokenize import Detokenizer
from dynamo.llm.processing.request_options import field, stop_strings
from dynamo.llm.processing.stop_strings import StopMatcher
from dynamo.llm.protocols import (
    CACHED_TOKENS,
    COMPLETION_TOKENS,
    ERROR,
    MESSAGE,
    PROMPT_TOKENS,
    STOP_REASON,
    PreprocessedRequest,
    TextRequest,
    count_of,
    read_delta,
)  # fmt: skip
from dynamo.runtime.errors import DynamoException, EngineError

log = logging.getLogger(__name__)


class Choice:
    """One answer to one request, as text."""

    __slots__ = (
        "_awaits_first_token", "_before", "_closed", "_counted", "_detokenizer", "_emit", "_floor", "_keep",
        "_listener", "_logprobs", "_migration", "_plain", "_replay", "_request", "_retries", "_scope", "_stop_reason",
        "_stops", "cached", "finish_reason", "index", "knows_cached", "prefix", "prompt_tokens",
    )  # fmt: skip

    def __init__(self, index: int, request: AnyRequest, scope: RequestScope, listener: Listener[Choice]) -> None:
        self.index, self.prefix = index, b""
        """`prefix`: the listener's, what its stream has before each text."""
        self._request, self._scope, self._listener = request, scope, listener
        self._migration = _migration(request, scope) if scope.migration.limit > 0 else None
        self._keep = None if self._migration is None else self._migration.add
        self._retries: Retries | None = None
        """From the start until the choice is closed."""
        self._closed = self._awaits_first_token = False
        self._detokenizer: Detokenizer | None = None
        self._logprobs = False
        self._emit = listener.text
        self._plain: Detokenizer | None = None
        self._replay: Replay | None = None
        """There while an attempt makes anew what the client has."""
        self._counted = self._before = self.cached = self.prompt_tokens = 0
        self.knows_cached = False
        """The engine has said how many tokens of the prompt it had cached."""
        self.finish_reason: str | None = None
        self._stop_reason: str | int | None = None
        self._stops: StopMatcher | None = None
        self._floor = 0
        if isinstance(request, PreprocessedRequest):
            model = scope.models.model
            assert model is not None
            assert model.preprocessor is not None
            output, tokenizer = request.output_options, model.preprocessor.tokenizer
            self._logprobs = output.logprobs is not None or output.prompt_logprobs is not None or scope.token_ids
            self._detokenizer = Detokenizer.for_request(tokenizer, request, scope.shown, measured=self._logprobs)
            self.prompt_tokens = request.prompt_tokens
        elif isinstance(request, TextRequest):
            self._watch_for_stops(request.body)

    def _watch_for_stops(self, body: dict[str, Any]) -> None:
        """Stop strings are the same work for engines of either kind."""
        if stops := stop_strings(body.get("stop")):
            self._stops = StopMatcher(stops, bool(field(body, "include_stop_str_in_output")))
            self._floor = int(field(body, "min_tokens") or 0)

    @property
    def tokens(self) -> int:
        """Return the tokens produced so far."""
        return self._counted if self._detokenizer is None else self._detokenizer.tokens

    @property
    def stop_reason(self) -> str | int | None:
        """Return the stop string or token id that ended it."""
        return self._stop_reason if self._detokenizer is None else self._detokenizer.stop_reason

    def start(self) -> None:
        """Send the request to a worker; failures come through the listener."""
        self._retries = Retries(self, self.index, self._request, self._scope, self._migration)
        self._retries.start()

    def cancel(self) -> None:
        """End it; the listener is not called any more."""
        self._closed = True
        retries, self._retries = self._retries, None
        if retries is not None:
            retries.cancel()

    def chosen(self, awaits_first_token: bool) -> None:
        """Hear that an attempt has its worker."""
        self._before, self._awaits_first_token = self.tokens, awaits_first_token
        self._plain = None
        self._replay = None if self._migration is None else self._migration.replay()
        if not awaits_first_token:
            self._shorten()

    def on_item(self, data: Any, last: bool) -> None:
        """Take one delta of the engine."""
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
                if (reason := plain.finish_reason) is None:
                    return
                self.finish_reason = reason
            else:
                produced, finish, extras = read_delta(data)
                self._delta(produced, finish, extras)
        except DynamoException as error:
            self.stalled(error)
        except Exception as error:  # whatever a foreign engine put into the delta must end this stream only
            log.warning("[%s] unreadable delta", self._scope.context.id(), exc_info=True)
            self.stalled(EngineError(f"a worker sent what can't be read: {error}"))
        else:
            if self.finish_reason is not None:
                self._finish(abandon=finish is None and not last)

    def _delta(self, produced: Any, finish: str | None, extras: dict[str, Any] | None) -> None:
        if finish == ERROR:
            raise EngineError(str((extras or {}).get(MESSAGE) or "the engine failed"))
        if self._detokenizer is not None:
            self._tokens(self._detokenizer, produced, finish, extras)
        else:
            self._text(produced, finish, extras)

    def on_end(self, error: DynamoException | None) -> None:
        """Hear that the stream is over."""
        if self._closed:
            return
        if error is not None:
            self._retry(error)
            return
        # A clean end without a reason: handlers of users often just return.
        self.on_item(["" if self._detokenizer is None else [], "stop", None], True)

    def _tokens(self, detokenizer: Detokenizer, ids: Any, finish: str | None, extras: dict[str, Any] | None) -> None:
        if type(ids) is not list:
            if ids:
                raise ValueError("text, from an engine that makes tokens")
            ids = []  # an end without tokens may come in either form
        if self._replay is not None:
            ids = self._new(self._replay, ids, finish)
        if (keep := self._keep) is not None:
            for token in ids:
                keep(token)
        if extras and not self._before:  # later attempts find what was answered in their caches, too
            self.cached = count_of(extras, CACHED_TOKENS, self.cached)
            self.prompt_tokens = count_of(extras, PROMPT_TOKENS, self.prompt_tokens)  # of images the engine knows best
            self.knows_cached |= CACHED_TOKENS in extras
        if self._awaits_first_token and ids:
            self._first_token()
        if self._logprobs:
            self._with_logprobs(detokenizer, ids, finish, extras)
            return
        text, self.finish_reason, _ = detokenizer.push(ids, finish)
        if text:
            self._emit(self, text)

    def _new(self, replay: Replay, ids: list[int], finish: str | None) -> list[int]:
        """Drop what the client has of an answer that is made anew; raises where it is another answer."""
        new = replay.new(ids)
        if replay.over:
            self._replay = None
            if not self._awaits_first_token:
                self._shorten()
        elif finish is not None:
            raise EngineError(OTHER)
        return new

    def _first_token(self) -> None:
        self._awaits_first_token = False
        if self._retries is not None:
            self._retries.prefilled()
        self._shorten()

    def _shorten(self) -> None:
        """Let single tokens take the shortest way from now on: nothing else has to know of them."""
        if not self._logprobs and self._replay is None:
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
            if self._awaits_first_token:
                self._first_token()
        if extras:
            self.cached = count_of(extras, CACHED_TOKENS, self.cached)
            self.knows_cached |= CACHED_TOKENS in extras
            self.prompt_tokens = count_of(extras, PROMPT_TOKENS, self.prompt_tokens)
            self._counted = count_of(extras, COMPLETION_TOKENS, self._counted)
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

    def stalled(self, error: DynamoException) -> None:
        """Give the worker up: it has said nothing for too long, or what can't be read."""
        if self._retries is not None:
            self._retries.give_up(error)

    def failed(self, error: DynamoException) -> None:
        """Hear that no other attempt is made."""
        self._closed, self._retries = True, None
        self._listener.failed(self, error)

    def _retry(self, error: DynamoException) -> None:
        if self._retries is not None:
            self._retries.failed(error)

    def _finish(self, *, abandon: bool) -> None:
        self._closed = True
        retries, self._retries = self._retries, None
        if retries is not None:
            retries.finish(abandon=abandon)
        self._listener.finished(self)


def _migration(request: AnyRequest, scope: RequestScope) -> MigrationState:
    return MigrationState(
        request, scope.migration, partial(scope.meter.add, "model_migration_max_seq_len_exceeded_total"),
        resumes=scope.models.card.resumes_constraints,
    )  # fmt: skip
