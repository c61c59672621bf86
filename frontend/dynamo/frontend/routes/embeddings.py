"""POST /v1/embeddings: texts, or their tokens, to vectors.

One request to one worker, whatever the number of inputs. The answer leaves once all vectors are here; a large one in
pieces that are made as the client takes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request, to_api_error
from dynamo.frontend.generation.request_scope import RequestScope
from dynamo.frontend.http.requests import ClientGone, Receive, Scope
from dynamo.frontend.limits.request_threads import Turn, at_once
from dynamo.frontend.openai import requests as openai
from dynamo.frontend.openai.request_structs import EmbeddingsRequest
from dynamo.frontend.responses.embeddings import Embedding, Waiting, answer, pieces
from dynamo.frontend.responses.stream import CLIENT_STALL, Headers, Send, respond
from dynamo.frontend.routes.intake import LARGE_BODY, SHORT_BODY
from dynamo.frontend.routes.model_request import Job, Route, wire_of
from dynamo.frontend.routing.admission_gate import QueuedRequest
from dynamo.frontend.routing.hints import NO_HINTS, Hints, read_hints
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.llm.model_card import EMBEDDING
from dynamo.llm.processing.embeddings import KIND, EmbeddingRequest, Input, tokenised
from dynamo.llm.protocols import TextRequest
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DeadlineExceeded

log = logging.getLogger(__name__)
PIECE: Final = 256 * 1024
"""Bytes of an answer that are made, and given to the client, at once: a millisecond of work."""


class EmbedRoute(Route):
    """The route of embeddings."""

    def job(self, rid: str, headers: Headers) -> Job:
        return _Job(self._services, "embeddings", rid, headers)


class _Job(Job):
    """One request on its way."""

    _started = False

    def named(self, error: ApiError) -> ApiError:
        return openai.named(error, EmbeddingsRequest, "input")

    @property
    def begun(self) -> bool:
        return self._started

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        waiting = Waiting()
        request, embedding = await self._begin(scope, receive, waiting)
        try:
            error = await self._until_over(receive, waiting)
        except BaseException:
            self._log_gone(embedding)
            raise
        finally:
            self._services.answers.discard(waiting)
            if self._leave_queue is not None:
                self._leave_queue()
            waiting.cancel()
        if error is not None:
            raise self._said(error)
        await self._write(scope, send, request, embedding)

    async def _begin(self, scope: Scope, receive: Receive, waiting: Waiting) -> tuple[EmbeddingsRequest, Embedding]:
        services = self._services
        raw = await self._intake.read(scope, receive)
        if len(raw) > LARGE_BODY:
            understood = await self._in_threads(scope, raw)
        else:
            request, inputs = self._understand(raw)
            models, hints = await self._route(scope, request, len(inputs))
            if len(raw) <= SHORT_BODY:
                made = await self._prepare(models, request, inputs)
            else:
                async with models.long_prompts:
                    self._check_wanted(scope)
                    made = await self._prepare(models, request, inputs)
            understood = request, made, len(inputs), models, hints
        del raw
        self._intake.understood()
        request, made, number, models, hints = understood
        deadline = self._intake.deadline
        embedding = Embedding(made, number, self._request_scope(models, deadline, hints), waiting)
        if self.trace is not None:
            self.trace.prepared(self._model, [made])
        services.answers.add(waiting)
        ready = self._ready()
        self._send_on(models, embedding, waiting, deadline, hints)
        self._sent(ready)
        return request, embedding

    async def _in_threads(
        self, scope: Scope, raw: bytes
    ) -> tuple[EmbeddingsRequest, EmbeddingRequest | TextRequest, int, ModelSet, Hints]:
        """Read a large request: all work of its size is done in a thread, in turn."""
        async with self._intake.turn() as turn:
            self._check_wanted(scope)
            request, inputs = await turn.run(lambda: self._understand(raw))
            models, hints = await self._route(scope, request, len(inputs), turn)
            self._check_wanted(scope)
            made = await turn.run(lambda: at_once(self._prepare(models, request, inputs, blocking=True)))
            return msgspec.structs.replace(request, input=""), made, len(inputs), models, hints

    def _understand(self, raw: bytes) -> tuple[EmbeddingsRequest, list[Input]]:
        body = self._decoded(raw, EmbeddingsRequest)
        request, inputs = openai.read_embeddings(body)
        self._intake.check_fields(body, EmbeddingsRequest, self._headers)
        return request, inputs

    async def _route(
        self, scope: Scope, request: EmbeddingsRequest, inputs: int, turn: Turn | None = None
    ) -> tuple[ModelSet, Hints]:
        """Return where it goes, as far as is known before its tokens are."""
        services = self._services
        hints = read_hints(scope, request.nvext, services.settings.sessions.ttl is not None)
        if hints.asks:
            text = "nvext.annotations: query_instance_id is for chats and completions."
            raise bad_request(text, "nvext.annotations", "unsupported_value")
        models = await self._find(request.model, inputs, EMBEDDING, turn)
        if hints is not NO_HINTS:
            models, hints = services.pool.settle(models, hints)
        self._admit(models, hints)
        return models, hints

    async def _prepare(
        self, models: ModelSet, request: EmbeddingsRequest, inputs: list[Input], *, blocking: bool = False
    ) -> EmbeddingRequest | TextRequest:
        assert models.model is not None
        self._preparing = self._services.clock()
        preprocessor = models.model.preprocessor
        if preprocessor is not None:
            ids = await tokenised(inputs, preprocessor, blocking=blocking, most=request.truncate_prompt_tokens)
            return EmbeddingRequest(
                model=models.name, token_ids=ids, dimensions=request.dimensions, mdc_sum=models.digest
            )
        if not all(isinstance(text, str) for text in inputs):
            text = "input: this model's engine takes text, not token ids."
            raise ApiError(400, text, code="unsupported_value", param="input")
        body: dict[str, Any] = {"model": models.name, "input": inputs, "encoding_format": "base64"}
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        return TextRequest(model=models.name, kind=KIND, body=body)

    def _request_scope(self, models: ModelSet, deadline: float | None, hints: Hints) -> RequestScope:
        services = self._services
        assert self._meter is not None
        context = Context(self._rid, self.trace.carried() if self.trace else None, deadline=deadline)
        return RequestScope(
            models=models, opener=services.opener, context=context, meter=self._meter, clock=services.clock,
            hints=hints, again=services.pool.again, trace=self.trace, watch=services.watch,
            hold_seconds=services.settings.worker_wait_timeout_secs, events=self._events,
            recent=services.recent_placements,
        )  # fmt: skip

    def _send_on(
        self, models: ModelSet, embedding: Embedding, waiting: Waiting, deadline: float | None, hints: Hints
    ) -> None:
        if models.gate is None:
            waiting.start(embedding)
            return
        self._pass(models.gate, QueuedRequest(
            lambda: waiting.start(embedding), waiting.refused, tokens=embedding.prompt_tokens, deadline=deadline,
            priority=hints.priority, strict_priority=hints.strict_priority,
        ), hints)  # fmt: skip

    async def _until_over(self, receive: Receive, waiting: Waiting) -> Exception | None:
        """Return why there are no vectors; None: they are there. Raises `ClientGone`."""
        gone = asyncio.get_running_loop().create_task(_gone(receive))
        try:
            await asyncio.wait((gone, waiting.over), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.over.done():
                raise ClientGone
            return waiting.over.result()
        finally:
            gone.cancel()

    def _log_gone(self, embedding: Embedding) -> None:
        self._left_early()
        log.info("[%s] the client left after %d vector(s)", self._rid, embedding.tokens)

    def _said(self, error: Exception) -> ApiError:
        if isinstance(error, DeadlineExceeded):
            error = self._intake.too_late(error)  # says whose limit it was
        return to_api_error(error)

    async def _write(self, scope: Scope, send: Send, request: EmbeddingsRequest, embedding: Embedding) -> None:
        assert self._meter is not None
        self._meter.observe("embedding_latency_seconds", self._services.clock() - self._began)
        self._meter.observe("input_sequence_tokens", embedding.prompt_tokens)
        self._tokens = embedding.prompt_tokens, 0, 0
        vectors = [embedding.vectors[index] for index in range(len(embedding.vectors))]
        as_base64 = request.encoding_format == "base64"
        body = pieces(answer(self._model, vectors, embedding.prompt_tokens, as_base64=as_base64), PIECE)
        first, second = next(body), next(body, None)
        self._started = True
        try:
            if second is None:
                await self._timed(scope, respond(send, 200, first, self._headers))
            else:
                await self._in_pieces(scope, send, chain((first, second), body))
        except ClientGone:
            self._left_early()
            raise
        self.ended(200, "")

    async def _in_pieces(self, scope: Scope, send: Send, body: Iterator[bytes]) -> None:
        head = [(b"content-type", b"application/json"), *self._headers]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for piece in body:
            await self._timed(scope, send({"type": "http.response.body", "body": piece, "more_body": True}))
            await asyncio.sleep(0)  # a client that takes all at once keeps nobody else waiting
            self._check_wanted(scope)
        await self._timed(scope, send({"type": "http.response.body", "body": b"", "more_body": False}))

    async def _timed(self, scope: Scope, sending: Any) -> None:
        """Cut off a client that takes nothing for too long."""
        try:
            async with asyncio.timeout(self._services.settings.write_timeout_secs):
                await sending
        except TimeoutError:
            log.info("[%s] a client that does not read is cut off (%s)", self._rid, CLIENT_STALL)
            self._services.metrics.hit(CLIENT_STALL)
            wire_of(scope).abort()
            raise ClientGone from None


async def _gone(receive: Receive) -> None:
    """Return once the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
