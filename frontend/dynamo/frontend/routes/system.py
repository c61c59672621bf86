"""GET /health, /live, /metrics and /version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dynamo.frontend.console.paths import is_served, wants_html
from dynamo.frontend.console.routes import page as page_of_console
from dynamo.frontend.health import health
from dynamo.frontend.http.guard import DETAILS, ON_SYSTEM_PORT, is_private
from dynamo.frontend.metrics import CONTENT_TYPE
from dynamo.frontend.responses.cold_replies import json_reply
from dynamo.frontend.routes.docs_page import HEADERS, page
from dynamo.frontend.services import Services

NAME: Final = "Dynamo Pipelines"
LINKS: Final = {"models": "/v1/models", "health": "/health", "chat": "/v1/chat/completions"}
SYSTEM_LINKS: Final = {"docs": "/docs", "openapi": "/openapi.json", "metrics": "/metrics", "version": "/version"}


def system_router(services: Services) -> APIRouter:
    """Return the routes that operators and probes ask."""
    router = APIRouter(tags=["system"])
    _add_pings(router, services)

    @router.get("/health")
    async def get_health(request: Request) -> Response:
        """Report whether this frontend is ready, and each model's instances."""
        status, body = health(services.pool, services.lifecycle.draining, services.connected())
        if not getattr(request.state, DETAILS, True):
            body = {"status": body["status"], "message": "details are for those who run this server"}
        return json_reply(body, status)

    @router.get("/")
    async def get_root(request: Request) -> Response:
        """Say what this is, and where to go on; browsers get the console."""
        return _root(services, request)

    @router.get("/live")
    async def get_live() -> Response:
        """Report that the process runs."""
        return json_reply({"status": "live", "message": "Service is live"})

    @router.get("/metrics")
    async def get_metrics(request: Request) -> Response:
        """Return the metrics in Prometheus' text format; what tenants used, on the system port only."""
        text = services.metrics.text()
        if is_private(request.scope) or getattr(request.state, ON_SYSTEM_PORT, False):
            text += services.tenants.text()
        return Response(text, headers={"content-type": CONTENT_TYPE})

    @router.get("/docs", include_in_schema=False)
    async def get_docs(request: Request) -> Response:
        """Show the routes to people."""
        return Response(page(request.app.openapi()), headers=HEADERS, media_type="text/html")

    @router.get("/version")
    async def get_version() -> Response:
        """Return the installed version."""
        return json_reply({"version": own_version()})

    return router


def _add_pings(router: APIRouter, services: Services) -> None:
    """Add what vLLM and SageMaker ask: whether this frontend is ready, said by the status alone."""

    def answer() -> Response:
        status, _ = health(services.pool, services.lifecycle.draining, services.connected())
        return json_reply({}, status)

    @router.get("/ping")
    async def get_ping() -> Response:
        """Say whether this frontend is ready, by the status alone, as vLLM and SageMaker do."""
        return answer()

    @router.post("/ping")
    async def post_ping() -> Response:
        """Say the same to those who post."""
        return answer()


def _root(services: Services, request: Request) -> Response:
    access = services.settings.access
    has_console = is_served(access)
    if has_console and wants_html(", ".join(request.headers.getlist("accept"))):
        return page_of_console()
    headers = [(b"vary", b"accept")] if has_console else []
    if not access.public_system_routes:
        return json_reply({"name": NAME, "links": LINKS}, headers=headers)
    return json_reply({"name": NAME, "version": own_version(), "links": LINKS | SYSTEM_LINKS}, headers=headers)


def own_version() -> str:
    """Return the installed version; `0+unknown` in a bare checkout."""
    try:
        return version("dynamo-pipelines")
    except PackageNotFoundError:
        return "0+unknown"
