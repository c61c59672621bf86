"""GET /requests/ID: where the time of a request went, or where it is now. GET /requests: the oldest under way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dynamo.frontend.errors import ApiError
from dynamo.frontend.http.guard import ON_SYSTEM_PORT, REQUESTS, UNDER_WAY, is_private
from dynamo.frontend.request_log.log import RequestRecord
from dynamo.frontend.request_log.timeline import RunningRequests, explain
from dynamo.frontend.responses.cold_replies import json_reply
from dynamo.frontend.services import Services

_NOT_FOUND: Final = (
    "This frontend knows no such request: it ended more than ten minutes ago, was asked of another frontend, or came "
    "with another API key."
)
_NOT_KEPT: Final = [(b"cache-control", b"no-store")]
_SIBLINGS: Final = " Ask --system-port, which asks all processes of --workers."


def explain_router(services: Services) -> APIRouter:
    """Return the route; none where no request is kept."""
    router = APIRouter(tags=["system"], include_in_schema=False)
    requests = services.request_log
    if requests is None:
        return router

    def seen_by(request: Request) -> Callable[[RequestRecord], bool]:
        """Return what tells whose requests are shown: with API keys, those of the same key."""
        sees_all = services.keys is None or is_private(request.scope) or getattr(request.state, ON_SYSTEM_PORT, False)
        key = request.headers.get("authorization", "").encode()
        return lambda record: sees_all or record.caller == key

    @router.get(UNDER_WAY)
    async def get_running(request: Request) -> Response:
        """Return the oldest requests under way."""
        now, unix = services.clock(), time.time()
        running = [explain(record, now - record.began, unix) for record in requests.running(seen_by(request))]
        return json_reply(RunningRequests(running), headers=_NOT_KEPT)

    @router.get(REQUESTS + "{request_id:path}")
    async def get_request(request: Request, request_id: str) -> Response:
        """Return the stages of a request; with API keys, to the key that it came with, or on the system port."""
        now = services.clock()
        record = requests.find(request_id, now)
        if record is None or not seen_by(request)(record):
            text = _NOT_FOUND + (_SIBLINGS if services.settings.has_siblings else "")
            raise ApiError(404, text, code="request_not_found")
        return json_reply(explain(record, now - record.began, time.time()), headers=_NOT_KEPT)

    return router
