"""POST /v1/chat/completions and /v1/completions, as plain ASGI.

One task per request: it reads and checks, starts the choices, and then only waits until
the answer is complete or the client is gone. Tokens reach the client from the runtime's
callbacks (`answers.py`), without waking this task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from random import getrandbits
from typing import Any, Final

from dynamo.frontend import openai
from dynamo.frontend.answers import STREAM_HEADERS, Answer, Shape, StreamAnswer, WholeAnswer
from dynamo.frontend.chunks import DONE, Identity
from dynamo.frontend.desk import Desk
from dynamo.frontend.door import Visit
from dynamo.frontend.errors import ApiError, internal, to_api_error
from dynamo.frontend.explaining import FIELDS, Explanation, query_answer, route_of
from dynamo.frontend.gate import Gate, Visitor
from dynamo.frontend.generation import Choice
from dynamo.frontend.hints import NO_HINTS, Hints, read_hints
from dynamo.frontend.http_server import CONNECTION, Connection
from dynamo.frontend.metrics import OVERLOAD, ModelMeter, error_type
from dynamo.frontend.model_set import ModelSet
from dynamo.frontend.openai import ChatRequest, CompletionRequest
from dynamo.frontend.prefilling import new_choice
from dynamo.frontend.requests import (
    TIMEOUT_HEADER,
    ClientGone,
    Receive,
    Scope,
    check_json,
    read_body,
    request_id,
    timeout_seconds,
)  # fmt: skip
from dynamo.frontend.services import Services
from dynamo.frontend.stream import Headers, Output, PlainWire, Send, Wire, respond, respond_error
from dynamo.frontend.tracing import RequestTrace
from dynamo.llm.card import CHAT, COMPLETIONS
from dynamo.llm.protocols import PreprocessedRequest, TextRequest
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DeadlineExceeded, DynamoException

log = logging.getLogger(__name__)
UNKNOWN: Final = "unknown_model"
SHORT_BODY: Final = 4096
"""Bytes; prompts of shorter bodies are tokenised on the loop, others take their model's turn in the threads."""
_LIMIT_OF: Final = {"deadline": "request", "queue_timeout": "queue"}
"""Time limits by the code of the answer that they lead to."""
CLIENT_CLOSED = 499
"""Never sent; how a client that left is counted and logged."""


class GenerateRoute:
    """One of the two routes."""

    def __init__(self, services: Services, *, chat: bool) -> None:
        self._services, self._chat = services, chat
        self._endpoint = "chat_completions" if chat else "completions"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rid = request_id(scope)
        headers: Headers = [(b"x-request-id", rid.encode()), *self._services.cors.headers(scope["headers"])]
        job = _Job(self._services, self._chat, self._endpoint, rid, headers)
        job.trace = RequestTrace.of(self._services.tracing, scope, rid)
        try:
            await job.run(scope, receive, send)
        except ClientGone:
            job.ended(CLIENT_CLOSED, "cancelled")
        except (ApiError, DynamoException) as error:
            answer = openai.name_field(to_api_error(error), self._chat)
            log.log(_level(answer), "[%s] %d %s", rid, answer.status, error)
            job.ended(answer.status, answer.code)
            await respond_error(send, answer, headers)
        except Exception:  # a mistake of ours: the client gets a 500, the log gets the traceback
            log.exception("[%s] the request failed", rid)
            job.ended(500, "internal_error")
            if job.output is not None and job.output.started:
                _wire(scope).abort()
            else:
                await respond_error(send, internal(), headers)
        finally:
            job.leave()


def _seed(seed: int | None, choice: int) -> dict[str, int]:
    """The seed of one choice: were it the same for all, they would be alike."""
    return {} if seed is None else {"seed": seed + choice}


def _level(error: ApiError) -> int:
    """How loud an answer is in the log: refusals under load are counted, a line for each would only add to it."""
    if error.code in OVERLOAD:
        return logging.DEBUG
    return logging.INFO if error.status < 500 else logging.WARNING


def _wire(scope: Scope) -> Wire:
    found = scope.get(CONNECTION)
    return found if isinstance(found, Connection) else PlainWire(getattr(found, "abort", None))


class _Job:
    """One request on its way."""

    def __init__(self, services: Services, chat: bool, endpoint: str, rid: str, headers: Headers) -> None:
        self._services, self._chat, self._endpoint = services, chat, endpoint
        self._route = CHAT if chat else COMPLETIONS
        self._rid, self._headers = rid, headers
        self._began = services.clock()
        self._model, self._kind = UNKNOWN, "unary"
        self._meter: ModelMeter | None = None
        self._over = False
        self._visit: Visit | None = None
        self._limit_said = ""
        self.output: Output | None = None
        self.answer: Answer | None = None
        self.trace: RequestTrace | None = None
        self._leave_queue: Callable[[], None] | None = None
        self._explained: Explanation | None = None

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await self._begin(scope, receive, send):
            return
        try:
            await self._wait(receive)
        finally:
            await self._close()

    def leave(self) -> None:
        """Whatever became of it, it counts against no bound any more."""
        if self._visit is not None:
            self._visit.leave()

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Read, check and start; False where that was all. The body is let go of: an answer may take long."""
        services = self._services
        if services.door is not None:
            self._visit = services.door.enter(scope)
        check_json(scope)
        deadline = self._deadline(scope)
        raw = await self._read(scope, receive, deadline)
        body = openai.decode(raw)
        request = openai.read_chat(body) if self._chat else openai.read_completion(body)
        services.check_fields(body, type(request), self._rid)
        hints = read_hints(scope, request.nvext, services.policy.sessions)
        if self._visit is not None:
            self._model = request.model  # that it is known shows when it is refused: its bound is reached
            self._visit.to_model(request.model, openai.answers(request))
            self._model = UNKNOWN
        models = await self._find(request.model, deadline)
        if hints is not NO_HINTS:
            models = services.pool.settle(models, hints)
        self._admit(models, bool(request.stream))
        if models.gate is not None and not hints.asks:
            models.gate.look(hints.instance, hints.dp_rank)
        if len(raw) <= SHORT_BODY:
            requests, shape = await self._prepare(models, request, body)
        else:
            async with models.long_prompts:
                self._check_wanted(scope, deadline)
                requests, shape = await self._prepare(models, request, body)
        if hints.asks:
            await self._tell(models, requests[0], hints, send)
            return False
        self.output = Output(
            send, _wire(scope), stall_seconds=services.policy.stall_seconds, meter=self._meter,
            hit=services.metrics.hit,
        )  # fmt: skip
        self._start(models, requests, shape, deadline, hints)
        return True

    async def _read(self, scope: Scope, receive: Receive, deadline: float | None) -> bytes:
        limit = self._services.policy.body_limit
        if deadline is None:
            return await read_body(scope, receive, limit)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await read_body(scope, receive, limit)
        except TimeoutError:
            late = DeadlineExceeded("the request's time limit passed before its body was here")
            raise self._too_late(late) from None

    def _check_wanted(self, scope: Scope, deadline: float | None) -> None:
        """Raise where nobody waits for the answer any more."""
        connection = scope.get(CONNECTION)
        if isinstance(connection, Connection) and connection.cycle.disconnected:
            raise ClientGone
        if deadline is not None and time.monotonic() >= deadline:
            raise self._too_late(DeadlineExceeded("the request's time limit passed before its prompt was read"))

    def _too_late(self, error: DeadlineExceeded) -> DeadlineExceeded:
        return DeadlineExceeded(f"{error.message} ({self._limit_said})") if self._limit_said else error

    def _deadline(self, scope: Scope) -> float | None:
        own, default = timeout_seconds(scope), self._services.policy.request_seconds
        limit = default if own is None else own
        if limit is None:
            return None
        self._limit_said = f"{limit:g} s, by {TIMEOUT_HEADER if own is not None else 'the default of this frontend'}"
        return self._began + limit

    async def _find(self, name: str, deadline: float | None) -> ModelSet:
        hold = self._services.policy.hold_seconds
        if deadline is not None:
            hold = min(hold, max(0.0, deadline - time.monotonic()))
        return await self._services.pool.wait_for(name, hold, self._route)

    def _admit(self, models: ModelSet, stream: bool) -> None:
        self._model, self._kind = models.name, "stream" if stream else "unary"
        self._meter = self._services.metrics.meter(models.name)
        self._meter.gauges["inflight_requests"] += 1
        self._services.metrics.started(self._model, self._endpoint, self._kind)

    async def _prepare(
        self, models: ModelSet, request: ChatRequest | CompletionRequest, body: dict[str, Any]
    ) -> tuple[list[PreprocessedRequest | TextRequest], Shape]:
        shape = Shape(
            chat=self._chat, choices=request.n or 1,
            include_usage=bool(request.stream_options and request.stream_options.include_usage),
        )  # fmt: skip
        assert models.model is not None
        preprocessor = models.model.preprocessor
        if preprocessor is None:
            return self._text_requests(request, body, shape), shape
        if isinstance(request, ChatRequest):
            made = await preprocessor.chat(body)
            shape.logprobs = (request.top_logprobs or 0) if request.logprobs else None
        else:
            made = await preprocessor.completion(body)
            shape.logprobs = request.logprobs
            if request.echo:
                shape.echo = [text for text in preprocessor.echo_texts(body) for _ in range(request.n or 1)]
                shape.prompt_ids = [one.token_ids for one in made]
        shape.prompts, shape.choices = len(made) // (request.n or 1), len(made)
        shape.tokenizer = preprocessor.tokenizer
        return list(made), shape

    def _text_requests(
        self, request: ChatRequest | CompletionRequest, body: dict[str, Any], shape: Shape
    ) -> list[PreprocessedRequest | TextRequest]:
        """For an engine that takes text: the body as it came, once per prompt and choice."""
        if request.logprobs:
            text = "logprobs: this model's engine takes text and gives none."
            raise ApiError(400, text, code="unsupported_parameter", param="logprobs")
        if isinstance(request, ChatRequest):
            bodies = [body]
        else:
            prompts = openai.prompts(request.prompt)
            if not all(isinstance(prompt, str) for prompt in prompts):
                text = "prompt: this model's engine takes text, not token ids."
                raise ApiError(400, text, code="unsupported_value", param="prompt")
            bodies = [{**body, "prompt": prompt} for prompt in prompts]
            shape.echo = [str(prompt) for prompt in prompts for _ in range(shape.choices)] if request.echo else ()
        shape.prompts = len(bodies)
        each = shape.choices
        shape.choices = each * len(bodies)
        return [
            TextRequest(model=request.model, kind=self._route, body={**one, "n": 1, **_seed(request.seed, index)})
            for one in bodies
            for index in range(each)
        ]

    def _start(
        self, models: ModelSet, requests: list[PreprocessedRequest | TextRequest], shape: Shape,
        deadline: float | None, hints: Hints,
    ) -> None:  # fmt: skip
        services, output, meter = self._services, self.output, self._meter
        assert output is not None
        assert meter is not None
        if hints.tells & FIELDS:
            shape.explanation = self._explanation(models, hints)
        form = StreamAnswer if self._kind == "stream" else WholeAnswer
        self.answer = form(
            self._identity(models), shape, output, services.writer, self._headers, meter, self._first_token,
            self._too_late,
        )  # fmt: skip
        context = Context(self._rid, self.trace.carried() if self.trace else None, deadline=deadline)
        desk = Desk(
            models=models, opener=services.opener, context=context, meter=meter, clock=services.clock,
            migration_limit=models.migration_limit, hints=hints, again=services.pool.again, trace=self.trace,
            migration_max_seq_len=services.policy.migration_max_seq_len, hold_seconds=services.policy.hold_seconds,
            explanation=shape.explanation, watch=services.watch,
        )  # fmt: skip
        services.answers.add(self.answer)
        if self.trace is not None:
            self.trace.prepared(self._model, requests)
        prefills = services.pool.prefills
        choices = [new_choice(prefills, index, one, desk, self.answer) for index, one in enumerate(requests)]
        if models.gate is None:
            self.answer.start(choices)
        else:
            self._enter(models.gate, self.answer, choices, deadline, hints)

    def _enter(self, gate: Gate, answer: Answer, choices: list[Choice], deadline: float | None, hints: Hints) -> None:
        """Have the choices started once there is room; the whole request takes one place where there isn't."""
        tokens = sum(choice.prompt_tokens for choice in choices)
        visitor = Visitor(
            lambda: answer.start(choices), answer.refused, tokens, deadline, hints.priority, hints.strict_priority
        )
        if hints.instance is not None:
            gate.enter_pinned(visitor, hints.instance, hints.dp_rank)
        elif (place := gate.enter(visitor)) is not None:
            self._leave_queue = lambda: gate.leave(place)

    def _identity(self, models: ModelSet) -> Identity:
        assert models.model is not None
        prefix = "chatcmpl-" if self._chat else "cmpl-"
        return Identity(f"{prefix}{getrandbits(128):032x}", int(time.time()), self._model, models.model.fingerprint)

    def _explanation(self, models: ModelSet, hints: Hints) -> Explanation:
        clock, depth = self._services.clock, 0 if models.gate is None else len(models.gate)
        began = (self._began, time.time() - (clock() - self._began))
        self._explained = Explanation(hints.tells, clock, began, depth)
        return self._explained

    async def _tell(
        self, models: ModelSet, request: PreprocessedRequest | TextRequest, hints: Hints, send: Send
    ) -> None:
        """Say where the request would go (`query_instance_id`), and send it nowhere."""
        seat, ticket = models.query(request, hints)
        rank = 0 if seat.ranks == 1 else models.rank(seat, ticket, hints)
        route = route_of(seat.id, models.mode, hints, ticket, rank)
        log.debug("[%s] would go to %s", self._rid, route.line())
        streams = self._kind == "stream"
        kind = ("chat.completion.chunk" if streams else "chat.completion") if self._chat else "text_completion"
        computed = self._services.pool.prefills.route(models, request, hints)
        body = query_answer(self._identity(models), kind, request, route, computed)
        if streams:
            head = [*STREAM_HEADERS, *self._headers]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": b"data: " + body + b"\n\n" + DONE, "more_body": False})
        else:
            await respond(send, 200, body, self._headers)
        self.ended(200, "")

    async def _wait(self, receive: Receive) -> None:
        """Until the answer has left or the client has."""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return

    async def _close(self) -> None:
        answer, output, meter = self.answer, self.output, self._meter
        assert answer is not None
        assert output is not None
        assert meter is not None
        if self._leave_queue is not None:
            self._leave_queue()
        if left_early := not answer.complete:
            answer.cancel()
        await output.close()
        self._services.answers.discard(answer)
        produced = meter.used(*answer.usage())
        if left_early:
            self._services.metrics.disconnected += 1
            meter.add("model_cancellation_total")
            log.info("[%s] the client left after %d token(s)", self._rid, produced)
            self.ended(CLIENT_CLOSED, "cancelled")
        elif answer.error is not None:
            level = _level(answer.error)
            log.log(level, "[%s] failed after %d token(s): %s", self._rid, produced, answer.error.message)
            self.ended(answer.error.status, answer.error.code)
        else:
            self.ended(200, "")
        answer.forget()
        self.answer = None

    def _first_token(self) -> None:
        assert self._meter is not None
        self._meter.observe("time_to_first_token_seconds", self._services.clock() - self._began)
        if self._explained is not None:
            self._explained.first_token()
        if self.trace is not None:
            self.trace.first_token()

    def ended(self, status: int, code: str) -> None:
        """Count the request, once."""
        if self._over:
            return
        self._over = True
        if self.trace is not None:
            self.trace.ended(status, code)
        error = error_type(status, code) if status != 200 else ""
        self._services.metrics.ended(self._model, self._endpoint, self._kind, error)
        took = self._services.clock() - self._began
        if status == 503 and self._meter is not None:
            self._meter.add("model_rejection_total")
        if (limit := _LIMIT_OF.get(code)) is not None:
            self._services.metrics.hit(limit)
        if self._meter is not None:
            self._meter.gauges["inflight_requests"] -= 1
            self._meter.observe("request_duration_seconds", took)
        log.debug("[%s] %s %s %d in %.3f s", self._rid, self._endpoint, self._model, status, took)
