"""What every request to a model has, whatever its answer: bounds, a time limit, a model, figures, one end.

`Route` is the ASGI side, a `Job` one request on its way; `generate.py` and `embeddings.py` say what is answered. How a
request comes in is `intake.py`'s.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, internal, to_api_error
from dynamo.frontend.http.connection import CONNECTION, Connection
from dynamo.frontend.http.requests import (
    ClientGone,
    Receive,
    Scope,
    header,
    request_id,
)  # fmt: skip
from dynamo.frontend.limits.request_threads import Turn
from dynamo.frontend.metrics import OVERLOAD, ModelMeter, error_type
from dynamo.frontend.openai.body import decode
from dynamo.frontend.request_log.log import RUNNING, Event, RequestRecord, Wait
from dynamo.frontend.responses.stream import ClientConnection, Headers, PlainWire, Send, respond_error
from dynamo.frontend.routes.intake import Intake
from dynamo.frontend.routing.admission_gate import AdmissionGate, QueuedRequest
from dynamo.frontend.routing.hints import Hints
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.frontend.services import Services
from dynamo.frontend.tracing import RequestTrace
from dynamo.runtime.errors import DeadlineExceeded, DynamoException

log = logging.getLogger(__name__)
UNKNOWN: Final = "unknown_model"
CLIENT_CLOSED: Final = 499
"""Never sent; how a client that left is counted and logged."""
_LIMIT_OF: Final = {"deadline": "request", "queue_timeout": "queue"}
"""Time limits by the code of the answer that they lead to."""


class Route(ABC):
    """One route, as plain ASGI: what a job raises becomes its answer, counted and logged once."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @abstractmethod
    def job(self, rid: str, headers: Headers) -> Job:
        """Return what answers one request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rid = request_id(scope)
        headers: Headers = [(b"x-request-id", rid.encode())]
        if (origin := header(scope, b"origin")) is not None and (cors := self._services.cors) is not None:
            headers += cors.headers(origin)
        job = self.job(rid, headers)
        if self._services.keys is not None:
            job.caller = header(scope, b"authorization")
        if (tracing := self._services.tracing) is not None:
            job.trace = RequestTrace(tracing, scope, rid)
        if (requests := self._services.request_log) is not None:
            requests.enter(job)
        try:
            await job.run(scope, receive, send)
        except ClientGone:
            job.ended(CLIENT_CLOSED, "cancelled")
        except (ApiError, DynamoException) as error:
            error.__traceback__ = None  # the answer may be it, and would hold this frame, which holds the body
            answer = job.answer_to(error)
            log.log(level_of(answer), "[%s] %d %s", rid, answer.status, answer.message)
            job.ended(answer.status, answer.code)
            await respond_error(send, answer, headers)
        except Exception:  # a mistake of ours: the client gets a 500, the log gets the traceback
            log.exception("[%s] the request failed", rid)
            job.ended(500, "internal_error")
            if job.begun:
                wire_of(scope).abort()
            else:
                await respond_error(send, job.answer_to(internal()), headers)
        finally:
            job.leave()
            if requests is not None:
                requests.leave(job)


def level_of(error: ApiError) -> int:
    """Return how loud an answer is in the log.

    Refusals under load are counted, a line for each would only add to it.
    """
    if error.code in OVERLOAD:
        return logging.DEBUG
    return logging.INFO if error.status < 500 else logging.WARNING


def wire_of(scope: Scope) -> ClientConnection:
    """Return the connection that a request came on."""
    connection = scope.get(CONNECTION)
    return connection if isinstance(connection, Connection) else PlainWire(getattr(connection, "abort", None))


async def until_over(scope: Scope, receive: Receive) -> None:
    """Wait until the answer to a request has left, or its client has."""
    connection = scope.get(CONNECTION)
    if isinstance(connection, Connection) and (over := connection.over(scope)) is not None:
        await over
        return
    while (await receive())["type"] != "http.disconnect":
        pass


class Job(ABC):
    """One request on its way."""

    __slots__ = (
        "_admitted", "_began", "_dispatched", "_endpoint", "_events", "_first", "_headers", "_intake", "_kind",
        "_leave_queue", "_meter", "_model", "_named", "_over", "_preparing", "_queued", "_ready_at", "_rendered_at",
        "_rid", "_sent_at", "_services", "_tokens", "caller", "trace",
    )  # fmt: skip
    # Slots, since CPython keeps more than 30 attributes of an object in a dictionary of its own: 3 µs a request.

    _does = ""
    """What it wants of a model."""

    def __init__(self, services: Services, endpoint: str, rid: str, headers: Headers) -> None:
        self._services, self._endpoint = services, endpoint
        self._rid, self._headers = rid, headers
        self._began = services.clock()
        self._model, self._kind = UNKNOWN, "unary"
        self._named: Any = None
        """The model that its body names."""
        self._meter: ModelMeter | None = None
        self._over = self._queued = self._dispatched = False
        self._preparing = self._ready_at = self._admitted = self._sent_at = self._first = 0.0
        """When its template began, its tokens were there, a worker had room, it was sent, and its first token came."""
        self._rendered_at = 0.0
        """When its template ended, where it has one."""
        self._tokens = 0, 0, 0
        """Of its prompt and its answer, and how many of the prompt's were cached."""
        self._events: list[Event] | None = None if services.request_log is None else []
        self.caller: bytes | None = None
        """The name of its API key, where keys are asked for."""
        self._intake = Intake(services, self._began)
        self.trace: RequestTrace | None = None
        self._leave_queue: Callable[[], None] | None = None

    @property
    def id(self) -> str:
        return self._rid

    @property
    def began(self) -> float:
        return self._began

    def so_far(self) -> RequestRecord:
        """Return what has become of it until now."""
        return self._record(RUNNING, "", self._services.clock(), self._tokens_so_far(), self._events or [])

    def _tokens_so_far(self) -> tuple[int, int, int]:
        return self._tokens

    def _record(
        self, status: int, error: str, now: float, tokens: tuple[int, int, int], events: list[Event]
    ) -> RequestRecord:
        return RequestRecord(
            self._rid, self._endpoint, self._model, self._kind, status, error, self._began, self._preparing,
            self._ready_at, self._first, now, *tokens, tuple(events), self._admitted, self.caller,
        )  # fmt: skip

    @abstractmethod
    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer it; what is raised before anything was sent becomes the answer."""

    def answer_to(self, error: ApiError | DynamoException) -> ApiError:
        """Return what the client is told: whose time limit it was, and the field that it is about."""
        if isinstance(error, DeadlineExceeded) and not self.begun:
            error = self._intake.too_late(error)
        return self.named(to_api_error(error))

    def named(self, error: ApiError) -> ApiError:
        """Return the error with the field that it is about, where a lower layer has refused that."""
        return error

    @property
    def begun(self) -> bool:
        """Tell whether some of the answer has been sent."""
        return False

    def leave(self) -> None:
        """Leave: whatever became of it, it counts against no bound any more."""
        self._intake.leave()

    def _check_wanted(self, scope: Scope) -> None:
        """Raise where nobody waits for the answer any more."""
        deadline = self._intake.deadline
        connection = scope.get(CONNECTION)
        if isinstance(connection, Connection) and connection.cycle.disconnected:
            raise ClientGone
        if deadline is not None and time.monotonic() >= deadline:
            raise DeadlineExceeded("the request's time limit passed before its prompt was read")

    def _decoded(self, raw: bytes, kind: type[msgspec.Struct]) -> dict[str, Any]:
        """Return its body, which may be refused yet; it is counted for the model that it names."""
        body = decode(raw, kind)
        self._named = body.get("model")
        return body

    async def _find(self, name: str, answers: int, does: str, turn: Turn | None = None) -> ModelSet:
        """Find the model that it names, for so many answers of a kind; while it waits for one, others have the turn."""
        self._model = name  # that it is known shows when it is refused: its bound is reached
        self._intake.to_model(name, self._endpoint, answers)
        self._model = UNKNOWN
        hold, deadline = self._services.settings.worker_wait_timeout_secs, self._intake.deadline
        if deadline is not None:
            hold = min(hold, max(0.0, deadline - time.monotonic()))
        pool = self._services.pool
        if not hold or pool.is_served(name, does):
            return await pool.wait_for(name, does, hold)
        if turn is not None:
            turn.leave()
        since = self._services.clock()
        try:
            models = await pool.wait_for(name, does, hold)
        finally:
            if self._events is not None:
                self._events.append(Wait(since, self._services.clock(), "no worker serves the model yet"))
        if turn is not None:
            await turn.enter()
        return models

    def _admit(self, models: ModelSet, hints: Hints, stream: bool = False) -> None:
        """Count it as this model's from now on; raises where its workers would refuse it now."""
        self._model, self._kind = models.name, "stream" if stream else "unary"
        self._meter = self._services.metrics.meter(models.name)
        self._meter.gauges["inflight_requests"] += 1
        self._meter.gauges["queued_requests"] += 1
        self._queued = True
        self._services.metrics.started(self._model, self._endpoint, self._kind)
        if models.gate is not None and not hints.asks:
            models.gate.look(hints.instance, hints.dp_rank)

    def _pass(self, gate: AdmissionGate, request: QueuedRequest, hints: Hints) -> None:
        """Have it go on once there is room; the whole request takes one place where there isn't."""
        request = request._replace(go=partial(self._go, request.go))
        if hints.instance is not None:
            gate.enter_pinned(request, hints.instance, hints.dp_rank)
        elif (entry := gate.enter(request)) is not None:
            self._leave_queue = lambda: gate.leave(entry)

    def _go(self, go: Callable[[], None]) -> None:
        """Go on: a worker has room."""
        self._admitted = self._services.clock()
        go()

    def _left_early(self) -> None:
        self._services.metrics.disconnected += 1
        if self._meter is not None:
            self._meter.cancelled(self._endpoint, self._kind)

    def _ready(self) -> float:
        """Note that its tokens are there, and return the time."""
        now, metrics = self._services.clock(), self._services.metrics
        self._ready_at = now
        metrics.preprocess.record(now - self._began)
        if self._preparing:
            metrics.prepared(self._preparing, self._rendered_at, now)
        if self._queued and self._meter is not None:
            self._dispatched = True
            self._meter.dispatched += 1
        return now

    def _sent(self, ready: float) -> None:
        """Note that it was sent, or waits for a worker with room."""
        self._sent_at = now = self._services.clock()
        self._services.metrics.route.record(now - ready)

    def _first_came(self) -> None:
        """Note its first token."""
        self._first = now = self._services.clock()
        self._unqueue()
        if self._meter is not None:
            self._meter.record_ttft(now - self._began)
        self._services.metrics.dispatch.record(now - (self._sent_at or now))

    def _unqueue(self) -> None:
        """Note that it waits for its first token no more."""
        if self._queued and self._meter is not None:
            self._queued = False
            self._meter.gauges["queued_requests"] -= 1
            if self._dispatched:
                self._meter.dispatched -= 1

    def ended(self, status: int, code: str) -> None:
        """Count the request, once."""
        if self._over:
            return
        self._over = True
        if self.trace is not None:
            self.trace.ended(status, code)
        error = error_type(status, code) if status != 200 else ""
        if error and self._model is UNKNOWN and isinstance(named := self._named, str):
            self._model = named if self._services.pool.is_served(named, self._does) else UNKNOWN
        self._services.metrics.ended(self._model, self._endpoint, self._kind, error)
        if self.caller is not None:
            self._services.tenants.ended(self.caller, self._model, bool(error), self._tokens)
        now = self._services.clock()
        took = now - self._began
        if (events := self._events) is not None and (requests := self._services.request_log) is not None:
            requests.add(self._record(status, error and code, now, self._tokens, events))
        if status == 503 and self._meter is not None:
            self._meter.rejected(code, self._endpoint)
        if (limit := _LIMIT_OF.get(code)) is not None:
            self._services.metrics.hit(limit)
        if self._meter is not None:
            self._meter.gauges["inflight_requests"] -= 1
            self._unqueue()
            self._meter.record_duration(took)
        log.debug("[%s] %s %s %d in %.3f s", self._rid, self._endpoint, self._model, status, took)
