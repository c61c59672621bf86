"""Responses that this process keeps for a while, in memory: to go on from, to read again, to delete.

Bounded by age, number and bytes. Where there are too many, those go that were used least recently: of the caller who
stores, if it has more than callers have on average, else of all. Whose a response is decides who may read it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from dynamo.frontend.errors import ApiError
from dynamo.frontend.limits.settings import StoredResponsesSettings
from dynamo.frontend.stored.event_log import EventLog

_OWNERS: Final = (b"x-tenant-id", b"authorization", b"x-api-key")
CONVERSATIONS: Final = "conv_"
"""Beginning of conversations' ids."""
_OVERHEAD: Final = 1024
"""Bytes that a response takes beside its own."""
_PER_ITEM: Final = 256


class StoredResponse(msgspec.Struct):
    """One response, as JSON."""

    id: str
    owner: bytes
    response: bytes
    input: bytes
    """Its own input's items."""
    previous: str | None
    """What it goes on from: a response, or a conversation, which has it, too."""
    items: list[str] = []
    """Ids of what it says, which clients may send in the place of it."""
    count: int = 0
    """Items of its input and of what it says."""
    used: float = 0.0
    background: bool = False
    hidden: bool = False
    """It was deleted, and is kept for those who go on from it: a conversation, as its responses stay."""
    log: EventLog | None = None
    """Of its stream, where it ran in the background with one."""

    @property
    def size(self) -> int:
        """Return the bytes that it counts as."""
        log = 0 if self.log is None else self.log.bytes
        return self.part + log + _PER_ITEM * len(self.items) + _OVERHEAD

    @property
    def part(self) -> int:
        """Return its bytes of a conversation."""
        return len(self.response) + len(self.input)


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
            self._put(stored)

    def exchange(self, old: StoredResponse, new: StoredResponse) -> bool:
        """Keep `new` in the place of `old`; False where that isn't there any more."""
        if new.size > self._limits.max_bytes:
            return False
        with self._lock:
            if self._all.get(old.id) is not old:
                return False
            self._drop(old.id)
            self._put(new)
        return True

    def _put(self, stored: StoredResponse) -> None:
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
            if (left := self._reserved.get(owner, 0) - size) > 0:
                self._reserved[owner] = left
            else:
                self._reserved.pop(owner, None)

    def get(self, owner: bytes, response_id: str) -> StoredResponse:
        """Return one, which has been used now; 404 where this owner has none of that id."""
        with self._lock:
            self._expire()
            if (stored := self._found(owner, response_id)) is None:
                raise unknown(response_id)
            return stored

    def delete(self, owner: bytes, response_id: str) -> None:
        """Forget one; 404 where this owner has none of that id."""
        self.get(owner, response_id)
        with self._lock:
            if response_id in self._all:
                self._drop(response_id)

    def chain(self, owner: bytes, response_id: str, most: int) -> list[StoredResponse]:
        """Return a response and those before it, as long as they are here; with the one that passes `most` bytes."""
        chain: list[StoredResponse] = []
        at: str | None = response_id
        with self._lock:
            self._expire()
            while at is not None and most >= 0 and not at.startswith(CONVERSATIONS):
                if (stored := self._found(owner, at)) is None:
                    break
                chain.append(stored)
                at, most = stored.previous, most - stored.part
        return chain

    def said(self, owner: bytes, ids: Collection[str]) -> list[StoredResponse]:
        """Return the responses that said these items; what isn't there is left out."""
        with self._lock:
            self._expire()
            named = {self._places[item] for item in ids if item in self._places}
            return [stored for name in named if (stored := self._found(owner, name)) is not None]

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


def unknown(response_id: str) -> ApiError:
    """Return 404: this owner has no such response."""
    text = f"There is no response {response_id[:100]!r} here: it was never stored, was deleted, or has expired."
    return ApiError(404, text, code="response_not_found", param="response_id")
