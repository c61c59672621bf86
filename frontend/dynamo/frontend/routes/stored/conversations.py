"""/v1/conversations: conversations that are kept, and their items, in OpenAI's form.

A response that names one goes on from its items, and adds what was asked and said. They live as long as stored
responses do, in the same bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from dynamo.frontend.openai import requests as openai
from dynamo.frontend.openai.body import decode
from dynamo.frontend.openai.responses_input import Item
from dynamo.frontend.openai.responses_structs import ConversationChange, ConversationItems, ConversationRequest
from dynamo.frontend.responses.cold_replies import json_reply
from dynamo.frontend.routes.intake import LARGE_BODY, Intake
from dynamo.frontend.routes.stored.item_ids import encoded_items
from dynamo.frontend.routes.stored.responses import PAGE, caller, counted, listed, page_of, store_of
from dynamo.frontend.services import Services
from dynamo.frontend.stored.conversations import Change, head_of, new_conversation, no_item
from dynamo.frontend.stored.directory import ResponseDirectory

KindT = TypeVar("KindT", bound=msgspec.Struct)
ResultT = TypeVar("ResultT")


def conversations_router(services: Services) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["conversations"])

    @router.post("/v1/conversations")
    async def create_conversation(request: Request) -> Response:
        """Make a conversation, with items and metadata where they are given."""
        directory, owner = store_of(services), caller(request)
        asked, items = await _read(services, request, ConversationRequest, _with_items(directory))
        made = new_conversation(directory.new_id("conv"), owner, asked.metadata or {})
        made.input, made.count = b"[%s]" % b",".join(items), len(items)
        directory.conversations.keep(made)
        return json_reply(head_of(made.response))

    @router.get("/v1/conversations/{conversation_id}")
    async def get_conversation(request: Request, conversation_id: str) -> Response:
        """Return a conversation, without its items."""
        stored = await store_of(services).conversation(caller(request), conversation_id)
        return json_reply(head_of(stored.response))

    @router.post("/v1/conversations/{conversation_id}")
    async def update_conversation(request: Request, conversation_id: str) -> Response:
        """Replace the metadata of a conversation."""
        directory, owner = store_of(services), caller(request)
        asked = await _read(services, request, ConversationChange, lambda asked: asked)
        change = Change(metadata=msgspec.json.encode(asked.metadata))
        return json_reply(head_of(await directory.change(owner, conversation_id, change)))

    @router.delete("/v1/conversations/{conversation_id}")
    async def delete_conversation(request: Request, conversation_id: str) -> Response:
        """Delete a conversation and its items; responses made in it stay."""
        directory, owner = store_of(services), caller(request)
        await directory.conversation(owner, conversation_id)
        await directory.delete(owner, conversation_id)
        return json_reply({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    _items_routes(router, services)
    return router


def _items_routes(router: APIRouter, services: Services) -> None:
    """Add the routes of items."""
    path = "/v1/conversations/{conversation_id}/items"

    @router.get(path, openapi_extra={"parameters": PAGE})
    async def list_items(request: Request, conversation_id: str) -> Response:
        """List the items of a conversation, the newest first."""
        limit, after, newest_first = page_of(request)
        return await _of_items(
            services, request, conversation_id, lambda items: listed(items, limit, after, newest_first)
        )

    @router.post(path)
    async def create_items(request: Request, conversation_id: str) -> Response:
        """Add items to a conversation; the answer has them with their ids."""
        directory, owner = store_of(services), caller(request)
        _, items = await _read(services, request, ConversationItems, _with_items(directory))
        await directory.add(owner, conversation_id, items)
        shown = [msgspec.json.decode(item) for item in items]
        return listed(shown, len(shown), None, newest_first=False)

    @router.get(path + "/{item_id}")
    async def get_item(request: Request, conversation_id: str, item_id: str) -> Response:
        """Return one item of a conversation."""

        def find(items: list[Item]) -> Response:
            item = next((item for item in items if item["id"] == item_id), None)
            if item is None:
                raise no_item(item_id)
            return json_reply(item)

        return await _of_items(services, request, conversation_id, find)

    @router.delete(path + "/{item_id}")
    async def delete_item(request: Request, conversation_id: str, item_id: str) -> Response:
        """Delete one item of a conversation, and return the conversation."""
        done = await store_of(services).change(caller(request), conversation_id, Change(without=item_id))
        return json_reply(head_of(done))


async def _of_items(
    services: Services, request: Request, name: str, answer: Callable[[list[Item]], Response]
) -> Response:
    """Answer with items of a conversation, which may be megabytes: they are read in a thread, in turn."""
    directory, owner = store_of(services), caller(request)
    async with counted(services, request, owner):
        stored = await directory.conversation(owner, name)
        async with services.threads.turn(owner, None) as turn:
            return await turn.run(lambda: answer(msgspec.json.decode(stored.input)))


def _with_items(directory: ResponseDirectory) -> Callable[[Any], tuple[Any, list[bytes]]]:
    def read(asked: ConversationRequest | ConversationItems) -> tuple[Any, list[bytes]]:
        return asked, encoded_items(asked.items or (), directory.new_id, check=True)

    return read


async def _read(services: Services, request: Request, kind: type[KindT], then: Callable[[KindT], ResultT]) -> ResultT:
    """Read a body by the bounds of requests for answers, a longer one in the threads."""
    scope: Any = request.scope
    receive: Any = request.receive
    intake = Intake(services, services.clock())

    def understand(raw: bytes) -> ResultT:
        asked: KindT = openai.convert(decode(raw or b"{}", kind), kind)
        return then(asked)

    try:
        raw = await intake.read(scope, receive)
        if len(raw) <= LARGE_BODY:
            return understand(raw)
        async with intake.turn() as turn:
            return await turn.run(lambda: understand(raw))
    finally:
        intake.leave()
