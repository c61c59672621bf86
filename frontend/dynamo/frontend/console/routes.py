"""The console's routes: its files, with a strict policy, and the stream of what it shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from dynamo.frontend.console.paths import EVENTS, POLICY, SCRIPTS, STYLE, is_served
from dynamo.frontend.console.workers import workers_of
from dynamo.frontend.http.connection import CONNECTION, Connection
from dynamo.frontend.http.guard import WORKERS
from dynamo.frontend.limits.concurrency_limits import caller_of
from dynamo.frontend.responses.cold_replies import json_reply
from dynamo.frontend.services import Services

HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


STREAM: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff", "x-accel-buffering": "no"}


def page() -> Response:
    """Return the page itself, which holds no data."""
    return Response(_asset("console.html"), headers=HEADERS | {"vary": "accept"}, media_type="text/html")


def console_router(services: Services) -> APIRouter:
    """Return the routes beside the page; none where the settings say so."""
    router = APIRouter(tags=["system"], include_in_schema=False)
    if not is_served(services.settings.access):
        return router
    for path in (STYLE, *SCRIPTS):
        router.add_api_route(path, _file(path), methods=["GET"])

    @router.get(WORKERS)
    async def get_workers() -> Response:
        """List the workers with state and load, as far as this process knows them."""
        return json_reply(
            workers_of(services.pool, services.connected(), services.restarts_of),
            headers=[(b"cache-control", b"no-store")],
        )

    @router.get(EVENTS)
    async def get_events(request: Request) -> Response:
        """Stream what the page shows, as long as somebody looks."""
        live = services.live
        assert live is not None
        scope: Any = request.scope
        connection = scope.get(CONNECTION)
        abort = connection.abort if isinstance(connection, Connection) else _nothing
        viewer = live.enter(caller_of(scope), abort)
        return StreamingResponse(live.events(viewer), headers=STREAM, media_type="text/event-stream")

    return router


def _nothing() -> None:
    """Cut nothing: there is no connection of its own."""


def _file(path: str) -> Callable[[], Awaitable[Response]]:
    """Return the route of one of the page's files."""
    name = path.rpartition("/")[2]
    content, kind = _asset(name), "text/css" if name.endswith(".css") else "text/javascript"

    async def get_file() -> Response:
        return Response(content, headers=HEADERS, media_type=kind)

    return get_file


def _asset(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()
