"""`GET /v1/models` in the form of Anthropic's API. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

VERSION: Final = "anthropic-version"
"""The header that its clients send with every request."""


def described(name: str, created: int) -> dict[str, Any]:
    """Return one model, by its name and the second of its creation."""
    at = datetime.fromtimestamp(created, UTC).isoformat()
    return {"type": "model", "id": name, "display_name": name, "created_at": at}


def listed(models: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Return the page of all models, which are given by name and the second of their creation."""
    data = [described(name, created) for name, created in models]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"data": data, "has_more": False, **ends}
