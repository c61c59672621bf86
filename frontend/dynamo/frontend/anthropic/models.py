"""`GET /v1/models` in the form of Anthropic's API. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from dynamo.frontend.errors import bad_request, shown

VERSION: Final = "anthropic-version"
"""The header that its clients send with every request."""
MOST_LISTED: Final = 1000
_AFTER: Final = "after_id"
_BEFORE: Final = "before_id"


class Model(NamedTuple):
    """What is said of a model."""

    name: str
    created: int
    """The second of its creation."""
    context_length: int | None


def described(model: Model) -> dict[str, Any]:
    """Return one model."""
    at = datetime.fromtimestamp(model.created, UTC).isoformat()
    most = {} if model.context_length is None else {"max_input_tokens": model.context_length}
    return {"type": "model", "id": model.name, "display_name": model.name, "created_at": at, **most}


def listed(models: Sequence[Model], asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the page of models that a query asks for: as many as there may be where it doesn't say how many."""
    limit = _limit(asked.get("limit"))
    begin, end = _place(models, asked, _AFTER), _place(models, asked, _BEFORE)
    if begin is not None and end is not None:
        raise bad_request(f"{_BEFORE}: give either {_AFTER} or {_BEFORE}.", _BEFORE)
    if end is not None:
        page, has_more = models[max(0, end - limit) : end], end > limit
    else:
        rest = models if begin is None else models[begin + 1 :]
        page, has_more = rest[:limit], len(rest) > limit
    data = [described(model) for model in page]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"data": data, "has_more": has_more, **ends}


def _limit(given: str | None) -> int:
    if given is None:
        return MOST_LISTED
    if not (given.isascii() and given.isdecimal() and len(given) <= 4 and 1 <= int(given) <= MOST_LISTED):
        raise bad_request(f"limit: expected 1 to {MOST_LISTED}.", "limit")
    return int(given)


def _place(models: Sequence[Model], asked: Mapping[str, str], field: str) -> int | None:
    """Return the place of the model that a page begins or ends beside; None where none is named."""
    if not (name := asked.get(field)):
        return None
    names = [model.name for model in models]
    if name not in names:
        raise bad_request(f"{field}: there is no model {shown(name)} here; give one of the page before.", field)
    return names.index(name)
