"""What a request of the Responses API names of earlier ones: the conversation that it goes on, items by reference.

Looked up on the event loop, since another process may have it, and put in place in the threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request, shown, unavailable
from dynamo.frontend.http.requests import Scope
from dynamo.frontend.limits.concurrency_limits import caller_of
from dynamo.frontend.openai.body import decode
from dynamo.frontend.openai.responses_requests import conversation_of
from dynamo.frontend.openai.responses_structs import ResponsesRequest
from dynamo.frontend.routes.event_route import LARGE_BODY
from dynamo.frontend.routes.intake import Intake
from dynamo.frontend.services import Services
from dynamo.frontend.stored.conversations import PREFIX, is_conversation
from dynamo.frontend.stored.directory import Item, ResponseDirectory, items_of
from dynamo.frontend.stored.store import StoredResponse

LOOK_UP_SECONDS: Final = 15.0
_HIDDEN: Final = re.compile(rb"\\u00(?:5[fF]|6[0-9a-fA-F]|7[0-9aA])")
"""A small letter, or the sign between two words, written as an escape: no encoder does that by itself."""


class Earlier(msgspec.Struct):
    """What was looked up."""

    chain: list[StoredResponse] = []
    """Of the conversation, the last first."""
    said: list[StoredResponse] = []
    """Responses whose items are referred to."""
    problem: ApiError | None = None
    """Why the conversation can't be gone on."""

    def conversation(self) -> list[Item]:
        """Return the items of the conversation."""
        return items_of(self.chain)

    def refer(self, body: dict[str, Any], most: int) -> None:
        """Put stored items in the place of references to them; 404 where one isn't there."""
        if not (places := _places(body)):
            return
        items: list[Any] = body["input"]
        ids = {name for name in places.values() if isinstance(name, str)}
        said = (item for stored in self.said for item in msgspec.json.decode(stored.response)["output"])
        known = {item["id"]: item for item in said if item["id"] in ids}
        sizes = {name: len(msgspec.json.encode(item)) for name, item in known.items()}
        for index, name in places.items():
            if not isinstance(name, str) or name not in known:
                text = f"input[{index}]: item {shown(name)} isn't stored here; send the item itself."
                raise ApiError(404, text, code="item_not_found", param=f"input[{index}]")
            items[index], most = known[name], most - sizes[name]
        if most < 0:  # one may be named a thousand times
            text = "input: the items that it refers to are too much for one request."
            raise bad_request(text, "input", "too_many_values")


def names_stored(raw: bytes) -> bool:
    """Tell whether what is stored may be part of a request, however short the rest of it is: escapes hide words."""
    return (
        b"previous_response_id" in raw
        or b"item_reference" in raw
        or b"conversation" in raw
        or _HIDDEN.search(raw) is not None
    )


@contextlib.asynccontextmanager
async def looked_up(
    services: Services, intake: Intake, scope: Scope, owner: bytes, raw: bytes
) -> AsyncIterator[Earlier]:
    """Look up what a body names. What comes from another process counts as this caller's body for that long."""
    if not names_stored(raw):
        yield Earlier()
        return
    previous, references = await _names(intake, raw)
    directory, most, share = services.stored, services.settings.body_limit, None
    if directory is None:
        yield Earlier(problem=_not_stored(previous) if previous is not None else None)
        return
    if not all(directory.is_here(name) for name in (*references, *([previous] if previous else ()))):
        share = await services.bodies.take(caller_of(scope), most)
    try:
        earlier = await _look_up(directory, owner, previous, references, most)
        if share is not None:
            services.bodies.shrink(share, sum(stored.part for stored in (*earlier.chain, *earlier.said)))
        yield earlier
    finally:
        if share is not None:
            services.bodies.give_back(share)


async def _look_up(
    directory: ResponseDirectory, owner: bytes, previous: str | None, references: set[str], most: int
) -> Earlier:
    """Look up. What is wrong with the conversation is said once the rest of the request is known to be right."""
    earlier = Earlier()
    try:
        async with asyncio.timeout(LOOK_UP_SECONDS):
            if references:
                earlier.said = await directory.said(owner, references, most)
            if previous is not None:
                earlier.chain = await _chain(directory, earlier, owner, previous, most)
    except TimeoutError:
        text = "Other frontends take too long to say what they have stored; try again in a moment."
        raise unavailable(text, "stored_elsewhere") from None
    return earlier


async def _chain(
    directory: ResponseDirectory, earlier: Earlier, owner: bytes, previous: str, most: int
) -> list[StoredResponse]:
    try:
        if is_conversation(previous):
            return [await directory.conversation(owner, previous)]
        return await directory.chain(owner, previous, most)
    except ApiError as error:
        earlier.problem = error
        return []


async def _names(intake: Intake, raw: bytes) -> tuple[str | None, set[str]]:
    """Return the response and the items that a body names; what is wrong with it is told when it is read."""

    def read() -> tuple[str | None, set[str]]:
        body = decode(raw, ResponsesRequest)
        previous = conversation_of(body.get("conversation"))
        if previous is not None:
            previous = previous if is_conversation(previous) else f"{PREFIX}_{previous}"
        else:
            previous = body.get("previous_response_id")
        references = {name for name in _places(body).values() if isinstance(name, str)}
        return previous if isinstance(previous, str) else None, references

    if len(raw) <= LARGE_BODY:
        return read()
    async with intake.turn() as turn:
        return await turn.run(read)


def _places(body: dict[str, Any]) -> dict[int, Any]:
    """Return the references of an input, by their places."""
    items = body.get("input")
    if not isinstance(items, list):
        return {}
    return {index: item.get("id") for index, item in enumerate(items)
            if isinstance(item, dict) and item.get("type") == "item_reference"}  # fmt: skip


def _not_stored(name: str) -> ApiError:
    field = "conversation" if is_conversation(name) else "previous_response_id"
    text = f"{field}: nothing is stored here, since that is switched off; send the conversation in input."
    return bad_request(text, field, "unsupported_parameter")
