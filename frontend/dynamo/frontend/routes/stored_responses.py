"""GET and DELETE /v1/responses/{id}, its input_items and cancel: what `POST /v1/responses` has stored."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from dynamo.frontend.errors import ApiError, bad_request
from dynamo.frontend.http.requests import headers_of
from dynamo.frontend.http.responses import json_reply
from dynamo.frontend.openai.stored_responses import Item, StoredResponse, StoredResponses, owner_of
from dynamo.frontend.services import Services

MOST_LISTED: Final = 100
PAGE_BYTES: Final = 256 << 10
"""Bytes of a page of several items."""
_PAGE: Final = [
    {"name": name, "in": "query", "required": False, "schema": schema}
    for name, schema in (
        ("limit", {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": 20}),
        ("order", {"enum": ["asc", "desc"], "default": "desc"}),
        ("after", {"type": "string"}),
    )
]
_PREFIXES: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


def stored_responses_router(services: Services) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["responses"])

    @router.get("/v1/responses/{response_id}")
    async def get_response(request: Request, response_id: str) -> Response:
        """Return a stored response."""
        if request.query_params.get("stream", "false") not in ("false", "0", ""):
            text = "stream: a stored response is over; ask without."
            raise bad_request(text, "stream", "unsupported_parameter")
        stored = _found(services, request, response_id)
        return Response(stored.response, media_type="application/json")

    @router.delete("/v1/responses/{response_id}")
    async def delete_response(request: Request, response_id: str) -> Response:
        """Delete a stored response; later requests can't continue it."""
        _store(services).delete(_owner(request), response_id)
        return json_reply({"id": response_id, "object": "response", "deleted": True})

    @router.post("/v1/responses/{response_id}/cancel")
    async def cancel_response(request: Request, response_id: str) -> Response:
        """Answer 400: only background responses could be cancelled, and there are none."""
        _found(services, request, response_id)
        text = "Only responses in the background can be cancelled; end this one by closing its connection."
        raise bad_request(text, "response_id", "unsupported_value")

    @router.get("/v1/responses/{response_id}/input_items", openapi_extra={"parameters": _PAGE})
    async def list_input_items(request: Request, response_id: str) -> Response:
        """List the items that a stored response answered, the newest first."""
        stored = _found(services, request, response_id)
        limit, after, newest_first = _page(request)
        async with services.threads.turn(stored.owner, None) as turn:  # a conversation may be megabytes
            return await turn.run(lambda: _listed(_items(services, stored), limit, after, newest_first))

    return router


def _store(services: Services) -> StoredResponses:
    if services.stored is None:
        text = "Responses aren't stored here: it is switched off, or several processes share this port."
        raise ApiError(404, text, code="response_not_found", param="response_id")
    return services.stored


def _owner(request: Request) -> bytes:
    scope: Any = request.scope
    return owner_of(headers_of(scope))


def _found(services: Services, request: Request, response_id: str) -> StoredResponse:
    return _store(services).get(_owner(request), response_id)


def _page(request: Request) -> tuple[int, str | None, bool]:
    asked = request.query_params
    limit, order = asked.get("limit", "20"), asked.get("order", "desc")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= MOST_LISTED):
        raise bad_request(f"limit: expected 1 to {MOST_LISTED}.", "limit")
    if order not in ("asc", "desc"):
        raise bad_request("order: expected asc or desc.", "order")
    return int(limit), asked.get("after"), order == "desc"


def _listed(items: list[Item], limit: int, after: str | None, newest_first: bool) -> Response:
    """Return one page of items."""
    if newest_first:
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise bad_request("after: there is no item with that id.", "after")
    begin = 0 if after is None else ids.index(after) + 1
    shown = items[begin : begin + limit]
    while len(shown) > 1 and sum(len(msgspec.json.encode(item)) for item in shown) > PAGE_BYTES:
        shown = shown[: len(shown) // 2]
    ends = {"first_id": shown[0]["id"] if shown else None, "last_id": shown[-1]["id"] if shown else None}
    return json_reply({"object": "list", "data": shown, "has_more": begin + len(shown) < len(items), **ends})


def _items(services: Services, stored: StoredResponse) -> list[Item]:
    """Return what a response answered, with ids: the conversation before it, and its own input."""
    before: list[Item] = []
    if stored.previous is not None:
        most = services.settings.body_limit
        before = _store(services).conversation(stored.owner, stored.previous, most)
    own: list[Item] = msgspec.json.decode(stored.input)
    items: dict[str, Item] = {}
    for index, item in enumerate([*before, *own]):
        place = f"{stored.id}/{index}"
        named = _with_id(item, place)
        if named["id"] in items:  # clients may send an item twice; a page begins behind one of them
            named = _with_id({**item, "id": ""}, place)
        items[named["id"]] = named
    return [*items.values()]


def _with_id(item: Item, place: str) -> Item:
    if isinstance(item.get("id"), str) and item["id"]:
        return item
    prefix = _PREFIXES.get(str(item.get("type")), "item")
    return {**item, "id": f"{prefix}_{blake2b(place.encode(), digest_size=16).hexdigest()}"}
