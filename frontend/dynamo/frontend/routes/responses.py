"""POST /v1/responses: OpenAI's Responses API over the chat that a model answers."""

from __future__ import annotations

import time
from random import getrandbits
from typing import Any, Final

from dynamo.frontend.errors import ApiError
from dynamo.frontend.openai import requests as openai
from dynamo.frontend.openai.chat_builder import shortened
from dynamo.frontend.openai.request_structs import ChatRequest, CompletionRequest
from dynamo.frontend.openai.responses_requests import SEALED, ResponsesAsked, named, read_responses
from dynamo.frontend.openai.responses_structs import ResponsesRequest
from dynamo.frontend.responses.chunks import Identity
from dynamo.frontend.responses.event_answer import Emit
from dynamo.frontend.responses.response import ResponseOptions
from dynamo.frontend.responses.responses_writer import ResponsesWriter, response_of
from dynamo.frontend.responses.stream import Headers
from dynamo.frontend.routes.event_route import EventJob
from dynamo.frontend.routes.generate import Made
from dynamo.frontend.routes.model_request import Job, Route
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.frontend.services import Services
from dynamo.llm.processing.preprocess import ContextLengthExceeded

TRIES: Final = 4
"""To find the messages that fit, each with fewer of them."""
ROOM: Final = 0.85
"""Of the context that they should fill; the rest is for the answer."""


class ResponsesRoute(Route):
    """The route."""

    def job(self, rid: str, headers: Headers) -> Job:
        return ResponsesJob(self._services, rid, headers)


class ResponsesJob(EventJob):
    """One request on its way."""

    def __init__(self, services: Services, rid: str, headers: Headers) -> None:
        super().__init__(services, rid, headers, "responses")
        self._asked: ResponsesAsked | None = None

    def named(self, error: ApiError) -> ApiError:
        return named(super().named(error))

    def _read(self, raw: bytes) -> tuple[dict[str, Any], ChatRequest]:
        body = openai.decode(raw, ResponsesRequest)
        self._fill(body)
        self._services.check_fields(body, ResponsesRequest, self._rid)
        self._asked = asked = read_responses(body)
        self._filled(asked.body)
        return asked.body, asked.chat

    async def _prepare(
        self,
        models: ModelSet,
        request: ChatRequest | CompletionRequest,
        body: dict[str, Any],
        *,
        blocking: bool = False,
    ) -> tuple[list[Made], ResponseOptions]:
        """As a chat; with `truncation: auto` the oldest messages go until the rest fits."""
        assert self._asked is not None
        tries = TRIES if self._asked.request.truncation == "auto" else 0
        while True:
            try:
                return await super()._prepare(models, request, body, blocking=blocking)
            except ContextLengthExceeded as error:
                share = ROOM * error.context / max(error.prompt, error.context)
                fewer = shortened(body["messages"], share) if tries else None
                if fewer is None:
                    raise
                tries, body = tries - 1, {**body, "messages": fewer}

    def _identity(self, models: ModelSet) -> Identity:
        return Identity(f"resp_{getrandbits(128):032x}", int(time.time()), self._model, "")

    def _writer(self, who: Identity, emit: Emit | None) -> ResponsesWriter:
        asked = self._asked
        assert asked is not None
        response = response_of(who.id, who.created, who.model, asked.echo)
        return ResponsesWriter(response, emit, time.time, with_sealed=SEALED in (asked.request.include or ()))
