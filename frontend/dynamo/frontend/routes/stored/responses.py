"""GET and DELETE /v1/responses/{id}, its input_items and cancel: what `POST /v1/responses` has stored, wherever."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from hashlib import blake2b
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from dynamo.frontend.errors import ApiError, bad_request
from dynamo.frontend.http.requests import headers_of
from dynamo.frontend.openai.responses_input import in_parts
from dynamo.frontend.responses.cold_replies import json_reply
from dynamo.frontend.routes.stored.item_ids import PREFIXES
from dynamo.frontend.services import Services
from dynamo.frontend.stored.conversations import is_conversation
from dynamo.frontend.stored.directory import Item, ResponseDirectory, items_of
from dynamo.frontend.stored.kept_events import send_events
from dynamo.frontend.stored.store import StoredResponse, owner_of, unknown

MOST_LISTED: Final = 100
BYTES_OF_PAGE: Final = 256 << 10
"""Bytes of a page of several items."""
PAGE: Final = [
    {"name": name, "in": "query", "required": False, "schema": schema}
    for name, schema in (
        ("limit", {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": 20}),
        ("order", {"enum": ["asc", "desc"], "default": "desc"}),
        ("after", {"type": "string"}),
    )
]
_LATEST: Final = 999_999_999
"""Number of an event, at most."""
_STREAM: Final = [
    {"name": "stream", "in": "query", "required": False, "schema": {"type": "boolean", "default": False}},
    {
        "name": "starting_after",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "minimum": 0, "maximum": _LATEST},
    },
]


class EventsReply(Response):
    """Answer of a FastAPI route that is such events."""

    def __init__(self, events: AsyncIterator[bytes], seconds: float) -> None:
        super().__init__(media_type="text/event-stream")
        self._events, self._seconds = events, seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send_events(self._events, receive, send, [], self._seconds)


def stored_responses_router(services: Services) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["responses"])

    @router.get("/v1/responses/{response_id}", openapi_extra={"parameters": _STREAM})
    async def get_response(request: Request, response_id: str) -> Response:
        """Return a stored response, or one that runs in the background; its events with `stream`."""
        directory, owner, number = store_of(services), caller(request), _number(request)
        if number is None:
            stored = await directory.get(owner, _response(response_id))
            return Response(stored.response, media_type="application/json")
        first = await directory.news(owner, _response(response_id), number)
        events = directory.events(owner, response_id, number, first)
        return EventsReply(events, services.settings.write_timeout_secs)

    @router.delete("/v1/responses/{response_id}")
    async def delete_response(request: Request, response_id: str) -> Response:
        """Delete a stored response; later requests can't continue it."""
        await store_of(services).delete(caller(request), _response(response_id))
        return json_reply({"id": response_id, "object": "response", "deleted": True})

    @router.post("/v1/responses/{response_id}/cancel")
    async def cancel_response(request: Request, response_id: str) -> Response:
        """End a response that runs in the background; others end with their connection."""
        response = await store_of(services).cancel(caller(request), _response(response_id))
        return Response(response, media_type="application/json")

    @router.get("/v1/responses/{response_id}/input_items", openapi_extra={"parameters": PAGE})
    async def list_input_items(request: Request, response_id: str) -> Response:
        """List the items that a stored response answered, the newest first."""
        directory, owner = store_of(services), caller(request)
        limit, after, newest_first = page_of(request)
        async with counted(services, request, owner):  # a conversation may be megabytes
            stored = await directory.get(owner, _response(response_id))
            before = await _before(services, directory, stored)
            async with services.threads.turn(owner, None) as turn:
                return await turn.run(lambda: listed(_items(stored, before), limit, after, newest_first))

    return router


@contextlib.asynccontextmanager
async def counted(services: Services, request: Request, owner: bytes) -> AsyncIterator[None]:
    """Count a page of items as a request, and as the largest body."""
    scope: Any = request.scope
    slot = None if services.limiter is None else services.limiter.enter(scope)
    try:
        share = await services.bodies.take(owner, services.settings.body_limit)
        try:
            yield
        finally:
            services.bodies.give_back(share)
    finally:
        if slot is not None and services.limiter is not None:
            services.limiter.leave(slot)


def store_of(services: Services) -> ResponseDirectory:
    if services.stored is None:
        text = "Responses aren't stored here: that is switched off."
        raise ApiError(404, text, code="response_not_found", param="response_id")
    return services.stored


def _response(name: str) -> str:
    """Return an id; 404 where it is no response's."""
    if is_conversation(name):
        raise unknown(name)
    return name


def caller(request: Request) -> bytes:
    scope: Any = request.scope
    return owner_of(headers_of(scope))


async def _before(services: Services, directory: ResponseDirectory, stored: StoredResponse) -> list[StoredResponse]:
    """Return the conversation before a response."""
    if stored.previous is None:
        return []
    return await directory.chain(stored.owner, stored.previous, services.settings.body_limit)


def _number(request: Request) -> int | None:
    """Return the number of the first event that is asked for; None: the response itself is."""
    asked = request.query_params
    if asked.get("stream", "false").lower() in ("false", "0", ""):
        return None
    after = asked.get("starting_after")
    if after is None:
        return 0
    if not (after.isascii() and after.isdecimal() and len(after) <= len(str(_LATEST))):
        raise bad_request("starting_after: expected the sequence_number of an event.", "starting_after")
    return int(after) + 1


def page_of(request: Request) -> tuple[int, str | None, bool]:
    asked = request.query_params
    limit, order = asked.get("limit", "20"), asked.get("order", "desc")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= MOST_LISTED):
        raise bad_request(f"limit: expected 1 to {MOST_LISTED}.", "limit")
    if order not in ("asc", "desc"):
        raise bad_request("order: expected asc or desc.", "order")
    return int(limit), asked.get("after") or None, order == "desc"


def listed(items: list[Item], limit: int, after: str | None, newest_first: bool) -> Response:
    """Return one page of items."""
    if newest_first:
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        text = f"after: there is no item {after[:100]!r} here; give the last_id of the page before."
        raise ApiError(404, text, code="item_not_found", param="after")
    begin = 0 if after is None else ids.index(after) + 1
    shown = items[begin : begin + limit]
    while len(shown) > 1 and sum(len(msgspec.json.encode(item)) for item in shown) > BYTES_OF_PAGE:
        shown = shown[: len(shown) // 2]
    ends = {"first_id": shown[0]["id"] if shown else None, "last_id": shown[-1]["id"] if shown else None}
    return json_reply({"object": "list", "data": shown, "has_more": begin + len(shown) < len(items), **ends})


def _items(stored: StoredResponse, before: list[StoredResponse]) -> list[Item]:
    """Return what a response answered, with ids: the conversation before it, and its own input.

    A response is stored as it was asked, which is shorter, so that its bytes count as those of the request did.
    """
    own: list[Item] = msgspec.json.decode(stored.input)
    items: dict[str, Item] = {}
    for index, item in enumerate([*items_of(before), *own]):
        place = f"{stored.id}/{index}"
        named = with_id(in_parts(item), place)
        if named["id"] in items:  # clients may send an item twice; a page begins behind one of them
            named = with_id({**item, "id": ""}, place)
        items[named["id"]] = named
    return [*items.values()]


def with_id(item: Item, place: str) -> Item:
    if isinstance(item.get("id"), str) and item["id"]:
        return item
    prefix = PREFIXES.get(str(item.get("type")), "item")
    return {**item, "id": f"{prefix}_{blake2b(place.encode(), digest_size=16).hexdigest()}"}
