"""POST /v1/messages: Anthropic's Messages API over the chat that a model answers."""

from __future__ import annotations

import re
import time
from random import getrandbits
from typing import Any, Final

from dynamo.frontend.anthropic.errors import ID_HEADER, MessagesError
from dynamo.frontend.anthropic.models import VERSION
from dynamo.frontend.anthropic.request_structs import MessagesRequest
from dynamo.frontend.anthropic.requests import named, read_messages
from dynamo.frontend.errors import ApiError, bad_request, shown
from dynamo.frontend.http.requests import Receive, Scope, header
from dynamo.frontend.openai.chunks import Identity
from dynamo.frontend.openai.request_structs import ChatRequest
from dynamo.frontend.responses.event_answer import Emit
from dynamo.frontend.responses.messages_writer import MessagesWriter
from dynamo.frontend.responses.stream import Headers, Send
from dynamo.frontend.routes.event_route import EventJob
from dynamo.frontend.routes.model_request import Job, Route
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.frontend.services import Services
from dynamo.runtime.errors import DynamoException

_DATE: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class MessagesRoute(Route):
    """The route."""

    def job(self, rid: str, headers: Headers) -> Job:
        headers.append((ID_HEADER, rid.encode()))
        return MessagesJob(self._services, rid, headers)


class MessagesJob(EventJob):
    """One request on its way."""

    def __init__(self, services: Services, rid: str, headers: Headers) -> None:
        super().__init__(services, rid, headers, "anthropic_messages")
        self._caches = False

    def named(self, error: ApiError) -> ApiError:
        return named(super().named(error))

    def answer_to(self, error: ApiError | DynamoException) -> ApiError:
        return MessagesError.of(super().answer_to(error), self._rid)

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_version(scope)
        await super().run(scope, receive, send)

    def _read(self, raw: bytes) -> tuple[dict[str, Any], ChatRequest]:
        body = self._decoded(raw, MessagesRequest)
        self._caches = b'"cache_control"' in raw  # in a text its quotes are escaped
        self._fill(body)
        self._intake.check_fields(body, MessagesRequest, self._headers)
        asked = read_messages(body)
        self._problem = asked.problem
        self._filled(asked.body)
        return asked.body, asked.chat

    def _identity(self, models: ModelSet) -> Identity:
        return Identity(f"msg_{getrandbits(128):032x}", int(time.time()), self._model, "")

    def _writer(self, who: Identity, emit: Emit | None) -> MessagesWriter:
        return MessagesWriter(who, emit, caches=self._caches)


def check_version(scope: Scope) -> None:
    """Raise where a client says a version that is none; all that are serve alike."""
    version = header(scope, VERSION.encode())
    if version is not None and not _DATE.fullmatch(version):
        text = f"anthropic-version: {shown(version.decode('latin-1'))} is not a version; send 2023-06-01."
        raise bad_request(text, "anthropic-version")
