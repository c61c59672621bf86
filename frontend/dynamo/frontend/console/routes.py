"""The console's routes: its files, with a strict policy, and what it asks every two seconds."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from dynamo.frontend.console.paths import SCRIPT, STYLE, WORKERS, is_served
from dynamo.frontend.console.workers import workers_of
from dynamo.frontend.responses.cold_replies import json_reply
from dynamo.frontend.services import Services

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page() -> Response:
    """Return the page itself, which holds no data."""
    return Response(_asset("console.html"), headers=HEADERS | {"vary": "accept"}, media_type="text/html")


def console_router(services: Services) -> APIRouter:
    """Return the routes beside the page; none where the settings say so."""
    router = APIRouter(tags=["system"], include_in_schema=False)
    if not is_served(services.settings.access):
        return router
    style, script = _asset("console.css"), _asset("console.js")

    @router.get(STYLE)
    async def get_style() -> Response:
        """Return the style of the page."""
        return Response(style, headers=HEADERS, media_type="text/css")

    @router.get(SCRIPT)
    async def get_script() -> Response:
        """Return the script of the page."""
        return Response(script, headers=HEADERS, media_type="text/javascript")

    @router.get(WORKERS)
    async def get_workers() -> Response:
        """List the workers with state and load, as far as this process knows them."""
        return json_reply(workers_of(services.pool, services.connected()), headers=[(b"cache-control", b"no-store")])

    return router


def _asset(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()
