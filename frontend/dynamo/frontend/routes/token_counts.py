"""POST /v1/responses/input_tokens and /v1/messages/count_tokens: how many tokens a prompt has, without an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from dynamo.frontend.anthropic.request_structs import CountTokensRequest
from dynamo.frontend.anthropic.requests import read_prompt
from dynamo.frontend.errors import ApiError
from dynamo.frontend.http.responses import json_reply
from dynamo.frontend.openai import requests as openai
from dynamo.frontend.openai.responses_requests import read_responses
from dynamo.frontend.openai.responses_structs import ResponsesRequest
from dynamo.frontend.routes.intake import Intake
from dynamo.frontend.routes.messages import check_version
from dynamo.frontend.routes.model_request import SHORT_BODY
from dynamo.frontend.services import Services
from dynamo.llm.processing.preprocess import Preprocessor
from dynamo.runtime.errors import DeadlineExceeded

Chat = dict[str, Any]
Read = Callable[[dict[str, Any]], Chat]


def token_counts_router(services: Services) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["tokens"])

    @router.post("/v1/responses/input_tokens")
    async def input_tokens(request: Request) -> Response:
        """Count the tokens of a response's input, as the model would see it."""
        count = await _counted(services, request, ResponsesRequest, lambda body: read_responses(body).body)
        return json_reply({"object": "response.input_tokens", "input_tokens": count})

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> Response:
        """Count the tokens of messages, as the model would see them."""
        scope: Any = request.scope
        check_version(scope)
        count = await _counted(
            services, request, CountTokensRequest, lambda body: read_prompt(body, CountTokensRequest)
        )
        return json_reply({"input_tokens": count})

    return router


async def _counted(services: Services, request: Request, kind: type[msgspec.Struct], read: Read) -> int:
    """Read and count as requests for answers are: by the same bounds, a longer one in the threads."""
    scope: Any = request.scope
    receive: Any = request.receive
    intake = Intake(services, services.clock())

    def understand(raw: bytes) -> tuple[str, Chat]:
        body = openai.decode(raw, kind)
        services.check_fields(body, kind, request.state.request_id)
        return str(body.get("model")), read(body)

    try:
        raw = await intake.read(scope, receive)
        if len(raw) <= SHORT_BODY:
            model, chat = understand(raw)
            return _count(_preprocessor(services, intake, model), chat)
        async with intake.turn() as turn:
            model, chat = await turn.run(lambda: understand(raw))
            preprocessor = _preprocessor(services, intake, model)
            return await turn.run(lambda: _count(preprocessor, chat))
    except DeadlineExceeded as error:
        raise intake.too_late(error) from None
    finally:
        intake.leave()


def _count(preprocessor: Preprocessor, chat: Chat) -> int:
    return len(preprocessor.encode(preprocessor.chat_prompt(chat), add_special=False))


def _preprocessor(services: Services, intake: Intake, model: str) -> Preprocessor:
    intake.to_model(model)
    loaded = services.pool.find(model).model
    if loaded is None or loaded.preprocessor is None:
        text = f"The model '{model}' takes text; it has no tokenizer here."
        raise ApiError(400, text, code="unsupported_value", param="model")
    return loaded.preprocessor
