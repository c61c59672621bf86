"""POST /v1/chat/completions and /v1/completions, as plain ASGI.

One task per request: it reads and checks, starts the choices, and then only waits until
the answer is complete or the client is gone. Tokens reach the client from the runtime's
callbacks (`response.py`), without waking this task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from random import getrandbits
from typing import Any

from dynamo.frontend.errors import ApiError
from dynamo.frontend.generation.choice import Choice
from dynamo.frontend.generation.request_scope import RequestScope
from dynamo.frontend.http.requests import Receive, Scope
from dynamo.frontend.images.parts import ImageRef, images_in
from dynamo.frontend.images.request_images import RequestImages
from dynamo.frontend.limits.concurrency_limits import caller_of
from dynamo.frontend.limits.request_threads import Turn, at_once
from dynamo.frontend.openai import requests as openai
from dynamo.frontend.openai.chunks import DONE, Identity
from dynamo.frontend.openai.constraints import Parsing, constrained, constraint_of, forced_by, parsing_of
from dynamo.frontend.openai.request_structs import ChatRequest, CompletionRequest
from dynamo.frontend.openai.text_requests import text_requests
from dynamo.frontend.responses.extra_events import count_each, tell_prompts
from dynamo.frontend.responses.json_response import JsonResponse, query_answer
from dynamo.frontend.responses.parsed_response import ParsedStream, ParsedWhole
from dynamo.frontend.responses.response import STREAM_HEADERS, Response, ResponseOptions, SseResponse
from dynamo.frontend.responses.scores import refuse_of_text, scored
from dynamo.frontend.responses.stream import ClientConnection, Headers, ResponseStream, Send, respond
from dynamo.frontend.routes.intake import LARGE_BODY, SHORT_BODY
from dynamo.frontend.routes.model_request import (
    CLIENT_CLOSED,
    Job,
    Route,
    level_of,
    until_over,
    wire_of,
)  # fmt: skip
from dynamo.frontend.routing.admission_gate import QueuedRequest
from dynamo.frontend.routing.hints import NO_HINTS, Hints, read_hints
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.frontend.routing.report import FIELDS, RoutingReport, route_of
from dynamo.frontend.services import Services
from dynamo.frontend.validation.constraint_names import as_spelled, translate
from dynamo.frontend.validation.conversation import check_conversation
from dynamo.frontend.validation.totals import check_total
from dynamo.llm.model_card import CHAT, COMPLETIONS
from dynamo.llm.protocols import PreprocessedRequest, TextRequest
from dynamo.runtime.context import Context

log = logging.getLogger(__name__)
Made = PreprocessedRequest | TextRequest


class GenerateRoute(Route):
    """One of the two routes."""

    def __init__(self, services: Services, *, chat: bool) -> None:
        super().__init__(services)
        self._chat = chat

    def job(self, rid: str, headers: Headers) -> Job:
        return GenerateJob(self._services, self._chat, rid, headers)


class GenerateJob(Job):
    """One request on its way. Other APIs read a body of their own into a chat's, and write its events their way."""

    __slots__ = ("_chat", "_does", "_explained", "_images", "_request_scope", "_spelled", "answer", "output")

    _refuses_totals = True
    """Refuse prompts that leave no room for `max_tokens`; where it is False, the answer is as long as there is room."""

    def __init__(self, services: Services, chat: bool, rid: str, headers: Headers, endpoint: str = "") -> None:
        super().__init__(services, endpoint or ("chat_completions" if chat else "completions"), rid, headers)
        self._chat, self._does = chat, CHAT if chat else COMPLETIONS
        self.output: ResponseStream | None = None
        self.answer: Response | None = None
        self._explained: RoutingReport | None = None
        self._images: RequestImages | None = None
        self._request_scope: RequestScope | None = None
        self._spelled: Mapping[str, str] = {}
        """How the client spells the constraints of its answer, where not as we do."""

    def named(self, error: ApiError) -> ApiError:
        if self._spelled:
            error = as_spelled(error, self._spelled)
        return openai.name_field(error, self._chat)

    @property
    def begun(self) -> bool:
        return self.output is not None and self.output.started

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await self._begin(scope, receive, send):
            return
        try:
            await until_over(scope, receive)
        finally:
            await self._close()

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Read, check and start; False where that was all. The body is let go of: an answer may take long."""
        services = self._services
        raw = await self._intake.read(scope, receive)
        if self._is_large(raw):
            models, hints, requests, options = await self._in_threads(scope, raw)
        else:
            body, request = self._understand(raw)
            models, hints = await self._route(scope, request)
            if self._chat and (refs := images_in(request.messages)):  # type: ignore[union-attr] # it is a chat's
                await self._load(scope, refs, models)
            if len(raw) <= SHORT_BODY:
                requests, options = await self._prepare(models, request, body)
            else:
                async with models.long_prompts:
                    self._check_wanted(scope)
                    requests, options = await self._prepare(models, request, body)
        self._intake.understood()
        if hints.asks:
            await self._tell(models, requests[0], hints, send)
            return False
        self.output = ResponseStream(
            *self._reader(scope, send), stall_seconds=services.settings.write_timeout_secs, meter=self._meter,
            hit=services.metrics.hit,
        )  # fmt: skip
        ready = self._ready()
        self._start(models, requests, options, self._intake.deadline, hints)
        self._sent(ready)
        return True

    def _reader(self, scope: Scope, send: Send) -> tuple[Send, ClientConnection]:
        """Return what takes the answer's bytes, and the connection under it."""
        return send, wire_of(scope)

    def _is_large(self, raw: bytes) -> bool:
        """Tell whether reading it takes too long for the event loop."""
        return len(raw) > LARGE_BODY

    async def _in_threads(self, scope: Scope, raw: bytes) -> tuple[ModelSet, Hints, list[Made], ResponseOptions]:
        """Read a large request: all work of its size is done in a thread, in turn."""
        async with self._intake.turn() as turn:
            self._check_wanted(scope)
            body, request = await turn.run(lambda: self._understand(raw))
            models, hints = await self._route(scope, request, turn)
            if self._chat and (refs := images_in(request.messages)):  # type: ignore[union-attr] # it is a chat's
                await self._load(scope, refs, models, turn)
            self._check_wanted(scope)
            requests, options = await turn.run(lambda: at_once(self._prepare(models, request, body, blocking=True)))
            return models, hints, requests, options

    async def _load(self, scope: Scope, refs: list[ImageRef], models: ModelSet, turn: Turn | None = None) -> None:
        """Load the images that it has."""
        self._images = self._services.request_images()
        await self._images.load(refs, models.card, caller_of(scope), self._intake.deadline, turn)
        self._check_wanted(scope)

    def leave(self) -> None:
        if self._images is not None:
            self._images.leave()
        super().leave()

    def _understand(self, raw: bytes) -> tuple[dict[str, Any], ChatRequest | CompletionRequest]:
        services, kind = self._services, ChatRequest if self._chat else CompletionRequest
        body = self._decoded(raw, kind)
        if services.settings.request_defaults is not None:
            services.settings.request_defaults.fill(body, chat=self._chat)
        self._spelled = translate(body)
        request = openai.read_chat(body) if self._chat else openai.read_completion(body)
        self._intake.check_fields(body, kind, self._headers)
        if isinstance(request, ChatRequest):
            check_conversation(body, request)
        return body, request

    async def _route(
        self, scope: Scope, request: ChatRequest | CompletionRequest, turn: Turn | None = None
    ) -> tuple[ModelSet, Hints]:
        """Return where it goes, as far as is known before its tokens are."""
        services = self._services
        hints = read_hints(scope, request.nvext, services.settings.sessions.ttl is not None)
        models = await self._find(request.model, openai.answers(request), self._does, turn)
        if hints is not NO_HINTS:
            models, hints = services.pool.settle(models, hints)
        self._admit(models, hints, bool(request.stream))
        return models, hints

    async def _prepare(
        self,
        models: ModelSet,
        request: ChatRequest | CompletionRequest,
        body: dict[str, Any],
        *,
        blocking: bool = False,
    ) -> tuple[list[Made], ResponseOptions]:
        self._preparing = self._services.clock()
        options = self._options(request, body)
        answers = options.choices
        assert models.model is not None
        preprocessor, reading = models.model.preprocessor, models.model.reading
        if preprocessor is None:
            if self._chat and reading is not None:
                options.parsing = parsing_of(reading, body, None)
            refuse_of_text(request)
            texts = text_requests(request, body, self._does, () if self._images is None else self._images.inputs)
            options.prompts, options.choices, options.echo = texts.prompts, len(texts.requests), texts.echo
            return list(texts.requests), options
        if (asked := scored(request, body)) is not None:
            options.scores, body = asked
        if isinstance(request, ChatRequest):
            forced = forced_by(request.tool_choice)
            if forced is not None:
                options.constraint = "tools"
            made = await preprocessor.chat(
                body if forced is None else constrained(body, forced), blocking=blocking,
                images=() if self._images is None else self._images.inputs, rendered=self._rendered,
            )  # fmt: skip
            options.logprobs = (request.top_logprobs or 0) if request.logprobs else None
            if reading is not None or forced is not None:
                options.parsing = parsing_of(reading, body, forced, made[0].token_ids)
        else:
            if request.max_tokens == 0:  # engines make at least one
                body, options.unanswered = {**body, "max_tokens": 1}, True
            made = await preprocessor.completion(body, blocking=blocking)
            options.logprobs = request.logprobs
            if request.echo:
                options.echo = [text for text in preprocessor.echo_texts(body) for _ in range(answers)]
                options.prompt_ids = [prompt.token_ids for prompt in made]
        tell_prompts(options, request, self._rid, preprocessor, body, made)
        if self._refuses_totals:
            own = self._services.settings
            check_total(request, made, models.card.context_length, own.clipped_tokens, own.request_defaults)
        options.prompts, options.choices = len(made) // answers, len(made)
        options.tokenizer = preprocessor.tokenizer
        return list(made), options

    def _rendered(self) -> None:
        self._rendered_at = self._services.clock()

    def _options(self, request: ChatRequest | CompletionRequest, body: dict[str, Any]) -> ResponseOptions:
        """Return the form of the answer, as far as the body says it."""
        options = ResponseOptions(
            chat=self._chat, choices=openai.per_prompt(request), tier=request.service_tier and "default"
        )
        if isinstance(request, ChatRequest):
            options.reasoning_field = self._services.settings.reasoning_field_name
            options.thoughts = request.include_reasoning is not False
        if (stream := request.stream_options) is not None:
            options.include_usage = bool(stream.include_usage)
            options.counts = options.include_usage and bool(stream.continuous_usage_stats)
        if constraint := constraint_of(body):
            options.constraint = self._spelled.get(constraint, constraint)
        return options

    def _start(
        self, models: ModelSet, requests: list[Made], options: ResponseOptions,
        deadline: float | None, hints: Hints,
    ) -> None:  # fmt: skip
        services, output, meter = self._services, self.output, self._meter
        assert output is not None
        assert meter is not None
        if hints.tells & FIELDS:
            options.explanation = self._explanation(models, hints)
        parsing = options.parsing
        who = self._identity(models)
        who.tier = options.tier
        self.answer = self._form(parsing)(
            who, options, output, services.writer, headers=self._headers, meter=meter,
            first_token=self._first_token, too_late=self._intake.too_late,
        )  # fmt: skip
        context = Context(self._rid, self.trace.carried() if self.trace else None, deadline=deadline)
        request_scope = self._request_scope = RequestScope(
            models=models, opener=services.opener, context=context, meter=meter, clock=services.clock,
            migration=models.migration, hints=hints, again=services.pool.again, trace=self.trace,
            hold_seconds=services.settings.worker_wait_timeout_secs,
            explanation=options.explanation, watch=services.watch, prefills=services.pool.prefills,
            shown=None if parsing is None else parsing.shown, events=self._events, recent=services.recent_placements,
            token_ids=options.token_ids,
        )  # fmt: skip
        if options.counts:
            count_each(output, self.answer)
        services.answers.add(self.answer)
        if self.trace is not None:
            self.trace.prepared(self._model, requests)
        choices = [Choice(index, request, request_scope, self.answer) for index, request in enumerate(requests)]
        if models.gate is None:
            self.answer.start(choices)
            return
        answer, tokens = self.answer, sum(choice.prompt_tokens for choice in choices)
        self._pass(models.gate, QueuedRequest(
            lambda: answer.start(choices), answer.refused, tokens=tokens, deadline=deadline, priority=hints.priority,
            strict_priority=hints.strict_priority,
        ), hints)  # fmt: skip

    def _form(self, parsing: Parsing | None) -> Callable[..., Response]:
        """Return what makes the answer."""
        if parsing is not None:
            return ParsedStream if self._kind == "stream" else ParsedWhole
        return SseResponse if self._kind == "stream" else JsonResponse

    def _identity(self, models: ModelSet) -> Identity:
        assert models.model is not None
        prefix = "chatcmpl-" if self._chat else "cmpl-"
        return Identity(f"{prefix}{getrandbits(128):032x}", int(time.time()), self._model, models.model.fingerprint)

    def _explanation(self, models: ModelSet, hints: Hints) -> RoutingReport:
        clock, depth = self._services.clock, 0 if models.gate is None else len(models.gate)
        began = (self._began, time.time() - (clock() - self._began))
        self._explained = RoutingReport(hints.tells, clock, began, depth)
        return self._explained

    async def _tell(
        self, models: ModelSet, request: PreprocessedRequest | TextRequest, hints: Hints, send: Send
    ) -> None:
        """Say where the request would go (`query_instance_id`), and send it nowhere."""
        worker, ticket = models.query(request, hints)
        rank = 0 if worker.ranks == 1 else models.rank(worker, ticket, hints)
        in_session = worker.id == models.bound(hints)
        route = route_of(worker.id, models.mode.value, hints, ticket, rank, in_session=in_session)
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

    def _tokens_so_far(self) -> tuple[int, int, int]:
        return self._tokens if self.answer is None else self.answer.usage()

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
        prompt, produced, cached = answer.usage()
        meter.used(prompt, produced, cached)
        self._tokens = prompt, produced, cached
        if self._request_scope is not None and self._first:
            after = self._services.clock() - self._first
            self._request_scope.answered(self._first - self._began, self._tokens, after)
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
        self._first_came()
        if self._explained is not None:
            self._explained.first_token()
        if self.trace is not None:
            self.trace.first_token()
