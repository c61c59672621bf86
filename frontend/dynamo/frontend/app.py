"""The ASGI application: hot routes bare, everything else FastAPI, errors always in OpenAI's form."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from dynamo.frontend.anthropic.errors import in_words_of
from dynamo.frontend.anthropic.openapi import DESCRIBED as MESSAGES
from dynamo.frontend.errors import ApiError, bad_request, internal, to_api_error, unknown_route, wrong_method
from dynamo.frontend.http.guard import PROBES, Guard, is_system
from dynamo.frontend.http.requests import ClientGone, Receive, Scope, header, request_id
from dynamo.frontend.openai.openapi import describe
from dynamo.frontend.openai.responses_openapi import DESCRIBED as RESPONSES
from dynamo.frontend.responses.answer_structs import ANSWERS
from dynamo.frontend.responses.cold_replies import error_reply
from dynamo.frontend.responses.stream import Headers, Send, respond_error
from dynamo.frontend.routes.busy_threshold import busy_router
from dynamo.frontend.routes.embeddings import EmbedRoute
from dynamo.frontend.routes.generate import GenerateRoute
from dynamo.frontend.routes.messages import MessagesRoute
from dynamo.frontend.routes.models import models_router
from dynamo.frontend.routes.responses import ResponsesRoute
from dynamo.frontend.routes.scores import scores_router
from dynamo.frontend.routes.stored_responses import stored_responses_router
from dynamo.frontend.routes.system import own_version, system_router
from dynamo.frontend.routes.token_counts import token_counts_router
from dynamo.frontend.services import Services
from dynamo.runtime.errors import DynamoException

log = logging.getLogger(__name__)
_PARAMETER: Final = re.compile(r"\{[^{}]*\}")
_UNLISTED: Final = ("/docs", "/openapi.json")
"""Pages about the description, which aren't in it."""
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class Application:
    """Dispatches: hot routes see uvicorn's own `send`, so nothing stands between a token and the socket."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._hot: dict[str, Asgi] = {
            "/v1/chat/completions": GenerateRoute(services, chat=True),
            "/v1/completions": GenerateRoute(services, chat=False),
            "/v1/embeddings": EmbedRoute(services),
            "/v1/messages": MessagesRoute(services),
            "/v1/responses": ResponsesRoute(services),
        }
        self._cold: Any = cold_app(services)
        public, keys = services.settings.access.public_system_routes, services.keys
        self._guard = None if public and keys is None else Guard(keys, public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (path := scope["path"])[-1:] == "/" and path != "/":
            scope["path"] = path[:-1]
        if self._guard is not None and (refusal := self._guard.look(scope)) is not None:
            await self._refuse(refusal, scope, send)
            return
        hot = self._hot.get(scope.get("path", ""))
        if hot is not None and scope["method"] == "POST":
            await hot(scope, receive, send)
            return
        rid = request_id(scope)
        scope.setdefault("state", {})["request_id"] = rid
        headers = self._headers(scope, rid)
        if scope["method"] == "OPTIONS" and (allowed := self._options(scope)):
            await self._say_options(send, [headers[0], *allowed])
        elif hot is not None:
            refusal = in_words_of(scope["path"], wrong_method(scope["method"], scope["path"], "POST"))
            await respond_error(send, refusal, headers)
        else:
            await self._cold(_as_get(scope), receive, _adding(send, headers))

    async def system(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer on the system port: what is for those who run the frontend, and nothing of models."""
        scope["client"] = scope.get("client") or ("", 0)  # on this port nobody is this machine for want of an address
        rid = request_id(scope)
        scope.setdefault("state", {})["request_id"] = rid
        headers: Headers = [(b"x-request-id", rid.encode())]
        if scope["path"] in PROBES or is_system(scope["path"]):
            await self._cold(_as_get(scope), receive, _adding(send, headers))
        else:
            await respond_error(send, unknown_route(scope["method"], scope["path"]), headers)

    def _headers(self, scope: Scope, rid: str) -> Headers:
        cors = self._services.cors
        origin = None if cors is None else header(scope, b"origin")
        return [(b"x-request-id", rid.encode()), *([] if cors is None or origin is None else cors.headers(origin))]

    def _preflight(self, scope: Scope) -> Headers | None:
        """Return the headers that answer a browser which asks what it may send; None for any other request."""
        cors = self._services.cors
        return None if cors is None or scope["method"] != "OPTIONS" else cors.preflight(scope["headers"])

    def _options(self, scope: Scope) -> Headers:
        """Return the headers that answer OPTIONS; none where nothing is at its path."""
        if (allowed := self._preflight(scope)) is not None:
            return allowed
        methods = {"POST"} if scope["path"] in self._hot else _methods_at(self._cold, scope["path"])
        own = self._headers(scope, "")[1:]
        return [(b"allow", ", ".join(sorted({*methods, "OPTIONS"})).encode()), *own] if methods else []

    @staticmethod
    async def _say_options(send: Send, headers: Headers) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _refuse(self, refusal: ApiError, scope: Scope, send: Send) -> None:
        """Answer before the body is read; a browser asks for what it may send without its key."""
        headers = self._headers(scope, request_id(scope))
        if allowed := self._preflight(scope):
            await self._say_options(send, [headers[0], *allowed])
            return
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            self._services.metrics.rejected(refusal.code)
        await respond_error(send, in_words_of(scope["path"], refusal), headers)


def _as_get(scope: Scope) -> Scope:
    """Return HEAD as the GET that it asks about: the connection leaves out the body."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _adding(send: Send, headers: Headers) -> Callable[[dict[str, Any]], Awaitable[None]]:
    async def add(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *headers]
        await send(message)

    return add


def cold_app(services: Services) -> FastAPI:
    """Return the FastAPI app of everything that is not hot."""
    app = FastAPI(
        title="Dynamo Pipelines", version=own_version(), description="OpenAI-compatible LLM serving.",
        docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.include_router(system_router(services))
    app.include_router(models_router(services))
    app.include_router(token_counts_router(services))
    app.include_router(scores_router(services))
    app.include_router(stored_responses_router(services))
    app.include_router(busy_router(services))
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
        app.openapi_schema = describe(made, RESPONSES, MESSAGES, answers=ANSWERS)
    return app.openapi_schema


async def _answer(request: Request, error: Exception) -> Response:
    return _replied(request, to_api_error(error))


async def _http_error(request: Request, error: Exception) -> Response:
    """Return starlette's own errors: unknown routes and wrong methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _replied(request, unknown_route(request.method, request.url.path))
    if error.status_code == 405:
        return _replied(request, wrong_method(request.method, request.url.path, _allowed(request, error)))
    return _replied(request, bad_request(str(error.detail)))


def _replied(request: Request, error: ApiError) -> Response:
    return error_reply(in_words_of(request.scope["path"], error))


def _allowed(request: Request, error: HTTPException) -> str:
    """Return the methods of a path; Starlette names those of the first route that has it."""
    allowed = _methods_at(request.app, request.scope["path"])
    named = (error.headers or {}).get("Allow", "").split(",")
    return ", ".join(sorted(allowed or {method.strip() for method in named if method.strip()}))


def _methods_at(app: FastAPI, asked: str) -> set[str]:
    """Return the methods of a path; empty where there is nothing."""
    if asked in _UNLISTED:
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
