"""JSON replies of the cold routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi.responses import Response

from dynamo.frontend.errors import ApiError


def json_reply(body: Any, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()) -> Response:
    """Return a JSON response, without pydantic."""
    reply = Response(msgspec.json.encode(body), status, media_type="application/json")
    reply.raw_headers.extend(headers)
    return reply


def error_reply(error: ApiError) -> Response:
    """Return an error as OpenAI's body."""
    return Response(error.body(), error.status, headers=dict(error.headers), media_type="application/json")
