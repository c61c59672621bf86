"""POST /v1/responses: OpenAI's Responses API over the chat that a model answers."""

from __future__ import annotations

import time
from random import getrandbits
from typing import Any

from dynamo.frontend.errors import ApiError
from dynamo.frontend.openai import requests as openai
from dynamo.frontend.openai.request_structs import ChatRequest
from dynamo.frontend.openai.responses_requests import SEALED, ResponsesAsked, named, read_responses
from dynamo.frontend.openai.responses_structs import ResponsesRequest
from dynamo.frontend.responses.chunks import Identity
from dynamo.frontend.responses.event_answer import Emit
from dynamo.frontend.responses.responses_writer import ResponsesWriter, response_of
from dynamo.frontend.responses.stream import Headers
from dynamo.frontend.routes.event_route import EventJob
from dynamo.frontend.routes.model_request import Job, Route
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.frontend.services import Services


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

    def _identity(self, models: ModelSet) -> Identity:
        return Identity(f"resp_{getrandbits(128):032x}", int(time.time()), self._model, "")

    def _writer(self, who: Identity, emit: Emit | None) -> ResponsesWriter:
        asked = self._asked
        assert asked is not None
        response = response_of(who.id, who.created, who.model, asked.echo)
        return ResponsesWriter(response, emit, time.time, with_sealed=SEALED in (asked.request.include or ()))
