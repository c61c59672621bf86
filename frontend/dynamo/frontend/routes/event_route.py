"""Routes of other APIs that ask for a chat: read in their words, answered by the chat's own way, said in their words.

Bounds, time limits, models, admission, routing, migration, figures and traces are those of `generate.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from dynamo.frontend.errors import ApiError, bad_request
from dynamo.frontend.openai.chunks import Identity
from dynamo.frontend.openai.constraints import Parsing
from dynamo.frontend.openai.request_structs import ChatRequest, CompletionRequest
from dynamo.frontend.responses.event_answer import Emit, EventAnswer, EventWriter
from dynamo.frontend.responses.response import Response, ResponseOptions
from dynamo.frontend.responses.stream import Headers, Send
from dynamo.frontend.routes.generate import GenerateJob, Made
from dynamo.frontend.routing.hints import Hints
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.frontend.services import Services
from dynamo.llm.protocols import PreprocessedRequest, TextRequest

LARGE_BODY: Final = 16 << 10
"""Bytes; larger bodies are read in threads, in turn. The worst of this size takes a millisecond."""


class EventJob(GenerateJob):
    """One request on its way."""

    _refuses_totals = False  # agents ask for what their usual model can do at most, whatever is served

    def __init__(self, services: Services, rid: str, headers: Headers, endpoint: str) -> None:
        super().__init__(services, True, rid, headers, endpoint)
        self._problem: ApiError | None = None
        """What is wrong with the conversation as a whole."""

    @abstractmethod
    def _read(self, raw: bytes) -> tuple[dict[str, Any], ChatRequest]:
        """Return the body of the chat that it asks for, and that body checked."""

    @abstractmethod
    def _writer(self, who: Identity, emit: Emit | None) -> EventWriter:
        """Return what writes its answer; `emit` takes a stream's bytes."""

    def _understand(self, raw: bytes) -> tuple[dict[str, Any], ChatRequest | CompletionRequest]:
        return self._read(raw)

    def _is_large(self, raw: bytes) -> bool:
        """Tell so of smaller ones, too: reading items and blocks one by one costs some times as much per byte."""
        return len(raw) > LARGE_BODY

    async def _prepare(
        self,
        models: ModelSet,
        request: ChatRequest | CompletionRequest,
        body: dict[str, Any],
        *,
        blocking: bool = False,
    ) -> tuple[list[Made], ResponseOptions]:
        if self._problem is not None:
            raise self._problem
        return await super()._prepare(models, request, body, blocking=blocking)

    def _form(self, parsing: Parsing | None) -> Callable[..., Response]:
        return partial(EventAnswer, form=self._writer, streams=self._kind == "stream")

    def _fill(self, body: dict[str, Any]) -> None:
        """Name the default model where the body names none; the rest is filled into the chat's body."""
        defaults = self._services.settings.request_defaults
        if defaults is not None and defaults.model is not None and body.get("model") in (None, ""):
            body["model"] = defaults.model

    async def _tell(
        self, models: ModelSet, request: PreprocessedRequest | TextRequest, hints: Hints, send: Send
    ) -> None:
        text = "nvext.annotations: query_instance_id is for /v1/chat/completions and /v1/completions."
        raise bad_request(text, "nvext.annotations", "unsupported_value")

    def _filled(self, chat: dict[str, Any]) -> None:
        defaults = self._services.settings.request_defaults
        if defaults is not None:
            defaults.fill(chat, chat=True)
