"""Responses that are kept for a while: to go on from, to read again, to delete. In this process's memory.

Bounded by age, number and bytes. Where there are too many, those go that were used least recently: of the caller who
stores, if it has more than callers have on average, else of all. Whose a response is decides who may read it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request
from dynamo.frontend.limits.settings import StoredResponsesSettings
from dynamo.frontend.openai.request_structs import MAX_MESSAGES

_OWNERS: Final = (b"x-tenant-id", b"authorization", b"x-api-key")
_OVERHEAD: Final = 1024
"""Bytes that a response takes beside its own."""
_PER_ITEM: Final = 256
Item = dict[str, Any]


class StoredResponse(msgspec.Struct):
    """One response, as JSON."""

    id: str
    owner: bytes
    response: bytes
    input: bytes
    """Its own input's items."""
    previous: str | None
    items: list[str] = []
    """Ids of what it says, which clients may send in the place of it."""
    count: int = 0
    """Items of its input and of what it says."""
    used: float = 0.0

    @property
    def size(self) -> int:
        return len(self.response) + len(self.input) + _PER_ITEM * len(self.items) + _OVERHEAD


def owner_of(headers: Mapping[bytes, bytes]) -> bytes:
    """Return whose a request's responses are: its tenant's, else its key's; b"" where it names neither."""
    named = next(((name, value) for name in _OWNERS if (value := headers.get(name))), None)
    return b"" if named is None else blake2b(named[1], digest_size=16, person=named[0][:16]).digest()


class StoredResponses:
    """Store of all responses of one process. Called on the loop and in the threads that read large requests."""

    def __init__(self, limits: StoredResponsesSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._lock = threading.Lock()
        self._all: OrderedDict[str, StoredResponse] = OrderedDict()
        """By their last use."""
        self._of: dict[bytes, OrderedDict[str, None]] = {}
        self._bytes: dict[bytes, int] = {}
        self._places: dict[str, str] = {}
        """Of items: the responses that said them."""
        self.bytes = 0
        self._reserved: dict[bytes, int] = {}
        """Bytes of requests that are answered now, by owner."""

    def __len__(self) -> int:
        return len(self._all)

    def keep(self, stored: StoredResponse) -> None:
        """Keep a response; others go where there are too many."""
        if stored.size > self._limits.max_bytes:
            return
        with self._lock:
            self._expire()
            self._add(stored)
            while len(self._all) > self._limits.max_count or self.bytes > self._limits.max_bytes:
                self._drop(self._least(stored))

    def reserve(self, owner: bytes, size: int) -> bool:
        """Count the input of a request that is answered now; False, and nothing counts, where there are too many.

        One owner gets half of what there is: else long answers of one would leave the others' unstored.
        """
        most = self._limits.max_bytes
        with self._lock:
            own = self._reserved.get(owner, 0) + size
            if own > most // 2 or sum(self._reserved.values()) + size > most:
                return False
            self._reserved[owner] = own
            return True

    def release(self, owner: bytes, size: int) -> None:
        """Count it no more; once per reservation."""
        with self._lock:
            if (left := self._reserved[owner] - size) > 0:
                self._reserved[owner] = left
            else:
                del self._reserved[owner]

    def get(self, owner: bytes, response_id: str) -> StoredResponse:
        """Return one, which has been used now; 404 where this owner has none of that id."""
        with self._lock:
            self._expire()
            if (stored := self._found(owner, response_id)) is None:
                raise _unknown(response_id)
            return stored

    def delete(self, owner: bytes, response_id: str) -> None:
        """Forget one; 404 where this owner has none of that id."""
        self.get(owner, response_id)
        with self._lock:
            if response_id in self._all:
                self._drop(response_id)

    def conversation(self, owner: bytes, response_id: str, most: int) -> list[Item]:
        """Return the items of a conversation up to the end of a response, of at most so many bytes."""
        chain: list[StoredResponse] = []
        at: str | None = response_id
        with self._lock:
            self._expire()
            while at is not None:
                stored = self._found(owner, at)
                if stored is None:
                    raise _not_found(response_id, at)
                chain.append(stored)
                at = stored.previous
        if sum(stored.count for stored in chain) > MAX_MESSAGES:
            text = f"previous_response_id: the conversation has more than {MAX_MESSAGES} items; send those that matter."
            raise bad_request(text, "previous_response_id", "conversation_too_long")
        if sum(stored.size - _OVERHEAD for stored in chain) > most:
            text = f"previous_response_id: the conversation has more than {most} bytes; send the part that matters."
            raise bad_request(text, "previous_response_id", "conversation_too_long")
        items: list[Item] = []
        for stored in reversed(chain):
            items += msgspec.json.decode(stored.input)
            items += msgspec.json.decode(stored.response)["output"]
        return items

    def items(self, owner: bytes, ids: Collection[str], most: int) -> dict[str, Item]:
        """Return what earlier responses said, by id; what isn't there is left out. A 400 where that is too much."""
        with self._lock:
            self._expire()
            named = {self._places[item] for item in ids if item in self._places}
            responses = [stored for name in named if (stored := self._found(owner, name)) is not None]
        if sum(len(stored.response) for stored in responses) > most:
            text = f"input: the responses that it refers to have more than {most} bytes; send the items themselves."
            raise bad_request(text, "input", "conversation_too_long")
        said = (item for stored in responses for item in msgspec.json.decode(stored.response)["output"])
        return {item["id"]: item for item in said if item["id"] in ids}

    def _found(self, owner: bytes, response_id: str) -> StoredResponse | None:
        stored = self._all.get(response_id)
        if stored is None or stored.owner != owner:
            return None
        stored.used = self._clock()
        self._all.move_to_end(response_id)
        self._of[owner].move_to_end(response_id)
        return stored

    def _add(self, stored: StoredResponse) -> None:
        stored.used = self._clock()
        self._all[stored.id] = stored
        self._of.setdefault(stored.owner, OrderedDict())[stored.id] = None
        self._bytes[stored.owner] = self._bytes.get(stored.owner, 0) + stored.size
        self.bytes += stored.size
        self._places |= dict.fromkeys(stored.items, stored.id)

    def _least(self, newest: StoredResponse) -> str:
        """Return what goes; found at once, since a large response may take the place of hundreds."""
        mine = self._of[newest.owner]
        own, owners = next(iter(mine)), len(self._bytes)
        many = len(self._all) > self._limits.max_count and len(mine) * owners > len(self._all)
        large = self.bytes > self._limits.max_bytes and self._bytes[newest.owner] * owners > self.bytes
        if own != newest.id and (many or large):
            return own
        return next(iter(self._all))

    def _drop(self, response_id: str) -> None:
        stored = self._all.pop(response_id)
        own = self._of[stored.owner]
        del own[response_id]
        for item in stored.items:
            self._places.pop(item, None)
        self.bytes -= stored.size
        self._bytes[stored.owner] -= stored.size
        if not own:
            del self._of[stored.owner], self._bytes[stored.owner]

    def _expire(self) -> None:
        oldest = self._clock() - self._limits.ttl
        while self._all and next(iter(self._all.values())).used <= oldest:
            self._drop(next(iter(self._all)))


def _unknown(response_id: str) -> ApiError:
    text = f"There is no response {response_id[:100]!r} here: it was never stored, was deleted, or has expired."
    return ApiError(404, text, code="response_not_found", param="response_id")


def _not_found(asked: str, missing: str) -> ApiError:
    what = "that response" if asked == missing else "an earlier response of that conversation"
    text = (
        f"previous_response_id: {what} isn't stored here; it was deleted, has expired, or another frontend has it. "
        "Send the conversation in input."
    )
    return bad_request(text, "previous_response_id", "previous_response_not_found")
