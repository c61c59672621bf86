"""Requests in two parts: a prefill worker computes the prompt, a decode worker goes on with it.

As NVIDIA Dynamo's prefill router does it: the request goes to the prefill pool with `max_tokens` 1, and its one token
is not used. Then there are two forms, as the prefill worker has it: *hand-over*, its `disaggregated_params` go with the
request to the decode pool once they are there; *bootstrap*, both requests are sent at once with the same room, and the
engines meet there. Where the first part fails, or nobody is there for it, the decode worker computes the prompt itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import getrandbits
from typing import Any, Final, Protocol

import msgspec

from dynamo.frontend.generation.attempt import Attempt
from dynamo.frontend.generation.request_scope import RequestScope
from dynamo.frontend.generation.retry_policy import died
from dynamo.frontend.routing.disaggregation import MOST_PARTS, tries_another
from dynamo.frontend.routing.model_set import AnyRequest, ModelSet, Worker
from dynamo.frontend.routing.prefill_pools import UNREACHABLE, Prefills, prefill_hints
from dynamo.llm.protocols import (
    DISAGGREGATED_PARAMS,
    ERROR,
    MESSAGE,
    BootstrapInfo,
    PrefillResult,
    PreprocessedRequest,
    read_delta,
)
from dynamo.runtime.errors import DynamoException, EngineError
from dynamo.runtime.names import InstanceKey

log = logging.getLogger(__name__)
FALLBACKS: Final = "model_prefill_fallbacks_total"
Hand = Callable[[dict[str, Any] | None], None]
"""Hears what the decode worker's request needs beside the rest; None: the prompt is computed nowhere else."""
WorkerDied = Callable[[DynamoException, InstanceKey, float], bool]
"""Hears of a worker that died, and when the request was sent to it; True: no other may be tried."""


class DecodeSide(Protocol):
    """Sends the second part of a request, as `Retries` does."""

    def awaits_prefill(self, tokens: int) -> bool:
        """Tell whether what a prefill worker hands out is still of use."""

    def decode(self, changes: dict[str, Any] | None) -> None:
        """Send the request to a decode worker; None: without anything from a prefill worker."""

    def prefill_worker_died(self, error: DynamoException, key: InstanceKey, sent: float) -> bool:
        """Count a prefill worker that died with the request; True: no other one may be tried."""


class PrefillRouter:
    """Has the prompt of each attempt computed by a prefill worker, until one fails or two were in vain."""

    __slots__ = ("_alone", "_decode_side", "_in_vain", "_index", "_prefills", "_scope", "_stage", "_tokens")

    def __init__(self, prefills: Prefills, index: int, scope: RequestScope, decode_side: DecodeSide) -> None:
        self._prefills, self._index, self._scope, self._decode_side = prefills, index, scope, decode_side
        self._alone = False
        """The decode worker computes the prompt from now on."""
        self._tokens = self._in_vain = 0
        """Tokens that the answer had, and the stages since then that brought it no further."""
        self._stage: PrefillStage | None = None

    def start(self, request: AnyRequest, tokens: int) -> None:
        """Have the prompt computed where that is worth it, and the request decoded with what comes of it, or without.

        `tokens` are those that the answer has. Raises `TakesWorkersDown` where the request is refused.
        """
        self.cancel()  # what was computed for an attempt before is for nobody else
        suspects = self._scope.models.suspects
        if suspects is not None and (digest := suspects.known(request)) is not None:
            suspects.check(digest)
        pool = self._pool(request, tokens)
        if pool is None or not isinstance(request, PreprocessedRequest):
            self._explain_local()
            self._decode_side.decode(None)
            return
        self._in_vain += 1
        self._stage = PrefillStage(
            pool,
            self._index,
            request,
            self._scope,
            hand=self._handed,
            worker_died=self._decode_side.prefill_worker_died,
        )
        self._stage.start()

    def cancel(self) -> None:
        """End the stage that runs, if any."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.cancel()

    def _pool(self, request: AnyRequest, tokens: int) -> ModelSet | None:
        """Return the prefill workers for the request; None: its decode worker computes the prompt."""
        if not self._worth_it(tokens):
            return None
        scope = self._scope
        pool, reason = self._prefills.for_prompt(scope.models, request, scope.hints)
        if reason:
            text = "[%s] choice %d: the decode worker computes the prompt: %s"
            log.debug(text, scope.context.id(), self._index, reason)
            scope.meter.add(FALLBACKS if reason == UNREACHABLE else "model_local_prefills_total")
        return pool

    def _worth_it(self, tokens: int) -> bool:
        """Tell whether a prefill worker should be asked again: a way to the decode pool may be broken for good."""
        if self._tokens != tokens:
            self._tokens, self._in_vain = tokens, 0
        if not self._alone and self._in_vain >= MOST_PARTS:
            self._alone = True
            self._scope.meter.add(FALLBACKS)
        return not self._alone

    def _handed(self, changes: dict[str, Any] | None) -> None:
        if changes is None:
            self._alone = True
        if not self._decode_side.awaits_prefill(self._tokens):
            return  # it is over, or will begin anew by itself, or has what it needs
        if changes is None:
            self._scope.meter.add(FALLBACKS)
            self._explain_local()
        self._decode_side.decode(changes)

    def _explain_local(self) -> None:
        if self._scope.explanation is not None:
            self._scope.explanation.computed(self._index, None)


class PrefillStage:
    """The first part of a request: up to two attempts at prefill workers."""

    def __init__(
        self, models: ModelSet, index: int, request: PreprocessedRequest, scope: RequestScope, *,
        hand: Hand, worker_died: WorkerDied,
    ) -> None:  # fmt: skip
        """Begin the stage; `hand` hears in time what the second part needs."""
        ends = msgspec.structs.replace(request.stop_conditions, max_tokens=1, min_tokens=None)
        self._request = msgspec.structs.replace(request, stop_conditions=ends)
        self._models, self._index, self._scope, self._hand = models, index, scope, hand
        self._worker_died = worker_died
        self._hints = prefill_hints(scope.hints)
        self._tried: set[InstanceKey] = set()
        self._attempt: Attempt | None = None
        self._params: dict[str, Any] | None = None
        self._bootstrap: BootstrapInfo | None = None
        self._over = False
        self.tokens = 0
        """Always 0: it gives one token, and ends with it."""

    def start(self) -> None:
        """Send the request to a worker that hasn't failed it yet."""
        scope = self._scope
        self._params = self._bootstrap = None
        attempt = self._attempt = Attempt(self, scope, self._models, self._hints)
        try:
            worker = attempt.choose(self._request, self._tried)
            attempt.note(prefill=True, again=bool(self._tried))
            assert worker.key is not None
            self._tried.add(worker.key)
            self._bootstrap = _bootstrap_of(worker)
            self._explain(attempt)
            request = self._request
            if self._bootstrap is not None:
                request = msgspec.structs.replace(request, bootstrap_info=self._bootstrap)
            attempt.open(request, scope.context)
            if self._bootstrap is None:
                attempt.watch()
        except DynamoException as error:
            self.on_end(error)
            return
        if self._bootstrap is not None:
            self._hand({"bootstrap_info": self._bootstrap})

    def cancel(self) -> None:
        """End it; `hand` hears nothing more."""
        if not self._over:
            if self._attempt is not None:
                self._attempt.cancel()
            self._end()

    def on_item(self, data: Any, last: bool) -> None:
        """Take what the prefill worker hands out."""
        if self._over:
            return
        try:
            produced, finish, extras = read_delta(data)
        except ValueError as error:
            self.stalled(EngineError(f"a prefill worker sent what can't be read: {error}"))
            return
        if finish == ERROR:
            self.stalled(EngineError(str((extras or {}).get(MESSAGE) or "the prefill engine failed")))
            return
        if produced and self._attempt is not None:
            self._attempt.prefilled()
        params = (extras or {}).get(DISAGGREGATED_PARAMS)
        if isinstance(params, dict):
            self._params = params

    def on_end(self, error: DynamoException | None) -> None:
        """Hand out what came of the stream that is over, or try another worker."""
        if self._over:
            return
        attempt, self._attempt = self._attempt, None
        assert attempt is not None
        attempt.leave()
        key = attempt.key
        if error is not None and died(error) and key is not None and self._worker_died(error, key, attempt.sent):
            self._end()
        elif error is None and (self._params is not None or self._bootstrap is not None):
            self._done()
        elif tries_another(error, len(self._tried), self._time_left()):
            log.info("[%s] another prefill worker is tried: %s", self._scope.context.id(), error)
            self.start()
        else:
            reason = error or "the prefill worker handed nothing out"
            log.info("[%s] the decode worker computes the prompt: %s", self._scope.context.id(), reason)
            self._end()(None)

    def stalled(self, error: DynamoException) -> None:
        """End the attempt at a worker that says nothing, or what can't be used."""
        if self._attempt is not None:
            self._attempt.cancel()
        self.on_end(error)

    def _explain(self, attempt: Attempt) -> None:
        scope, route = self._scope, attempt.route()
        log.debug("[%s] choice %d has its prompt computed by %s", scope.context.id(), self._index, route.line())
        if scope.explanation is not None:
            scope.explanation.computed(self._index, route)

    def _done(self) -> None:
        self._scope.meter.add("model_remote_prefills_total")
        hand = self._end()
        if self._bootstrap is None and self._params is not None:
            hand({"prefill_result": PrefillResult(disaggregated_params=self._params)})

    def _end(self) -> Hand:
        """Let go of those who hold it, and return who heard what it handed out."""
        hand, self._hand, self._worker_died = self._hand, _nobody, _tries_no_other
        self._over, self._attempt = True, None
        return hand

    def _time_left(self) -> float | None:
        deadline = self._scope.context.deadline
        return None if deadline is None else deadline - self._scope.clock()


def _nobody(changes: dict[str, Any] | None) -> None:
    """Hear nothing more."""


def _tries_no_other(error: DynamoException, key: InstanceKey, sent: float) -> bool:
    """Hear of no worker that died."""
    return True


def _bootstrap_of(worker: Worker) -> BootstrapInfo | None:
    """Return where the engines of a request meet, if its prefill worker is for that; None: it hands over."""
    figures = worker.instance.figures
    port = figures.get("bootstrap_port")
    if port is None or worker.key is None:
        return None
    host = figures.get("bootstrap_host") or f"{worker.key.path}/{worker.key.id:x}"
    return BootstrapInfo(bootstrap_host=str(host), bootstrap_port=int(port), bootstrap_room=getrandbits(63))
