"""One request, sent to worker after worker: the shell of `retry_policy.py`.

A `Retries` belongs to one `Choice` or one request for vectors, from its start until that is closed. It makes the
attempts (`attempt.py`), waits between them, turns a request into its rest (`migration.py`), and has prompts computed
by prefill workers (`prefill.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

import msgspec

from dynamo.frontend.generation.attempt import Attempt, AttemptOwner
from dynamo.frontend.generation.migration import USED_UP, MigrationState
from dynamo.frontend.generation.prefill import PrefillRouter
from dynamo.frontend.generation.request_scope import RequestScope
from dynamo.frontend.generation.retry_policy import (
    MAX_DEATHS,
    Attempts,
    died,
    is_loss,
    may_go_on,
    patience,
    wait_before,
)
from dynamo.frontend.request_log.log import add_failure
from dynamo.frontend.routing.model_set import AnyRequest
from dynamo.frontend.routing.report import Route
from dynamo.frontend.tracing import routed
from dynamo.runtime.errors import DynamoException, NoInstances
from dynamo.runtime.names import InstanceKey

log = logging.getLogger(__name__)


class RetryOwner(AttemptOwner, Protocol):
    """A choice, or a request for vectors."""

    def chosen(self, awaits_first_token: bool) -> None:
        """Hear that an attempt has its worker; `awaits_first_token` asks for a call of `prefilled`."""

    def failed(self, error: DynamoException) -> None:
        """Hear that no other attempt is made."""


class Retries:
    """Sends a request to worker after worker, until its owner has all of the answer or no attempt is left."""

    __slots__ = (
        "_attempt", "_before", "_closed", "_failing_since", "_index", "_lost_as", "_lost_at", "_migration", "_owner",
        "_prefill", "_progress", "_request", "_scope", "_timer", "_tried",
    )  # fmt: skip

    def __init__(
        self, owner: RetryOwner, index: int, request: AnyRequest, scope: RequestScope, migration: MigrationState | None
    ) -> None:
        """Begin; `index` is the choice's among those of its request.

        Where `migration` is None, it goes on nowhere once it has begun.
        """
        self._owner, self._index, self._request, self._scope = owner, index, request, scope
        self._migration = migration
        self._progress = Attempts(migrations_left=scope.migration.limit)
        self._tried: set[InstanceKey] = set()
        self._attempt: Attempt | None = None
        self._before = 0
        """Tokens of attempts before the current one, whose answer is part of its prompt."""
        self._timer: asyncio.TimerHandle | None = None
        self._failing_since = 0.0
        self._lost_as, self._lost_at = "", 0.0
        """What kind of migration is under way, and since when; neither where none is."""
        self._closed = False
        self._prefill: PrefillRouter | None = None
        if scope.prefills is not None and scope.prefills.any:
            self._prefill = PrefillRouter(scope.prefills, index, scope, self)

    def start(self) -> None:
        """Make an attempt: the first one, or the next one after a wait."""
        self._timer = None
        if self._prefill is None:
            self._send(self._request)
            return
        try:
            self._prefill.start(self._request, self._owner.tokens)
        except DynamoException as error:
            self.failed(error)

    def cancel(self) -> None:
        """End everything; the owner hears nothing more."""
        self._closed = True
        self._recovered("cancelled")
        if self._timer is not None:
            self._timer.cancel()
        self._drop_prefill()
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None

    def finish(self, *, abandon: bool) -> None:
        """Leave the worker, since the answer is complete; `abandon` ends a stream that still runs."""
        self._closed = True
        self._recovered("success")
        self._prefill = None
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if abandon:
            attempt.abandon()
        else:
            attempt.leave()

    def prefilled(self) -> None:
        """Hear that the first token of an attempt came."""
        self._recovered("success")
        if self._attempt is not None:
            self._attempt.prefilled()

    def give_up(self, error: DynamoException) -> None:
        """End an attempt because of what its worker did, or didn't do; another one may follow."""
        attempt = self._attempt
        if attempt is not None:
            attempt.cancel()
        self.failed(error)

    def failed(self, error: DynamoException) -> None:
        """Arrange another attempt after one that has failed, or tell the owner that there is none."""
        attempt, progress, tokens = self._attempt, self._progress, self._owner.tokens
        if self._scope.events is not None:
            add_failure(self._scope.events, self._scope.clock(), error.message)
        if attempt is not None:
            attempt.leave()
            self._attempt = None
        progress.produced, progress.under_way = tokens > 0, tokens > self._before
        if attempt is not None and died(error) and not progress.produced:
            self._blame(attempt)
        # A request to one worker is nobody else's.
        pinned = self._scope.hints.instance is not None
        if not pinned and may_go_on(error, progress) and self._again(error):
            return
        self._fail(error if pinned else self._explained(error))

    # For the prefill router.

    def awaits_prefill(self, tokens: int) -> bool:
        """Tell whether what a prefill worker hands out is still of use; `tokens` the answer had when it was asked."""
        answered = self._attempt is not None and self._owner.tokens != tokens
        return not (self._closed or self._timer is not None or answered)

    def decode(self, changes: dict[str, Any] | None) -> None:
        """Send the request to a decode worker, with `changes` that a prefill worker has handed out for this attempt."""
        self._withdraw()
        self._send(self._request if changes is None else msgspec.structs.replace(self._request, **changes))

    def prefill_worker_died(self, error: DynamoException, key: InstanceKey, sent: float) -> bool:
        """Count a prefill worker that died with the request; True: no other one may be tried."""
        suspects, progress = self._scope.models.suspects, self._progress
        if suspects is not None:
            suspects.lost(self._request, key, sent)
        progress.deaths += 1
        if progress.deaths < MAX_DEATHS or self._closed:
            return self._closed
        self._withdraw()
        self._fail(error)
        return True

    # Inside.

    def _send(self, request: AnyRequest) -> None:
        """Choose a worker for the request, and open a stream there; failures go the way of later ones."""
        scope, owner, progress = self._scope, self._owner, self._progress
        self._before = owner.tokens
        span = None if scope.trace is None else scope.trace.route(self._index, progress.made)
        try:
            suspect, excluded = self._excluded()
            attempt = self._attempt = Attempt(owner, scope, scope.models, scope.hints, suspect)
            worker = scope.worker = attempt.choose(request, excluded)
            attempt.note(prefill=False, again=progress.losses > 0 or bool(self._tried))
            progress.made += 1
            if worker.key is not None:
                self._tried.add(worker.key)
            owner.chosen(attempt.awaits_first_token or bool(self._lost_as))
            attempt.count_output()
            if scope.explanation is not None or log.isEnabledFor(logging.DEBUG):
                self._explain(attempt.route())
            attempt.open(request, scope.context if span is None else routed(span, scope.context, worker.id))
            if span is not None:
                span.end()
            attempt.watch()
        except DynamoException as error:
            if span is not None:
                span.end(str(error))
            self.failed(error)

    def _excluded(self) -> tuple[bytes | None, set[InstanceKey]]:
        """Return the digest of a request that may take workers down, and the workers that an attempt may not go to.

        Raises `TakesWorkersDown` where the request was with too many that died.
        """
        models = self._scope.models
        suspects = models.suspects
        if suspects is None or not suspects.kept or (digest := suspects.known(self._request)) is None:
            return None, self._tried
        suspects.check(digest)
        return digest, self._tried | suspects.excluded(digest, models.routable)

    def _explain(self, route: Route) -> None:
        scope = self._scope
        log.debug("[%s] choice %d goes to %s", scope.context.id(), self._index, route.line())
        if scope.explanation is not None:
            scope.explanation.routed(self._index, route)

    def _again(self, error: DynamoException) -> bool:
        """Arrange another attempt; False where none is left."""
        if self._progress.under_way and not self._migrate():
            return False
        wait = self._wait(error) if isinstance(error, NoInstances) or not self._has_another() else 0.0
        if wait is None:
            return False
        self._count_attempt(error)
        self._timer = asyncio.get_running_loop().call_later(wait, self.start)
        return True

    def _wait(self, error: DynamoException) -> float | None:
        """Return for how long to wait until all instances are tried again; None: not at all."""
        scope, progress, now = self._scope, self._progress, self._scope.clock()
        scope.renew()
        if progress.waits == 0:
            self._failing_since = now
        left = None if scope.context.deadline is None else scope.context.deadline - now
        window = patience(bool(scope.models.workers), scope.hold_seconds)
        wait = wait_before(error, progress, now - self._failing_since, left, window)
        progress.waits += 1
        progress.made = 0
        self._tried.clear()
        return wait

    def _has_another(self) -> bool:
        try:
            self._scope.models.choose(self._tried)
        except NoInstances:
            return False
        return True

    def _count_attempt(self, error: DynamoException) -> None:
        progress = self._progress
        lost = is_loss(error, progress)
        progress.losses += lost
        progress.deaths += died(error) and not progress.produced
        if lost and progress.produced:
            progress.migrations_left -= 1
            self._lost("ongoing_request")
        elif not isinstance(error, NoInstances):
            self._lost("new_request")
        log.info("[%s] trying again elsewhere: %s", self._scope.context.id(), error)

    def _lost(self, kind: str) -> None:
        """Count a migration, and begin to measure how long its client waits, unless it waits already."""
        self._scope.meter.migrated(kind)
        if not self._lost_as:
            self._lost_as, self._lost_at = kind, self._scope.clock()

    def _recovered(self, outcome: str) -> None:
        """Note how a migration that is under way has ended."""
        if self._lost_as:
            self._scope.meter.recovered(self._lost_as, outcome, self._scope.clock() - self._lost_at)
            self._lost_as = ""

    def _migrate(self) -> bool:
        """Turn the request into the rest of itself; False where it can't go on elsewhere."""
        if self._migration is None or (rest := self._migration.rest(self._request)) is None:
            return False
        self._request = rest
        self._progress.waits = self._progress.made = 0
        return True

    def _explained(self, error: DynamoException) -> DynamoException:
        """Return the error for the client: also why a stream that broke off did not go on elsewhere."""
        scope, progress, migration = self._scope, self._progress, self._migration
        if migration is None or not (error.retryable and progress.produced and is_loss(error, progress)):
            return error
        why = migration.barred
        if not why and not progress.migrations_left:
            scope.meter.add("model_migration_exhausted_total")
            why = USED_UP.format(scope.migration.limit)
        return type(error)(f"{error.message}; {why}") if why else error

    def _blame(self, attempt: Attempt) -> None:
        """Remember that a worker died before it gave the first token of the request."""
        suspects = self._scope.models.suspects
        if attempt.key is not None and suspects is not None:
            suspects.lost(self._request, attempt.key, attempt.sent)

    def _withdraw(self) -> None:
        """Cancel an attempt that waits for what will not come; its worker may well be the one that computes it now."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        attempt.cancel()
        if attempt.key is not None:
            self._tried.discard(attempt.key)

    def _fail(self, error: DynamoException) -> None:
        self._closed = True
        self._recovered("failure")
        self._drop_prefill()
        self._owner.failed(error)

    def _drop_prefill(self) -> None:
        prefill, self._prefill = self._prefill, None  # it holds this
        if prefill is not None:
            prefill.cancel()
