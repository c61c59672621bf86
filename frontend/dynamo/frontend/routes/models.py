"""GET /v1/models and /v1/models/{id}; POST /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dynamo.frontend.anthropic.models import VERSION, Model, described, listed
from dynamo.frontend.errors import ApiError, bad_request, model_not_found
from dynamo.frontend.health import readiness
from dynamo.frontend.openai import requests as openai
from dynamo.frontend.openai.body import decode
from dynamo.frontend.openai.request_structs import DetokenizeRequest, TokenizeRequest
from dynamo.frontend.responses.cold_replies import json_reply
from dynamo.frontend.responses.stream import Headers
from dynamo.frontend.routes.intake import SHORT_BODY, Intake
from dynamo.frontend.routing.model_pool import ModelPool
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.frontend.services import Services
from dynamo.llm.processing.preprocess import Preprocessor
from dynamo.runtime.errors import DeadlineExceeded

_TEMPLATE_FIELDS: Final = (
    "messages", "add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs", "reasoning_effort",
)  # fmt: skip
"""What a chat's template sees."""
_PAGE: Final = [
    # Without bounds: a client of OpenAI's form may send what it likes, and is not refused for it.
    {"name": name, "in": "query", "required": False, "description": text, "schema": {"type": "string"}}
    for name, text in (
        ("limit", "With Anthropic's version only: models of a page, 1 to 1000."),
        ("after_id", "With Anthropic's version only: the model before the page."),
        ("before_id", "With Anthropic's version only: the model behind the page."),
    )
]
Asked = TypeVar("Asked", TokenizeRequest, DetokenizeRequest)


def models_router(services: Services) -> APIRouter:
    """Return the routes that describe models and show their tokens."""
    router = APIRouter()
    pool = services.pool

    @router.get("/v1/models", tags=["models"], openapi_extra={"parameters": _PAGE})
    async def list_models(request: Request) -> Response:
        """List the models that are served now, in Anthropic's form for its clients."""
        if VERSION in request.headers:
            return json_reply(listed([_theirs(models) for models in pool.served()], request.query_params))
        return json_reply({"object": "list", "data": [_describe(models, pool) for models in pool.served()]})

    @router.get("/v1/models/{model_id:path}/ready", tags=["models"])
    async def get_model_ready(model_id: str) -> Response:
        """Say whether a model can be asked now, and by which namespaces; 503 where it can't."""
        status, body = readiness(pool, pool.own_name(model_id))
        return json_reply(body, status)

    @router.get("/tokenizer_info", tags=["tokens"])
    async def tokenizer_info(model: str = "") -> Response:
        """Describe the tokenizer of a model; of the only one where none is named."""
        return json_reply(_tokenizer_info(pool, model))

    @router.get("/v1/models/{model_id:path}", tags=["models"])
    async def get_model(request: Request, model_id: str) -> Response:
        """Describe one model, whose id may hold slashes; in Anthropic's form for its clients."""
        served, theirs = {models.name: models for models in pool.served()}, VERSION in request.headers
        if (model := served.get(pool.own_name(model_id))) is None:
            raise model_not_found(model_id, list(served))
        return json_reply(described(_theirs(model)) if theirs else _describe(model, pool))

    @router.post("/tokenize", tags=["tokens"])
    async def tokenize(request: Request) -> Response:
        """Return the tokens of a prompt, or of messages in the model's chat template."""
        return await _answered(services, request, TokenizeRequest, _tokens_of)

    @router.post("/detokenize", tags=["tokens"])
    async def detokenize(request: Request) -> Response:
        """Return the text of token ids."""
        return await _answered(services, request, DetokenizeRequest, _text_of)

    return router


def _theirs(models: ModelSet) -> Model:
    return Model(models.name, models.created, models.card.context_length)


def _describe(models: ModelSet, pool: ModelPool) -> dict[str, Any]:
    length = models.card.context_length
    return {
        "id": models.name, "object": "model", "created": models.created, "owned_by": "dynamo",
        "context_window": length, "max_model_len": length, "types": pool.types(models.name),
        "input_modalities": ["text"] if models.card.images is None else ["text", "image"],
    }  # fmt: skip


def _named(pool: ModelPool, name: str | None, way: str) -> str:
    """Return the name of a model; of the only one where none is named, as vLLM's clients have it."""
    if name:
        return name
    served = pool.served()
    if len(served) != 1:
        text = f"model: several models are served, or none; name one{way}."
        raise ApiError(404, text, code="model_not_found", param="model")
    return served[0].name


def _tokenizer_info(pool: ModelPool, name: str) -> dict[str, Any]:
    models = pool.find(_named(pool, name, " as ?model=NAME"))
    if models.model is None or models.model.preprocessor is None:
        text = f"The model '{models.name}' takes text; it has no tokenizer here."
        raise ApiError(400, text, code="unsupported_value", param="model")
    preprocessor, card = models.model.preprocessor, models.card
    special = {name: value for name, value in card.special_tokens.items() if isinstance(value, str)}
    return {
        "tokenizer_class": type(preprocessor.tokenizer).__name__, "model_max_length": card.context_length,
        "vocab_size": card.vocab_size or preprocessor.tokenizer.vocab_size, "eos_token_ids": card.eos_token_ids,
        "chat_template": preprocessor.template_text, **special,
    }  # fmt: skip


async def _answered(
    services: Services, request: Request, kind: type[Asked], answer: Callable[[Preprocessor, Asked], Any]
) -> Response:
    """Read and answer a request as those for models are: by the same bounds, a longer one in the threads."""
    scope: Any = request.scope
    receive: Any = request.receive
    headers: Headers = []
    intake = Intake(services, services.clock())
    try:
        raw = await intake.read(scope, receive)
        if len(raw) <= SHORT_BODY:
            asked = _understand(intake, raw, kind, headers)
            return json_reply(answer(_preprocessor(services, intake, asked), asked), headers=headers)
        async with intake.turn() as turn:
            asked = await turn.run(lambda: _understand(intake, raw, kind, headers))
            preprocessor = _preprocessor(services, intake, asked)
            return await turn.run(lambda: json_reply(answer(preprocessor, asked), headers=headers))
    except DeadlineExceeded as error:
        raise intake.too_late(error) from None
    finally:
        intake.leave()


def _understand(intake: Intake, raw: bytes, kind: type[Asked], headers: Headers) -> Asked:
    body = decode(raw, kind)
    intake.check_fields(body, kind, headers)
    asked: Asked = openai.convert(body, kind)
    return asked


def _preprocessor(services: Services, intake: Intake, asked: TokenizeRequest | DetokenizeRequest) -> Preprocessor:
    name = _named(services.pool, asked.model, "")
    intake.to_model(name, "tokenize")
    loaded = services.pool.find(name).model
    if loaded is None or loaded.preprocessor is None:
        text = f"The model '{name}' takes text; it has no tokenizer here."
        raise ApiError(400, text, code="unsupported_value", param="model")
    return loaded.preprocessor


def _tokens_of(preprocessor: Preprocessor, asked: TokenizeRequest) -> dict[str, Any]:
    if (asked.prompt is None) == (asked.messages is None):
        raise bad_request("prompt: give either prompt or messages.", "prompt")
    if asked.prompt is not None:
        special = True if asked.add_special_tokens is None else asked.add_special_tokens
        ids = preprocessor.encode(asked.prompt, add_special=special)
    else:
        body = {field: getattr(asked, field) for field in _TEMPLATE_FIELDS}
        ids = preprocessor.encode(preprocessor.chat_prompt(body), add_special=False)
    texts = [preprocessor.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids]
    strings = {"token_strs": texts} if asked.return_token_strs else {}
    return {"count": len(ids), "max_model_len": preprocessor.card.context_length, "tokens": ids, **strings}


def _text_of(preprocessor: Preprocessor, asked: DetokenizeRequest) -> dict[str, Any]:
    tokenizer, context = preprocessor.tokenizer, preprocessor.card.context_length
    if context is not None and len(asked.tokens) > context:
        raise bad_request(f"tokens: {len(asked.tokens)} are more than the model's context of {context}.", "tokens")
    if asked.tokens and (largest := max(asked.tokens)) >= tokenizer.vocab_size:
        raise bad_request(f"tokens: the vocabulary ends at {tokenizer.vocab_size - 1}, got {largest}.", "tokens")
    return {"prompt": tokenizer.decode(asked.tokens, skip_special=False)}
