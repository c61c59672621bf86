"""POST /v1/responses: OpenAI's Responses API over the chat that a model answers."""

from __future__ import annotations

import time
from functools import partial
from secrets import token_hex
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request, shown
from dynamo.frontend.http.requests import Receive, Scope, headers_of
from dynamo.frontend.openai.body import decode
from dynamo.frontend.openai.chat_builder import shortened
from dynamo.frontend.openai.request_structs import ChatRequest, CompletionRequest
from dynamo.frontend.openai.responses_input import Item, trimmed
from dynamo.frontend.openai.responses_requests import SEALED, ResponsesAsked, named, read_responses
from dynamo.frontend.openai.responses_structs import ResponsesRequest
from dynamo.frontend.openai.stored_responses import StoredResponse, owner_of
from dynamo.frontend.responses.event_answer import Emit
from dynamo.frontend.responses.response import Identity, ResponseOptions
from dynamo.frontend.responses.responses_writer import ResponsesWriter, response_of
from dynamo.frontend.responses.stream import Headers, Send
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


def conversation(services: Services, owner: bytes, body: dict[str, Any]) -> list[Item]:
    """Return the conversation that a body goes on; a 400 where it can't."""
    previous = body.get("previous_response_id")
    if not isinstance(previous, str):  # checked with the rest of the body
        return []
    if services.stored is None:
        text = (
            "previous_response_id: responses aren't stored here, since that is switched off, or several processes "
            "share this port; send the conversation in input."
        )
        raise bad_request(text, "previous_response_id", "unsupported_parameter")
    return services.stored.conversation(owner, previous, services.settings.body_limit)


def refer(services: Services, owner: bytes, body: dict[str, Any]) -> None:
    """Put stored items in the place of references to them; 404 where one isn't there."""
    items = body.get("input")
    if not isinstance(items, list):
        return
    places = {index: item.get("id") for index, item in enumerate(items)
              if isinstance(item, dict) and item.get("type") == "item_reference"}  # fmt: skip
    if not places:
        return
    ids = {name for name in places.values() if isinstance(name, str)}
    stored = services.stored
    most = services.settings.body_limit
    known = {} if stored is None else stored.items(owner, ids, most)
    sizes = {name: len(msgspec.json.encode(item)) for name, item in known.items()}
    for index, name in places.items():
        if not isinstance(name, str) or name not in known:
            text = f"input[{index}]: item {shown(name)} isn't stored here; send the item itself."
            raise ApiError(404, text, code="item_not_found", param=f"input[{index}]")
        items[index], most = known[name], most - sizes[name]
    if most < 0:  # one may be named a thousand times
        raise bad_request(
            "input: the items that it refers to are too much for one request.", "input", "too_many_values"
        )


def names_stored(raw: bytes) -> bool:
    """Tell whether what is stored may be part of a request, however short the rest of it is: escapes hide words."""
    return b"previous_response_id" in raw or b"item_reference" in raw or b"\\u" in raw


class ResponsesRoute(Route):
    """The route."""

    def job(self, rid: str, headers: Headers) -> Job:
        return ResponsesJob(self._services, rid, headers)


class ResponsesJob(EventJob):
    """One request on its way."""

    def __init__(self, services: Services, rid: str, headers: Headers) -> None:
        super().__init__(services, rid, headers, "responses")
        self._asked: ResponsesAsked | None = None
        self._owner = b""
        self._previous: str | None = None
        self._input = b""
        """JSON of its items, where they are to be stored."""
        self._items = self._reserved = 0

    def named(self, error: ApiError) -> ApiError:
        return named(super().named(error))

    def _read(self, raw: bytes) -> tuple[dict[str, Any], ChatRequest]:
        body = decode(raw, ResponsesRequest)
        self._fill(body)
        self._intake.check_fields(body, ResponsesRequest, self._headers)
        refer(self._services, self._owner, body)
        before = self._before(body)
        self._asked = asked = read_responses(body, before if isinstance(before, list) else ())
        self._problem = before if isinstance(before, ApiError) else asked.problem
        if self._services.stored is not None and asked.request.store is not False:
            self._input, self._items = msgspec.json.encode([trimmed(item) for item in asked.items]), len(asked.items)
        self._filled(asked.body)
        return asked.body, asked.chat

    def _is_large(self, raw: bytes) -> bool:
        return super()._is_large(raw) or names_stored(raw)

    def _before(self, body: dict[str, Any]) -> list[Item] | ApiError:
        """Return the conversation that it goes on, or why it can't."""
        try:
            return conversation(self._services, self._owner, body)
        except ApiError as error:
            return error

    def _keep(self, response_id: str, response: bytes, items: list[str]) -> None:
        if self._services.stored is not None and self._input:
            kept = StoredResponse(response_id, self._owner, response, self._input, self._previous, items)
            kept.count = self._items + len(items)
            self._services.stored.keep(kept)

    def leave(self) -> None:
        size, self._reserved = self._reserved, 0
        if self._services.stored is not None and size:
            self._services.stored.release(self._owner, size)
        super().leave()

    def _reserve(self) -> bool:
        """Count the input while it is answered. Not in the thread that reads it, which may outlive its request."""
        stored, size = self._services.stored, len(self._input)
        if stored is None or not size or not stored.reserve(self._owner, size):
            self._input = b""
            return False
        self._reserved = size
        return True

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._owner = owner_of(headers_of(scope))
        await super().run(scope, receive, send)

    async def _prepare(
        self,
        models: ModelSet,
        request: ChatRequest | CompletionRequest,
        body: dict[str, Any],
        *,
        blocking: bool = False,
    ) -> tuple[list[Made], ResponseOptions]:
        """Prepare it as a chat; with `truncation: auto` the oldest messages go until the rest fits."""
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
        return Identity(f"resp_{token_hex(16)}", int(time.time()), self._model, "")

    def _writer(self, who: Identity, emit: Emit | None) -> ResponsesWriter:
        asked, self._asked = self._asked, None  # an answer may take long, and needs nothing of the input
        assert asked is not None
        self._previous = asked.request.previous_response_id
        asked.echo["store"] = self._reserve()
        response = response_of(who.id, who.created, who.model, asked.echo)
        return ResponsesWriter(
            response, emit, time.time, with_sealed=SEALED in (asked.request.include or ()),
            done=partial(self._keep, who.id),
        )  # fmt: skip
