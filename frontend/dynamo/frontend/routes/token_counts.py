"""POST /v1/responses/input_tokens and /v1/messages/count_tokens: how many tokens a prompt has, without an answer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from dynamo.frontend.anthropic.request_structs import CountTokensRequest
from dynamo.frontend.anthropic.requests import read_prompt
from dynamo.frontend.errors import ApiError
from dynamo.frontend.http.requests import headers_of
from dynamo.frontend.images.parts import images_in
from dynamo.frontend.limits.concurrency_limits import caller_of
from dynamo.frontend.openai.body import decode
from dynamo.frontend.openai.responses_requests import read_responses
from dynamo.frontend.openai.responses_structs import ResponsesRequest
from dynamo.frontend.responses.cold_replies import json_reply
from dynamo.frontend.routes.intake import SHORT_BODY, Intake
from dynamo.frontend.routes.messages import check_version
from dynamo.frontend.routes.stored.earlier import Earlier, looked_up, names_stored
from dynamo.frontend.services import Services
from dynamo.frontend.stored.store import owner_of
from dynamo.llm.processing.preprocess import Preprocessor
from dynamo.llm.protocols import ImageInput
from dynamo.runtime.errors import DeadlineExceeded

Chat = dict[str, Any]
Read = Callable[[dict[str, Any]], tuple[Chat, ApiError | None]]
Prepare = Callable[[Intake, bytes], AbstractAsyncContextManager[Read]]
"""What looks up all that reading a body needs."""


def token_counts_router(services: Services) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["tokens"])

    @router.post("/v1/responses/input_tokens")
    async def input_tokens(request: Request) -> Response:
        """Count the tokens of a response's input, as the model would see it."""
        count = await _counted(services, request, ResponsesRequest, partial(_of_responses, services, request))
        return json_reply({"object": "response.input_tokens", "input_tokens": count})

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> Response:
        """Count the tokens of messages, as the model would see them."""
        scope: Any = request.scope
        check_version(scope)
        return json_reply({"input_tokens": await _counted(services, request, CountTokensRequest, _of_messages)})

    return router


@contextlib.asynccontextmanager
async def _of_messages(intake: Intake, raw: bytes) -> AsyncIterator[Read]:
    yield partial(read_prompt, kind=CountTokensRequest)


@contextlib.asynccontextmanager
async def _of_responses(services: Services, request: Request, intake: Intake, raw: bytes) -> AsyncIterator[Read]:
    scope: Any = request.scope
    async with looked_up(services, intake, scope, owner_of(headers_of(scope)), raw) as earlier:
        yield partial(_read_responses, earlier, services.settings.body_limit)


def _read_responses(earlier: Earlier, most: int, body: dict[str, Any]) -> tuple[Chat, ApiError | None]:
    earlier.refer(body, most)
    asked = read_responses(body, earlier.conversation())
    return asked.body, earlier.problem or asked.problem


async def _counted(services: Services, request: Request, kind: type[msgspec.Struct], prepare: Prepare) -> int:
    """Read and count as requests for answers are: by the same bounds, a longer one in the threads."""
    scope: Any = request.scope
    receive: Any = request.receive
    intake, images = Intake(services, services.clock()), services.request_images()

    def understand(raw: bytes, read: Read) -> tuple[str, Chat, ApiError | None]:
        body = decode(raw, kind)
        defaults = services.settings.request_defaults
        if defaults is not None and defaults.model is not None and body.get("model") in (None, ""):
            body["model"] = defaults.model
        intake.check_fields(body, kind, [])
        chat, problem = read(body)
        return str(body.get("model")), chat, problem

    try:
        raw = await intake.read(scope, receive)
        async with prepare(intake, raw) as read:
            if len(raw) <= SHORT_BODY and not names_stored(raw):
                understood = understand(raw, read)
                if not images_in(understood[1]["messages"]):
                    return _count(services, intake, *understood)()
            async with intake.turn() as turn:
                model, chat, problem = await turn.run(lambda: understand(raw, read))
                if refs := images_in(chat["messages"]):
                    await images.load(refs, services.pool.find(model).card, caller_of(scope), intake.deadline, turn)
                return await turn.run(_count(services, intake, model, chat, problem, images.inputs))
    except DeadlineExceeded as error:
        raise intake.too_late(error) from None
    finally:
        images.leave()
        intake.leave()


def _count(
    services: Services, intake: Intake, model: str, chat: Chat, problem: ApiError | None,
    images: Sequence[ImageInput] = (),
) -> Callable[[], int]:  # fmt: skip
    """Return what counts, which may take long; raises where the model isn't there, or the conversation isn't one."""
    preprocessor = _preprocessor(services, intake, model)
    if problem is not None:
        raise problem
    return lambda: preprocessor.chat_tokens(chat, images)


def _preprocessor(services: Services, intake: Intake, model: str) -> Preprocessor:
    intake.to_model(model, "count_tokens")
    loaded = services.pool.find(model).model
    if loaded is None or loaded.preprocessor is None:
        text = f"The model '{model}' takes text; it has no tokenizer here."
        raise ApiError(400, text, code="unsupported_value", param="model")
    return loaded.preprocessor
