"""POST /v1/rerank and /v1/score: how near texts are to each other, by the vectors of an embedding model.

The vectors are asked of `/v1/embeddings` in this process, with its bounds, limits and metrics; a score is the cosine of
two of them, as vLLM has it for such models.
"""

from __future__ import annotations

import asyncio
import base64
import time
from array import array
from collections.abc import Callable, Sequence
from math import sqrt
from operator import mul
from random import getrandbits
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from dynamo.frontend.errors import bad_request
from dynamo.frontend.http.asgi_call import Exchange
from dynamo.frontend.http.connection import CONNECTION
from dynamo.frontend.http.requests import Receive, Scope
from dynamo.frontend.openai import requests as openai
from dynamo.frontend.openai.body import decode
from dynamo.frontend.openai.request_structs import RerankRequest, ScoreRequest
from dynamo.frontend.responses.cold_replies import json_reply
from dynamo.frontend.responses.stream import Headers
from dynamo.frontend.routes.embeddings import EmbedRoute
from dynamo.frontend.routes.intake import Intake
from dynamo.frontend.services import Services

EMBEDDINGS: Final = "/v1/embeddings"
_OF_BODY: Final = (b"content-length", b"content-encoding", b"transfer-encoding")
_OF_SCOPE: Final = ("type", "asgi", "http_version", "method", "scheme", "query_string", "root_path", "client", "server")


class Scored(msgspec.Struct):
    """Texts in one order, and which of them are compared."""

    texts: list[str]
    pairs: list[tuple[int, int]]


def scores_router(services: Services) -> APIRouter:
    """Return the routes, under each of the names that clients know."""
    router = APIRouter(tags=["embeddings"])
    embed = EmbedRoute(services)

    async def rerank(request: Request) -> Response:
        """Order documents by how near they are to a query."""
        return await _answered(services, embed, request, RerankRequest, _of_rerank, _ranking)

    async def score(request: Request) -> Response:
        """Say how near texts are to each other."""
        return await _answered(services, embed, request, ScoreRequest, _of_score, _scores)

    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        router.add_api_route(path, rerank, methods=["POST"], include_in_schema=path == "/v1/rerank")
    for path in ("/v1/score", "/score"):
        router.add_api_route(path, score, methods=["POST"], include_in_schema=path == "/v1/score")
    return router


async def _answered(
    services: Services, embed: EmbedRoute, request: Request, kind: type[Any],
    read: Callable[[Any], Scored], say: Callable[[Any, Scored, list[float], dict[str, Any]], dict[str, Any]],
) -> Response:  # fmt: skip
    scope: Any = request.scope
    receive: Any = request.receive
    headers: Headers = []
    intake = Intake(services, services.clock())
    try:
        raw = await intake.read(scope, receive)
        async with intake.turn() as turn:
            asked = await turn.run(lambda: _understood(intake, raw, kind, headers))
            services.pool.find(asked.model)  # 404 before anything is said of its texts
            scored = await turn.run(lambda: read(asked))
    finally:
        intake.leave()  # the call for vectors counts from now on
    exchange = await _vectors(embed, scope, receive, asked.model, scored.texts)
    if exchange.status != 200:
        return _refused(exchange)
    async with services.threads.turn(b"", None) as turn:
        body = await turn.run(lambda: _made(asked, scored, bytes(exchange.content), say))
    return json_reply(body, headers=headers)


def _understood(intake: Intake, raw: bytes, kind: type[Any], headers: Headers) -> Any:
    body = decode(raw, kind)
    intake.check_fields(body, kind, headers)
    return openai.convert(body, kind)


async def _vectors(embed: EmbedRoute, scope: Scope, receive: Receive, model: str, texts: list[str]) -> Exchange:
    """Ask for the vectors; freed where the client leaves meanwhile."""
    body = msgspec.json.encode({"model": model, "input": texts, "encoding_format": "base64"})
    exchange = Exchange(body)
    headers = [(name, value) for name, value in scope["headers"] if name not in _OF_BODY]
    inner = {name: scope[name] for name in _OF_SCOPE if name in scope} | {
        "path": EMBEDDINGS, "raw_path": EMBEDDINGS.encode(), "state": {}, CONNECTION: exchange,
        "headers": [*headers, (b"content-length", b"%d" % len(body))],
    }  # fmt: skip
    gone = asyncio.get_running_loop().create_task(_gone(receive, exchange), name="a client of scores")
    try:
        await embed(inner, exchange.receive, exchange.send)
    finally:
        gone.cancel()
    return exchange


async def _gone(receive: Receive, exchange: Exchange) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.leave()


def _refused(exchange: Exchange) -> Response:
    """Return what the route of embeddings has said."""
    kept = [(name, value) for name, value in exchange.headers if name in (b"retry-after", b"content-type")]
    reply = Response(bytes(exchange.content), exchange.status or 499)
    reply.raw_headers.extend(kept)
    return reply


def _made(asked: Any, scored: Scored, content: bytes, say: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    answer = msgspec.json.decode(content)
    vectors = [array("f", base64.b64decode(entry["embedding"])) for entry in answer["data"]]
    lengths = [sqrt(sum(map(mul, vector, vector))) for vector in vectors]
    made = [_cosine(vectors, lengths, left, right) for left, right in scored.pairs]
    body: dict[str, Any] = say(asked, scored, made, answer["usage"])
    return body


def _cosine(vectors: Sequence[array[float]], lengths: Sequence[float], left: int, right: int) -> float:
    scale = lengths[left] * lengths[right]
    if not scale:
        return 0.0
    cosine: float = sum(map(mul, vectors[left], vectors[right])) / scale
    return max(-1.0, min(1.0, cosine))  # rounding makes it a little more, and who takes its arc cosine fails


def _text(given: str | dict[str, Any], where: str) -> str:
    text = given if isinstance(given, str) else given.get("text")
    if not isinstance(text, str) or not text:
        raise bad_request(f"{where}: expected a text, or an object with a text.", where, "invalid_type")
    return text


def _of_rerank(asked: RerankRequest) -> Scored:
    texts = [_text(given, f"documents[{index}]") for index, given in enumerate(asked.documents)]
    return Scored([_text(asked.query, "query"), *texts], [(0, index + 1) for index in range(len(texts))])


def _ranking(asked: RerankRequest, scored: Scored, scores: list[float], usage: dict[str, Any]) -> dict[str, Any]:
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.top_n or None]
    results = []
    for index in order:
        about: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
        if asked.return_documents is not False:
            about["document"] = {"text": scored.texts[index + 1]}
        results.append(about)
    return {"id": f"rerank-{getrandbits(128):032x}", "model": asked.model, "usage": usage, "results": results}


def _of_score(asked: ScoreRequest) -> Scored:
    left = [asked.text_1] if isinstance(asked.text_1, str) else asked.text_1
    right = [asked.text_2] if isinstance(asked.text_2, str) else asked.text_2
    for name, texts in (("text_1", left), ("text_2", right)):
        for text in texts:
            _text(text, name)
    if len(left) not in (1, len(right)):
        text = f"text_1: one text, or as many as text_2 has ({len(right)}); got {len(left)}."
        raise bad_request(text, "text_1")
    first = [0] * len(right) if len(left) == 1 else range(len(left))
    return Scored([*left, *right], [(at, len(left) + index) for index, at in enumerate(first)])


def _scores(asked: ScoreRequest, scored: Scored, scores: list[float], usage: dict[str, Any]) -> dict[str, Any]:
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return {
        "id": f"score-{getrandbits(128):032x}", "object": "list", "created": int(time.time()), "model": asked.model,
        "data": data, "usage": usage,
    }  # fmt: skip
