"""Conversations that are kept: one entry of the store each, which grows by what is said in it.

An entry is a `StoredResponse` without an answer of its own, so that a request goes on from it as it does from a
response, with the same bounds of age, number and bytes. A change is a whole new entry in the place of the old one:
whoever reads the old one meanwhile has that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request, overloaded, unavailable
from dynamo.frontend.openai.request_structs import MAX_MESSAGES
from dynamo.frontend.stored.store import CONVERSATIONS, StoredResponse, StoredResponses

PREFIX: Final = "conv"
_TRIES: Final = 8
_MOST: Final = 4 << 20
"""Bytes of a conversation: whoever goes on with it reads all of it."""


class _Named(msgspec.Struct):
    id: str = ""


class Change(msgspec.Struct, array_like=True):
    """Change of a conversation."""

    items: bytes = b""
    """JSON list of items that are added."""
    count: int = 0
    """How many they are."""
    metadata: bytes = b""
    """JSON object that replaces the one before."""
    without: str = ""
    """Id of an item that goes."""
    hides: bool = False
    """It is deleted: only responses that were made in it go on from it."""


def is_conversation(name: str) -> bool:
    """Tell whether an id is one of a conversation."""
    return name.startswith(CONVERSATIONS)


def before(conversation: StoredResponse, response: StoredResponse) -> StoredResponse | None:
    """Return a conversation as it was before a response that was made in it; None where that isn't in it any more.

    Takes long: it reads all of it.
    """
    items = msgspec.json.decode(conversation.input, type=list[msgspec.Raw])
    ids = [msgspec.json.decode(item, type=_Named).id for item in items]
    if not response.items or response.items[0] not in ids:
        return None
    asked = response.count - len(response.items)
    kept = items[: max(0, ids.index(response.items[0]) - asked)]
    return msgspec.structs.replace(conversation, input=msgspec.json.encode(kept), count=len(kept))


def new_conversation(name: str, owner: bytes, metadata: dict[str, Any]) -> StoredResponse:
    """Return a conversation without items."""
    head = {"id": name, "object": "conversation", "created_at": int(time.time()), "metadata": metadata, "output": []}
    return StoredResponse(name, owner, msgspec.json.encode(head), b"[]", None)


def head_of(conversation: bytes) -> dict[str, Any]:
    """Return the object that clients see of a conversation."""
    head: dict[str, Any] = msgspec.json.decode(conversation)
    del head["output"]
    return head


def missing(name: str) -> ApiError:
    """Return 404: this owner has no such conversation."""
    text = f"There is no conversation {name[:100]!r} here: it was never made, was deleted, or has expired."
    return ApiError(404, text, code="conversation_not_found", param="conversation")


class Conversations:
    """The conversations of this process."""

    def __init__(self, store: StoredResponses) -> None:
        self._store = store
        self._turn = asyncio.Semaphore(1)

    def keep(self, conversation: StoredResponse) -> None:
        """Keep a new one; raises where there is no room."""
        if conversation.part > _MOST:
            raise _too_long()
        self._store.keep(conversation)
        self.get(conversation.owner, conversation.id)

    def get(self, owner: bytes, name: str, *, hidden: bool = False) -> StoredResponse:
        """Return one; 404 where this owner has none of that id. `hidden`: also one that was deleted."""
        try:
            conversation = self._store.get(owner, name)
        except ApiError:
            raise missing(name) from None
        if conversation.hidden and not hidden:
            raise missing(name)
        return conversation

    async def change(self, owner: bytes, name: str, change: Change) -> bytes:
        """Change one, and return its object; what takes long is done in a thread."""
        if not change.without:
            return self.change_now(owner, name, change)
        async with self._turn:
            return await asyncio.to_thread(self.change_now, owner, name, change)

    def change_now(self, owner: bytes, name: str, change: Change) -> bytes:
        """Change one, and return its object."""
        for _ in range(_TRIES):
            old = self.get(owner, name)
            new = _changed(old, change)
            if new.part > _MOST or new.count > MAX_MESSAGES:
                raise _too_long()
            if self._store.exchange(old, new):
                return new.response
        raise unavailable("Others change this conversation all the time; try again in a moment.", "stored_elsewhere")


def _changed(old: StoredResponse, change: Change) -> StoredResponse:
    if change.hides:
        return msgspec.structs.replace(old, hidden=True)
    response, items, count = old.response, old.input, old.count
    if change.metadata:
        head = msgspec.json.decode(response) | {"metadata": msgspec.Raw(change.metadata)}
        response = msgspec.json.encode(head)
    if change.count:
        items = change.items if items == b"[]" else b"%s,%s" % (items[:-1], change.items[1:])
        count += change.count
    if change.without:
        kept = [item for item in msgspec.json.decode(items) if item["id"] != change.without]
        if len(kept) == count:
            raise no_item(change.without)
        items, count = msgspec.json.encode(kept), len(kept)
    return StoredResponse(old.id, old.owner, response, items, None, count=count)


def no_item(name: str) -> ApiError:
    """Return 404: the conversation has no such item."""
    return ApiError(404, f"There is no item {name[:100]!r} here.", code="item_not_found", param="item_id")


def _too_long() -> ApiError:
    text = f"conversation: it would have more than {MAX_MESSAGES} items or {_MOST >> 20} MB; begin a new one."
    return bad_request(text, "conversation", "conversation_too_long")


def together(items: Sequence[bytes]) -> Change:
    """Return what adds these items."""
    return Change(b"[%s]" % b",".join(items), len(items))


def pieces(items: Sequence[bytes], most: int) -> list[Change]:
    """Return changes that add all items, none larger than `most` bytes."""
    if any(len(item) > most for item in items):
        text = f"Another frontend has this conversation, and takes items of {most >> 10} KB at most; send smaller ones."
        raise bad_request(text, "items", "too_many_values")
    parts: list[list[bytes]] = [[]]
    size = 0
    for item in items:
        if size + len(item) > most:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += len(item) + 1
    return [together(part) for part in parts if part]


def no_room() -> ApiError:
    """Return the 503 of a conversation that can't be told what is said in it."""
    return overloaded("there is no room for what this conversation was asked; try again in a moment.", "stored_full")
