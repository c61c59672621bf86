"""What is stored, wherever it is: in this process, or in another frontend of the namespace.

An id says which process made it, so that process is asked and no other. What a process has ends with it: then the
answer is the same as for what was never stored, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from secrets import token_hex
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request
from dynamo.frontend.openai.request_structs import MAX_MESSAGES
from dynamo.frontend.stored.background import Background, not_in_background
from dynamo.frontend.stored.conversations import (
    Change,
    Conversations,
    before,
    is_conversation,
    missing,
    pieces,
    together,
)
from dynamo.frontend.stored.event_log import EventLog
from dynamo.frontend.stored.peers import Found, GoneProcess, Peers, Question, unwired, wired
from dynamo.frontend.stored.store import StoredResponse, StoredResponses, unknown
from dynamo.runtime.process.tasks import TaskOwner

log = logging.getLogger(__name__)
Item = dict[str, Any]
NODE: Final = 14
"""Hexadecimal digits of a process, in each id that it makes."""
WAIT: Final = 1.0
"""Seconds that a process waits for news before it says that there are none."""
MOST_WAITING: Final = 32
"""Others that it lets wait at once; more are told at once, and ask again after `PAUSE`."""
PAUSE: Final = 0.1
MOST_PROCESSES: Final = 32
"""That one request's references may lead to: ids can be made up."""


class ResponseDirectory:
    """Directory of all responses that a request may name."""

    def __init__(self, store: StoredResponses, background: Background, peers: Peers) -> None:
        self.store, self.background, self._peers = store, background, peers
        self.conversations = Conversations(store)
        self._tasks = TaskOwner(log)
        self._waiting = 0

    async def open(self) -> None:
        """Answer other processes from now on."""
        await self._peers.serve(self.answer)

    def new_id(self, prefix: str) -> str:
        """Return an id that leads here, and that nobody can guess from others."""
        return f"{prefix}_{self._peers.node:014x}{token_hex(16)}"

    def is_here(self, name: str) -> bool:
        """Tell whether what bears this id is in this process, if it is anywhere."""
        return self._node(name) is None

    def _node(self, name: str) -> int | None:
        """Return the process that made an id; None: this one, or nobody."""
        digits = name.partition("_")[2]
        if len(digits) != NODE + 32 or not digits.isascii() or not digits.isalnum():
            return None
        try:
            node = int(digits[:NODE], 16)
        except ValueError:
            return None
        return None if node == self._peers.node else node

    async def chain(self, owner: bytes, response_id: str, most: int) -> list[StoredResponse]:
        """Return a response and all before it, the last first; a 400 where one isn't there, or they are too much."""
        chain: list[StoredResponse] = []
        at: str | None = response_id
        items, left = 0, most
        while at is not None:
            part = await (self._before(owner, at, chain, left) if is_conversation(at) else self._part(owner, at, left))
            if not part or part[0].id != at:
                raise _not_found(response_id, at)
            chain += part
            items += sum(stored.count for stored in part)
            left -= sum(stored.part for stored in part)
            at = part[-1].previous
            if items > MAX_MESSAGES or left < 0:
                bound = f"{MAX_MESSAGES} items" if left >= 0 else f"{most} bytes"
                text = f"previous_response_id: the conversation has more than {bound}; send the part that matters."
                raise bad_request(text, "previous_response_id", "conversation_too_long")
        return chain

    async def _before(
        self, owner: bytes, name: str, chain: list[StoredResponse], most: int
    ) -> list[StoredResponse]:  # fmt: skip
        """Return the conversation that the last of a chain was made in, as it was then; nothing where it is gone."""
        if not chain or not (conversations := await self._part(owner, name, most)):
            return []
        earlier = await asyncio.to_thread(before, conversations[0], chain[-1])
        return [] if earlier is None else [earlier]

    async def _part(self, owner: bytes, response_id: str, most: int) -> list[StoredResponse]:
        """Return a conversation, or a response with those before it, as far as one process has them."""
        node = self._node(response_id)
        if node is None and is_conversation(response_id):
            with contextlib.suppress(ApiError):
                return [self.conversations.get(owner, response_id, hidden=True)]
            return []
        if node is None:
            if self.background.get(owner, response_id) is not None:
                text = "previous_response_id: that response still runs in the background; wait until it is over."
                raise bad_request(text, "previous_response_id", "response_in_progress")
            return self.store.chain(owner, response_id, most)
        try:
            sent = await self._peers.ask(node, Question("chain", owner, [response_id], most))
        except GoneProcess:
            return []
        return [unwired(owner, response) for response in sent.responses]

    async def said(self, owner: bytes, ids: Collection[str], most: int) -> list[StoredResponse]:
        """Return the responses that said these items; what isn't there is left out."""
        here: list[str] = []
        by_node: dict[int, list[str]] = {}
        for name in ids:
            node = self._node(name)
            (here if node is None else by_node.setdefault(node, [])).append(name)
        responses = self.store.said(owner, here)
        for node, names in [*by_node.items()][:MOST_PROCESSES]:
            try:
                sent = await self._peers.ask(node, Question("said", owner, names, most))
            except GoneProcess:
                continue
            responses += [unwired(owner, response) for response in sent.responses]
            _check_size(responses, most)
        _check_size(responses, most)
        return responses

    async def get(self, owner: bytes, response_id: str) -> StoredResponse:
        """Return one, as it is now; 404 where this owner has none of that id."""
        if (node := self._node(response_id)) is None:
            return self._get(owner, response_id)
        sent = await self._far(node, Question("get", owner, [response_id]))
        return unwired(owner, sent.responses[0])

    async def delete(self, owner: bytes, response_id: str) -> None:
        """Forget one, and end it where it still runs; 404 where this owner has none of that id.

        A conversation stays, hidden, for the responses that were made in it.
        """
        if (node := self._node(response_id)) is not None:
            await self._far(node, Question("delete", owner, [response_id]))
            return
        if (run := self.background.get(owner, response_id)) is not None:
            await self.background.cancel(run)
            with contextlib.suppress(ApiError):  # there may have been no room for it
                self.store.delete(owner, response_id)
            return
        if is_conversation(response_id):
            self.conversations.change_now(owner, response_id, Change(hides=True))
        else:
            self.store.delete(owner, response_id)

    async def conversation(self, owner: bytes, name: str) -> StoredResponse:
        """Return a conversation with its items; 404 where this owner has none of that id."""
        if (node := self._node(name)) is None or not is_conversation(name):
            return self.conversations.get(owner, name)
        try:
            return unwired(owner, (await self._peers.ask(node, Question("get", owner, [name]))).responses[0])
        except (GoneProcess, ApiError) as error:
            raise missing(name) if isinstance(error, GoneProcess) or error.status == 404 else error from None

    async def change(self, owner: bytes, name: str, *changes: Change) -> bytes:
        """Change a conversation, and return its object."""
        done = b""
        node = self._node(name)
        for change in changes:
            if node is None:
                done = await self.conversations.change(owner, name, change)
                continue
            question = Question("change", owner, [name], data=msgspec.msgpack.encode(change))
            try:
                done = (await self._peers.ask(node, question)).data
            except GoneProcess:
                raise missing(name) from None
        return done

    async def add(self, owner: bytes, name: str, items: Sequence[bytes]) -> None:
        """Add items to a conversation."""
        here = self.is_here(name)
        await self.change(owner, name, *([together(items)] if here else pieces(items, self._peers.most)))

    def add_soon(self, owner: bytes, name: str, items: Sequence[bytes]) -> None:
        """Add items to a conversation: at once where it is here, else in a moment; a failure is logged."""
        if not self.is_here(name):
            self._tasks.start(self.add(owner, name, items), "conversation")
            return
        try:
            self.conversations.change_now(owner, name, together(items))
        except ApiError as error:
            log.warning("a conversation lacks what was said last: %s", error.message)

    async def cancel(self, owner: bytes, response_id: str) -> bytes:
        """End one that runs in the background, and return it; one that is over is returned as it is."""
        if (node := self._node(response_id)) is not None:
            return (await self._far(node, Question("cancel", owner, [response_id]))).data
        if (run := self.background.get(owner, response_id)) is not None:
            await self.background.cancel(run)
            return run.said()
        stored = self.store.get(owner, response_id)
        if not stored.background:
            raise not_in_background(response_id)
        return stored.response

    async def events(self, owner: bytes, response_id: str, number: int, first: Found) -> AsyncIterator[bytes]:
        """Yield the events from this number on, until the stream's end; `first`: what `news` has said of them."""
        sent = first
        while not sent.over:
            if sent.data:
                number += sent.data.count(b"\n\n")
                yield sent.data
            else:
                await asyncio.sleep(PAUSE)
            sent = await self.news(owner, response_id, number)

    async def news(self, owner: bytes, response_id: str, number: int) -> Found:
        """Return some events from this number on, maybe none yet; an error where they can't be had."""
        if (node := self._node(response_id)) is None:
            return await self._news(owner, response_id, number)
        return await self._far(node, Question("events", owner, [response_id], number))

    async def _news(self, owner: bytes, response_id: str, number: int) -> Found:
        events = self._log(owner, response_id)
        if number < events.first:
            text = f"starting_after: the events before number {events.first} are gone; ask without stream."
            raise bad_request(text, "starting_after")
        if self._waiting < MOST_WAITING:
            self._waiting += 1
            try:
                await events.wait(number, WAIT)
            finally:
                self._waiting -= 1
        data = b"".join(events.since(number))
        return Found([], data, events.over and not data)

    def _log(self, owner: bytes, response_id: str) -> EventLog:
        run = self.background.get(owner, response_id)
        events = run.log if run is not None else self.store.get(owner, response_id).log
        if events is None:
            text = "stream: only a response that was made with background and stream can be streamed again."
            raise bad_request(text, "stream", "unsupported_parameter")
        return events

    def _get(self, owner: bytes, response_id: str) -> StoredResponse:
        if (run := self.background.get(owner, response_id)) is not None:
            return StoredResponse(run.id, owner, run.said(), run.input, run.response["previous_response_id"])
        if is_conversation(response_id):
            return self.conversations.get(owner, response_id)
        return self.store.get(owner, response_id)

    async def _far(self, node: int, question: Question) -> Found:
        try:
            return await self._peers.ask(node, question)
        except GoneProcess:
            raise unknown(question.ids[0]) from None

    async def answer(self, question: Question) -> Found:
        """Answer another process; only what is here counts."""
        owner, ids = question.owner, question.ids
        if not all(self.is_here(name) for name in ids):
            raise unknown(ids[0])
        if question.kind == "said":
            responses = self.store.said(owner, ids)
            _check_size(responses, question.most)
            return Found([wired(stored) for stored in responses])
        (name,) = ids
        if question.kind == "events":
            return await self._news(owner, name, question.most)
        if question.kind == "chain":
            return Found([wired(stored) for stored in await self._part(owner, name, question.most)])
        if question.kind == "change":
            change = msgspec.msgpack.decode(question.data, type=Change)
            return Found([], await self.conversations.change(owner, name, change))
        if question.kind == "get":
            return Found([wired(self._get(owner, name))])
        if question.kind == "delete":
            await self.delete(owner, name)
            return Found()
        return Found([], await self.cancel(owner, name))


def _check_size(responses: list[StoredResponse], most: int) -> None:
    if sum(len(stored.response) for stored in responses) > most:
        text = f"input: the responses that it refers to have more than {most} bytes; send the items themselves."
        raise bad_request(text, "input", "conversation_too_long")


def items_of(chain: list[StoredResponse]) -> list[Item]:
    """Return the items of a conversation, from its beginning."""
    items: list[Item] = []
    for stored in reversed(chain):
        items += msgspec.json.decode(stored.input)
        items += msgspec.json.decode(stored.response)["output"]
    return items


def _not_found(asked: str, missing: str) -> ApiError:
    what = "that response" if asked == missing else "an earlier response of that conversation"
    text = (
        f"previous_response_id: {what} isn't stored here; it was deleted, has expired, or the frontend that had it "
        "is gone. Send the conversation in input."
    )
    return bad_request(text, "previous_response_id", "previous_response_not_found")
