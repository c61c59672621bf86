"""The ASGI application: hot routes bare, everything else FastAPI, errors always in OpenAI's form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from dynamo.frontend.anthropic.errors import id_headers, in_words_of
from dynamo.frontend.console.paths import is_page, is_served
from dynamo.frontend.errors import ApiError, unknown_route, wrong_method
from dynamo.frontend.http.guard import ON_SYSTEM_PORT, PROBES, Guard, is_system
from dynamo.frontend.http.requests import Receive, Scope, header, request_id
from dynamo.frontend.responses.stream import Headers, Send, respond_error
from dynamo.frontend.routes.embeddings import EmbedRoute
from dynamo.frontend.routes.generate import GenerateRoute
from dynamo.frontend.routes.messages import MessagesRoute
from dynamo.frontend.routes.responses import ResponsesRoute
from dynamo.frontend.services import Services

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class Application:
    """Dispatches: hot routes see uvicorn's own `send`, so nothing stands between a token and the socket.

    A server brings the app of the other routes; loading it takes a third of a second, which no request should wait for.
    """

    def __init__(self, services: Services, cold: Any = None) -> None:
        self._services = services
        self._hot: dict[str, Asgi] = {
            "/v1/chat/completions": GenerateRoute(services, chat=True),
            "/v1/completions": GenerateRoute(services, chat=False),
            "/v1/embeddings": EmbedRoute(services),
            "/v1/messages": MessagesRoute(services),
            "/v1/responses": ResponsesRoute(services),
        }
        self._made = cold
        public, keys = services.settings.access.public_system_routes, services.keys
        pages = {"is_page": is_page} if is_served(services.settings.access) else {}
        self._guard = None if public and keys is None else Guard(keys, public, **pages)

    @property
    def _cold(self) -> Any:
        """Return the FastAPI app; load it now where nobody brought it."""
        if self._made is None:
            from dynamo.frontend.routes.cold_app import cold_app

            self._made = cold_app(self._services)
        return self._made

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
        ids = id_headers(scope)
        headers = [*ids, *self._cross_origin(scope)]
        if scope["method"] == "OPTIONS" and (allowed := self._options(scope)):
            await self._say_options(send, [*ids, *allowed])
        elif hot is not None:
            refusal = in_words_of(scope, wrong_method(scope["method"], scope["path"], "POST"))
            await respond_error(send, refusal, headers)
        else:
            await self._cold(_as_get(scope), receive, _adding(send, headers))

    async def system(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer on the system port: what is for those who run the frontend, and nothing of models."""
        scope["client"] = scope.get("client") or ("", 0)  # on this port nobody is this machine for want of an address
        rid = request_id(scope)
        scope.setdefault("state", {}).update({"request_id": rid, ON_SYSTEM_PORT: True})
        headers: Headers = [(b"x-request-id", rid.encode())]
        if scope["path"] in PROBES or is_system(scope["path"]):
            await self._cold(_as_get(scope), receive, _adding(send, headers))
        else:
            await respond_error(send, unknown_route(scope["method"], scope["path"]), headers)

    def _cross_origin(self, scope: Scope) -> Headers:
        cors = self._services.cors
        origin = None if cors is None else header(scope, b"origin")
        return [] if cors is None or origin is None else cors.headers(origin)

    def _preflight(self, scope: Scope) -> Headers | None:
        """Return the headers that answer a browser which asks what it may send; None for any other request."""
        cors = self._services.cors
        return None if cors is None or scope["method"] != "OPTIONS" else cors.preflight(scope["headers"])

    def _options(self, scope: Scope) -> Headers:
        """Return the headers that answer OPTIONS; none where nothing is at its path."""
        if (allowed := self._preflight(scope)) is not None:
            return allowed
        methods = {"POST"} if scope["path"] in self._hot else self._cold_methods(scope["path"])
        allow = ", ".join(sorted({*methods, "OPTIONS"})).encode()
        return [(b"allow", allow), *self._cross_origin(scope)] if methods else []

    def _cold_methods(self, path: str) -> set[str]:
        from dynamo.frontend.routes.cold_app import methods_at

        return methods_at(self._cold, path)

    @staticmethod
    async def _say_options(send: Send, headers: Headers) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _refuse(self, refusal: ApiError, scope: Scope, send: Send) -> None:
        """Answer before the body is read; a browser asks for what it may send without its key."""
        ids = id_headers(scope)
        if allowed := self._preflight(scope):
            await self._say_options(send, [*ids, *allowed])
            return
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            self._services.metrics.rejected(refusal.code)
        await respond_error(send, in_words_of(scope, refusal), [*ids, *self._cross_origin(scope)])


def _as_get(scope: Scope) -> Scope:
    """Return HEAD as the GET that it asks about: the connection leaves out the body."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _adding(send: Send, headers: Headers) -> Callable[[dict[str, Any]], Awaitable[None]]:
    async def add(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *headers]
        await send(message)

    return add
