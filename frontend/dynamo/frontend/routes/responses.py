"""POST /v1/responses: OpenAI's Responses API over the chat that a model answers."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request, overloaded
from dynamo.frontend.http.asgi_call import Exchange
from dynamo.frontend.http.body_budget import Share
from dynamo.frontend.http.requests import Receive, Scope, headers_of
from dynamo.frontend.openai.chat_builder import shortened
from dynamo.frontend.openai.chunks import Identity
from dynamo.frontend.openai.request_structs import ChatRequest, CompletionRequest
from dynamo.frontend.openai.responses_input import trimmed
from dynamo.frontend.openai.responses_requests import (
    SEALED,
    ResponsesAsked,
    conversation_of,
    named,
    read_responses,
)
from dynamo.frontend.openai.responses_structs import ResponsesRequest
from dynamo.frontend.responses.event_answer import Emit
from dynamo.frontend.responses.response import ResponseOptions
from dynamo.frontend.responses.responses_writer import (
    LARGEST_ECHO,
    SHORT,
    ResponsesWriter,
    echoed,
    random_id,
    response_of,
)
from dynamo.frontend.responses.stream import ClientConnection, Headers, PlainWire, Send, respond
from dynamo.frontend.routes.event_route import EventJob
from dynamo.frontend.routes.generate import Made
from dynamo.frontend.routes.model_request import Job, Route, until_over
from dynamo.frontend.routes.stored.earlier import Earlier, looked_up, names_stored
from dynamo.frontend.routes.stored.item_ids import encoded_items
from dynamo.frontend.routing.hints import Hints
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.frontend.services import Services
from dynamo.frontend.stored.background import BackgroundRun
from dynamo.frontend.stored.conversations import no_room
from dynamo.frontend.stored.kept_events import send_events
from dynamo.frontend.stored.store import StoredResponse, owner_of
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
        self._owner = b""
        self._earlier = Earlier()
        self._previous: str | None = None
        self._conversation: str | None = None
        self._stores = False
        self._input = b""
        """JSON of its items, where they are to be stored."""
        self._added: list[bytes] = []
        """The same, one by one, where its conversation is to have them."""
        self._items = self._reserved = 0
        self._echo: Share | None = None
        self._said: tuple[bytes, list[str]] | None = None
        """Its whole answer, and the ids of its items."""
        self._behind: Exchange | None = None
        """Takes the answer in the place of the client, who needn't wait for it: it runs in the background."""
        self._background = self._follows = False
        self._writing: ResponsesWriter | None = None
        self._run: BackgroundRun | None = None

    def named(self, error: ApiError) -> ApiError:
        return named(super().named(error))

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._owner = owner_of(headers_of(scope))
        if not await self._begin(scope, receive, send):
            return
        if (run := self._run) is None:
            try:
                await until_over(scope, receive)
            finally:
                await self._close()
        elif self._follows:
            assert self._services.stored is not None
            first = await self._services.stored.news(self._owner, run.id, 0)
            events = self._services.stored.events(self._owner, run.id, 0, first)
            await send_events(events, receive, send, self._headers, self._services.settings.write_timeout_secs)
        else:
            await respond(send, 200, run.said(), self._headers)

    # Its conversation.

    async def _in_threads(self, scope: Scope, raw: bytes) -> tuple[ModelSet, Hints, list[Made], ResponseOptions]:
        async with looked_up(self._services, self._intake, scope, self._owner, raw) as self._earlier:
            try:
                return await super()._in_threads(scope, raw)
            finally:
                self._earlier = Earlier()

    def _read(self, raw: bytes) -> tuple[dict[str, Any], ChatRequest]:
        body = self._decoded(raw, ResponsesRequest)
        self._fill(body)
        self._intake.check_fields(body, ResponsesRequest, self._headers)
        self._earlier.refer(body, self._services.settings.body_limit)
        self._asked = asked = read_responses(body, self._earlier.conversation())
        self._problem = self._earlier.problem or asked.problem
        if asked.request.background:
            self._problem = self._problem or self._no_background(asked.request)
            self._background, self._follows = True, asked.request.stream is True
            asked.body["stream"] = asked.chat.stream = True
        if self._services.stored is not None and (asked.request.store is not False or asked.request.conversation):
            self._input, self._items = msgspec.json.encode([trimmed(item) for item in asked.items]), len(asked.items)
            if asked.request.conversation is not None:
                self._added = encoded_items(asked.items, self._services.stored.new_id)
        self._filled(asked.body)
        return asked.body, asked.chat

    def _no_background(self, request: ResponsesRequest) -> ApiError | None:
        """Return why this can't run in the background; None where it can."""
        if self._services.stored is None:
            text = "background: responses aren't stored here, since that is switched off; ask without."
            return bad_request(text, "background", "unsupported_parameter")
        if request.store is False:
            text = "background: a response in the background is stored; leave out store, or ask without background."
            return bad_request(text, "background")
        return None

    def _is_large(self, raw: bytes) -> bool:
        return super()._is_large(raw) or names_stored(raw)

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

    # Its answer.

    def _new_id(self, prefix: str) -> str:
        stored = self._services.stored
        return random_id(prefix) if stored is None else stored.new_id(prefix)

    def _identity(self, models: ModelSet) -> Identity:
        return Identity(self._new_id("resp"), int(time.time()), self._model, "")

    def _writer(self, who: Identity, emit: Emit | None) -> ResponsesWriter:
        asked, self._asked = self._asked, None  # an answer may take long, and needs nothing of the input
        assert asked is not None
        self._previous = asked.request.previous_response_id
        self._conversation = conversation_of(asked.request.conversation)
        self._stores = self._reserved > 0 and asked.request.store is not False
        asked.echo |= {"store": self._stores, "background": self._background, **self._unrepeated(asked.echo)}
        response = response_of(who.id, who.created, who.model, asked.echo)
        self._writing = ResponsesWriter(
            response, emit, time.time, with_sealed=SEALED in (asked.request.include or ()),
            done=self._done, new_id=self._new_id, kinds=asked.kinds,
            summarises=asked.request.reasoning is not None and asked.request.reasoning.summary is not None,
        )  # fmt: skip
        return self._writing

    def _unrepeated(self, echo: dict[str, Any]) -> dict[str, Any]:
        """Return what stands in the place of large fields that the answer won't repeat, since too many others do."""
        if (size := echoed(echo)) <= LARGEST_ECHO:
            return {}
        self._echo = self._services.echoes.take_now(self._owner, size)
        return {} if self._echo is not None else SHORT

    def _start(
        self, models: ModelSet, requests: list[Made], options: ResponseOptions,
        deadline: float | None, hints: Hints,
    ) -> None:  # fmt: skip
        stored = self._services.stored
        if self._background and stored is not None:
            stored.background.check(self._owner)
        self._reserve()
        if self._added and not self._reserved:
            raise no_room()
        if self._background and not self._reserved:
            raise overloaded("there is no room for what this response was asked; try again in a moment.", "stored_full")
        super()._start(models, requests, options, deadline, hints)
        if self._behind is not None:
            self._go_behind(self._behind)

    def _done(self, response: bytes, items: list[str]) -> None:
        self._said = response, items
        if not self._background:
            self._keep()

    def _keep(self) -> None:
        if self._services.stored is None or not self._input or self._said is None or self._writing is None:
            return
        if self._conversation is not None:
            said = [msgspec.json.encode(item) for item in self._writing.response["output"]]
            self._services.stored.add_soon(self._owner, self._conversation, [*self._added, *said])
        if not self._stores:
            return
        response, items = self._said
        run = self._run
        kept = StoredResponse(
            self._writing.response["id"], self._owner, response, self._input,
            self._previous or self._conversation, items, self._items + len(items), background=run is not None,
            log=None if run is None else run.log,
        )  # fmt: skip
        self._services.stored.store.keep(kept)

    def _reserve(self) -> None:
        """Count the input while it is answered. Not in the thread that reads it, which may outlive its request."""
        stored, size = self._services.stored, len(self._input)
        if stored is None or not size or not stored.store.reserve(self._owner, size):
            self._input = b""
        else:
            self._reserved = size

    def leave(self) -> None:
        if self._run is None:
            self._leave()

    def _leave(self) -> None:
        if self._echo is not None:
            self._services.echoes.give_back(self._echo)
        size, self._reserved = self._reserved, 0
        if self._services.stored is not None and size:
            self._services.stored.store.release(self._owner, size)
        super().leave()
        self._writing = None  # which knows this job: else both stay until the next garbage collection

    # In the background.

    def _reader(self, scope: Scope, send: Send) -> tuple[Send, ClientConnection]:
        if not self._background:
            return super()._reader(scope, send)
        self._behind = Exchange(b"", self._heard)
        return self._behind.send, PlainWire(self._behind.abort)

    def _go_behind(self, exchange: Exchange) -> None:
        """Have it go on without its client."""
        stored, writing = self._services.stored, self._writing
        assert stored is not None
        assert writing is not None
        events = stored.background.log_of(self._owner) if self._follows else None
        begun = writing.queue()
        if events is not None:
            events.add(begun)
        self._run = BackgroundRun(self._owner, writing.response, self._input, events, exchange.leave)
        stored.background.start(self._run, self._answer(exchange))

    async def _heard(self, data: bytes) -> None:
        if self._run is not None and self._run.log is not None:
            self._run.log.add(data)

    async def _answer(self, exchange: Exchange) -> None:
        """Wait until it is answered, and store that."""
        run, writing = self._run, self._writing
        assert run is not None
        assert writing is not None
        error: ApiError | None = None
        try:
            try:
                await until_over({}, exchange.receive)
            finally:
                error = None if self.answer is None else self.answer.error
                await self._close()
        finally:
            await self._told(writing, run, error)
            self._keep()
            self._leave()

    async def _told(self, writing: ResponsesWriter, run: BackgroundRun, error: ApiError | None) -> None:
        """Say the end of a response whose writer hasn't: it was cancelled, or failed before its first token."""
        if writing.response["status"] in ("queued", "in_progress"):
            if error is None or run.cancelled:
                await self._heard(writing.cancelled())
            else:
                await self._heard(writing.failure(error))
        if self._said is None:
            self._said = run.said(), [item["id"] for item in writing.response["output"]]
