"""POST /v1/chat/completions and /v1/completions, as plain ASGI.

One task per request: it reads and checks, starts the choices, and then only waits until
the answer is complete or the client is gone. Tokens reach the client from the runtime's
callbacks (`answers.py`), without waking this task.
"""

from __future__ import annotations

import logging
import time
from random import getrandbits
from typing import Any

from dynamo.frontend import openai
from dynamo.frontend.answers import STREAM_HEADERS, Answer, Shape, StreamAnswer, WholeAnswer
from dynamo.frontend.chunks import DONE, Identity
from dynamo.frontend.desk import Desk
from dynamo.frontend.errors import ApiError
from dynamo.frontend.explaining import FIELDS, Explanation, query_answer, route_of
from dynamo.frontend.gate import Visitor
from dynamo.frontend.hints import NO_HINTS, Hints, read_hints
from dynamo.frontend.model_set import ModelSet
from dynamo.frontend.openai import ChatRequest, CompletionRequest
from dynamo.frontend.parsed import ParsedStream, ParsedWhole
from dynamo.frontend.prefilling import new_choice
from dynamo.frontend.requests import Receive, Scope
from dynamo.frontend.routes.job import CLIENT_CLOSED, SHORT_BODY, Job, Route, level_of, wire_of
from dynamo.frontend.services import Services
from dynamo.frontend.stream import Headers, Output, Send, respond
from dynamo.frontend.tool_choice import constrained, forced_by, parsing_of
from dynamo.llm.card import CHAT, COMPLETIONS
from dynamo.llm.protocols import PreprocessedRequest, TextRequest
from dynamo.runtime.context import Context

log = logging.getLogger(__name__)


class GenerateRoute(Route):
    """One of the two routes."""

    def __init__(self, services: Services, *, chat: bool) -> None:
        super().__init__(services)
        self._chat = chat

    def job(self, rid: str, headers: Headers) -> Job:
        return _Job(self._services, self._chat, rid, headers)


def _seed(seed: int | None, choice: int) -> dict[str, int]:
    """The seed of one choice: were it the same for all, they would be alike."""
    return {} if seed is None else {"seed": seed + choice}


class _Job(Job):
    """One request on its way."""

    def __init__(self, services: Services, chat: bool, rid: str, headers: Headers) -> None:
        super().__init__(services, "chat_completions" if chat else "completions", rid, headers)
        self._chat, self._does = chat, CHAT if chat else COMPLETIONS
        self.output: Output | None = None
        self.answer: Answer | None = None
        self._explained: Explanation | None = None

    def named(self, error: ApiError) -> ApiError:
        return openai.name_field(error, self._chat)

    @property
    def begun(self) -> bool:
        return self.output is not None and self.output.started

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await self._begin(scope, receive, send):
            return
        try:
            await self._wait(receive)
        finally:
            await self._close()

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Read, check and start; False where that was all. The body is let go of: an answer may take long."""
        services = self._services
        raw, deadline = await self._enter(scope, receive)
        body = openai.decode(raw)
        if services.policy.defaults is not None:
            services.policy.defaults.fill(body, chat=self._chat)
        request = openai.read_chat(body) if self._chat else openai.read_completion(body)
        services.check_fields(body, type(request), self._rid)
        hints = read_hints(scope, request.nvext, services.policy.sessions)
        models = await self._find(request.model, openai.answers(request), self._does, deadline)
        if hints is not NO_HINTS:
            models = services.pool.settle(models, hints)
        self._admit(models, hints, bool(request.stream))
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
            send, wire_of(scope), stall_seconds=services.policy.stall_seconds, meter=self._meter,
            hit=services.metrics.hit,
        )  # fmt: skip
        self._start(models, requests, shape, deadline, hints)
        return True

    async def _prepare(
        self, models: ModelSet, request: ChatRequest | CompletionRequest, body: dict[str, Any]
    ) -> tuple[list[PreprocessedRequest | TextRequest], Shape]:
        shape = Shape(
            chat=self._chat, choices=request.n or 1,
            include_usage=bool(request.stream_options and request.stream_options.include_usage),
        )  # fmt: skip
        assert models.model is not None
        preprocessor, reading = models.model.preprocessor, models.model.reading
        if preprocessor is None:
            if self._chat and reading is not None:
                shape.parsing = parsing_of(reading, body, None)
            return self._text_requests(request, body, shape), shape
        if isinstance(request, ChatRequest):
            forced = forced_by(request.tool_choice)
            made = await preprocessor.chat(body if forced is None else constrained(body, forced))
            shape.logprobs = (request.top_logprobs or 0) if request.logprobs else None
            if reading is not None or forced is not None:
                shape.parsing = parsing_of(reading, body, forced, made[0].token_ids)
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
            if forced_by(request.tool_choice) is not None:
                text = "tool_choice: this model's engine takes text and can't be made to call a tool; use auto."
                raise ApiError(400, text, code="unsupported_value", param="tool_choice")
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
            TextRequest(model=request.model, kind=self._does, body={**one, "n": 1, **_seed(request.seed, index)})
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
        form: type[StreamAnswer] | type[WholeAnswer] = StreamAnswer if self._kind == "stream" else WholeAnswer
        parsing = shape.parsing
        if parsing is not None:
            form = ParsedStream if self._kind == "stream" else ParsedWhole
        self.answer = form(
            self._identity(models), shape, output, services.writer, self._headers, meter, self._first_token,
            self._too_late,
        )  # fmt: skip
        context = Context(self._rid, self.trace.carried() if self.trace else None, deadline=deadline)
        desk = Desk(
            models=models, opener=services.opener, context=context, meter=meter, clock=services.clock,
            migration_limit=models.migration_limit, hints=hints, again=services.pool.again, trace=self.trace,
            migration_max_seq_len=services.policy.migration_max_seq_len, hold_seconds=services.policy.hold_seconds,
            explanation=shape.explanation, watch=services.watch, shown=None if parsing is None else parsing.shown,
        )  # fmt: skip
        services.answers.add(self.answer)
        if self.trace is not None:
            self.trace.prepared(self._model, requests)
        prefills = services.pool.prefills
        choices = [new_choice(prefills, index, one, desk, self.answer) for index, one in enumerate(requests)]
        if models.gate is None:
            self.answer.start(choices)
            return
        answer, tokens = self.answer, sum(choice.prompt_tokens for choice in choices)
        self._pass(models.gate, Visitor(
            lambda: answer.start(choices), answer.refused, tokens, deadline, hints.priority, hints.strict_priority,
        ), hints)  # fmt: skip

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
            self._left_early()
            log.info("[%s] the client left after %d token(s)", self._rid, produced)
            self.ended(CLIENT_CLOSED, "cancelled")
        elif answer.error is not None:
            level = level_of(answer.error)
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
