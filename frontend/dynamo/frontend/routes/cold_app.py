"""The FastAPI app of every route that is not hot, and its errors in OpenAI's form.

A module of its own: a frontend that nobody but a conversation of its own process asks (`dynamo-run`) never loads it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from dynamo.frontend.anthropic.errors import in_words_of
from dynamo.frontend.console.paths import paths_of
from dynamo.frontend.console.routes import console_router
from dynamo.frontend.errors import ApiError, bad_request, internal, to_api_error, unknown_route, wrong_method
from dynamo.frontend.http.requests import ClientGone
from dynamo.frontend.openapi.description import describe
from dynamo.frontend.openapi.messages import DESCRIBED as MESSAGES
from dynamo.frontend.openapi.responses import DESCRIBED as RESPONSES
from dynamo.frontend.responses.answer_structs import ANSWERS, STREAMS
from dynamo.frontend.responses.cold_replies import error_reply
from dynamo.frontend.routes.busy_threshold import busy_router
from dynamo.frontend.routes.explain import explain_router
from dynamo.frontend.routes.models import models_router
from dynamo.frontend.routes.scores import scores_router
from dynamo.frontend.routes.stored.conversations import conversations_router
from dynamo.frontend.routes.stored.responses import stored_responses_router
from dynamo.frontend.routes.system import own_version, system_router
from dynamo.frontend.routes.token_counts import token_counts_router
from dynamo.frontend.services import Services
from dynamo.runtime.errors import DynamoException

log = logging.getLogger(__name__)
_PARAMETER: Final = re.compile(r"\{[^{}]*\}")
_UNLISTED: Final = ("/docs", "/openapi.json")
"""Pages about the description, which aren't in it."""
_UNSERVED: Final = (("POST", "/v1/responses/compact"),)
"""Routes of OpenAI's that look like the id of something here."""


def cold_app(services: Services) -> FastAPI:
    """Return the FastAPI app of everything that is not hot."""
    app = FastAPI(
        title="Dynamo Pipelines", version=own_version(), description="OpenAI-compatible LLM serving.",
        docs_url=None, redoc_url=None, redirect_slashes=False, generate_unique_id_function=lambda route: route.name,
    )  # fmt: skip
    app.include_router(system_router(services))
    app.include_router(models_router(services))
    app.include_router(token_counts_router(services))
    app.include_router(scores_router(services))
    app.include_router(stored_responses_router(services))
    app.include_router(conversations_router(services))
    app.include_router(busy_router(services))
    app.include_router(console_router(services))
    app.include_router(explain_router(services))
    app.state.unlisted = (*_UNLISTED, *paths_of(services.settings.access))
    app.add_exception_handler(ApiError, _answer)
    app.add_exception_handler(DynamoException, _answer)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientGone, _gone)
    app.add_exception_handler(Exception, _unexpected)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        app.openapi_schema = describe(made, RESPONSES, MESSAGES, answers=ANSWERS, streams=STREAMS)
    return app.openapi_schema


async def _answer(request: Request, error: Exception) -> Response:
    return _replied(request, to_api_error(error))


async def _http_error(request: Request, error: Exception) -> Response:
    """Return starlette's own errors: unknown routes and wrong methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404 or (request.method, request.scope["path"]) in _UNSERVED:
        return _replied(request, unknown_route(request.method, request.url.path))
    if error.status_code == 405:
        return _replied(request, wrong_method(request.method, request.url.path, _allowed(request, error)))
    return _replied(request, bad_request(str(error.detail)))


def _replied(request: Request, error: ApiError) -> Response:
    scope: Any = request.scope
    return error_reply(in_words_of(scope, error))


def _allowed(request: Request, error: HTTPException) -> str:
    """Return the methods of a path; Starlette names those of the first route that has it."""
    allowed = methods_at(request.app, request.scope["path"])
    named = (error.headers or {}).get("Allow", "").split(",")
    return ", ".join(sorted(allowed or {method.strip() for method in named if method.strip()}))


def methods_at(app: FastAPI, asked: str) -> set[str]:
    """Return the methods of a path; empty where there is nothing."""
    if asked in app.state.unlisted:
        return {"GET", "HEAD"}
    paths = app.openapi()["paths"]
    if asked in paths:
        return _with_head(paths[asked])
    allowed: set[str] = set()
    for parameter in ("[^/]+", ".+"):  # ids of models may hold slashes; what fits without is meant
        for path, methods in paths.items():
            pattern = parameter.join(re.escape(part) for part in _PARAMETER.split(path))
            if re.fullmatch(pattern, asked):
                allowed |= _with_head(methods)
        if allowed:
            break
    return allowed


def _with_head(methods: Iterable[str]) -> set[str]:
    named = {method.upper() for method in methods}
    return named | {"HEAD"} if "GET" in named else named


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("[%s] the request failed", request.state.request_id, exc_info=error)
    return _replied(request, internal())
