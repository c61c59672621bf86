"""The ASGI application: hot routes bare, everything else FastAPI, errors always in OpenAI's form."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from dynamo.frontend.errors import ApiError, bad_request, internal, to_api_error, unknown_route, wrong_method
from dynamo.frontend.requests import ClientGone, Receive, Scope, request_id
from dynamo.frontend.routes.busy import busy_router
from dynamo.frontend.routes.embed import EmbedRoute
from dynamo.frontend.routes.generate import GenerateRoute
from dynamo.frontend.routes.models import models_router
from dynamo.frontend.routes.replies import error_reply
from dynamo.frontend.routes.system import own_version, system_router
from dynamo.frontend.schema import describe
from dynamo.frontend.services import Services
from dynamo.frontend.stream import Headers, Send, respond_error
from dynamo.runtime.errors import DynamoException

log = logging.getLogger(__name__)
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class Application:
    """Dispatches: hot routes see uvicorn's own `send`, so nothing stands between a token and the socket."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._hot: dict[str, Asgi] = {
            "/v1/chat/completions": GenerateRoute(services, chat=True),
            "/v1/completions": GenerateRoute(services, chat=False),
            "/v1/embeddings": EmbedRoute(services),
        }
        self._cold: Any = cold_app(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hot = self._hot.get(scope.get("path", ""))
        if hot is not None and scope["method"] == "POST":
            await hot(scope, receive, send)
            return
        rid = request_id(scope)
        scope.setdefault("state", {})["request_id"] = rid
        headers: Headers = [(b"x-request-id", rid.encode()), *self._services.cors.headers(scope["headers"])]
        if scope["method"] == "OPTIONS" and (allowed := self._services.cors.preflight(scope["headers"])):
            await send({"type": "http.response.start", "status": 204, "headers": [headers[0], *allowed]})
            await send({"type": "http.response.body", "body": b""})
        elif hot is not None:
            await respond_error(send, wrong_method(scope["method"], scope["path"], "POST"), headers)
        else:
            await self._cold(scope, receive, _adding(send, headers))


def _adding(send: Send, headers: Headers) -> Callable[[dict[str, Any]], Awaitable[None]]:
    async def add(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *headers]
        await send(message)

    return add


def cold_app(services: Services) -> FastAPI:
    """The FastAPI app of everything that is not hot."""
    app = FastAPI(
        title="Dynamo Pipelines", version=own_version(), description="OpenAI-compatible LLM serving.",
        redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.include_router(system_router(services))
    app.include_router(models_router(services))
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
        app.openapi_schema = describe(made)
    return app.openapi_schema


async def _answer(request: Request, error: Exception) -> Response:
    return error_reply(to_api_error(error))


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: unknown routes and wrong methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_reply(unknown_route(request.method, request.url.path))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return error_reply(wrong_method(request.method, request.url.path, allowed))
    return error_reply(bad_request(str(error.detail)))


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("[%s] the request failed", request.state.request_id, exc_info=error)
    return error_reply(internal())
