"""GET /v1/models and /v1/models/{id}; POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dynamo.frontend import openai
from dynamo.frontend.errors import ApiError, bad_request, model_not_found
from dynamo.frontend.model_set import ModelSet
from dynamo.frontend.models import ModelPool
from dynamo.frontend.openai import DetokenizeRequest, TokenizeRequest
from dynamo.frontend.requests import check_json, read_body
from dynamo.frontend.routes.replies import json_reply
from dynamo.frontend.services import Services
from dynamo.llm.preprocess import Preprocessor


def models_router(services: Services) -> APIRouter:
    """The routes that describe models and show their tokens."""
    router = APIRouter()
    pool = services.pool

    @router.get("/v1/models", tags=["models"])
    async def list_models() -> Response:
        """List the models that can be asked for now."""
        return json_reply({"object": "list", "data": [_describe(one, pool) for one in pool.served()]})

    @router.get("/v1/models/{model_id:path}", tags=["models"])
    async def get_model(model_id: str) -> Response:
        """Describe one model; its id may hold slashes."""
        served = {one.name: one for one in pool.served()}
        if model_id not in served:
            raise model_not_found(model_id, list(served))
        return json_reply(_describe(served[model_id], pool))

    @router.post("/tokenize", tags=["tokens"])
    async def tokenize(request: Request) -> Response:
        """Show the tokens of a prompt, or of messages with the model's chat template."""
        asked: TokenizeRequest = await _read(services, request, TokenizeRequest)
        preprocessor = _preprocessor(services, asked.model)
        ids = await _tokens(preprocessor, asked)
        texts = [preprocessor.tokenizer.token_bytes(one).decode("utf-8", "replace") for one in ids]
        strings = {"token_strs": texts} if asked.return_token_strs else {}
        length = preprocessor.card.context_length
        return json_reply({"count": len(ids), "max_model_len": length, "tokens": ids, **strings})

    @router.post("/detokenize", tags=["tokens"])
    async def detokenize(request: Request) -> Response:
        """Show the text of token ids."""
        asked: DetokenizeRequest = await _read(services, request, DetokenizeRequest)
        tokenizer = _preprocessor(services, asked.model).tokenizer
        if too_large := [one for one in asked.tokens if one >= tokenizer.vocab_size]:
            raise bad_request(
                f"tokens: the vocabulary ends at {tokenizer.vocab_size - 1}, got {too_large[0]}.", "tokens"
            )
        return json_reply({"prompt": tokenizer.decode(asked.tokens, skip_special=False)})

    return router


def _describe(one: ModelSet, pool: ModelPool) -> dict[str, Any]:
    length = one.card.context_length
    return {
        "id": one.name, "object": "model", "created": one.created, "owned_by": "dynamo",
        "context_window": length, "max_model_len": length, "types": pool.types(one.name),
    }  # fmt: skip


async def _read(services: Services, request: Request, kind: type[Any]) -> Any:
    scope: Any = request.scope
    receive: Any = request.receive
    check_json(scope)
    body = openai.decode(await read_body(scope, receive, services.policy.body_limit))
    services.check_fields(body, kind, request.state.request_id)
    return openai.convert(body, kind)


def _preprocessor(services: Services, model: str) -> Preprocessor:
    loaded = services.pool.find(model).model
    if loaded is None or loaded.preprocessor is None:
        text = f"The model '{model}' takes text; it has no tokenizer here."
        raise ApiError(400, text, code="unsupported_value", param="model")
    return loaded.preprocessor


async def _tokens(preprocessor: Preprocessor, asked: TokenizeRequest) -> list[int]:
    if (asked.prompt is None) == (asked.messages is None):
        raise bad_request("prompt: give either prompt or messages.", "prompt")
    if asked.prompt is not None:
        special = True if asked.add_special_tokens is None else asked.add_special_tokens
        return await preprocessor.tokenizer.encode_async(asked.prompt, add_special=special)
    body = {"messages": asked.messages, "add_generation_prompt": asked.add_generation_prompt}
    return await preprocessor.tokenizer.encode_async(preprocessor.chat_prompt(body), add_special=False)
