"""What runs where, told to the other frontends: requests that they sent count in every router's activity. Pure.

Who sends a request says so (`ReplicaSender`), with the hashes of its blocks, since blocks that requests share count
once; who hears it (`ReplicaReceiver`) counts it under the sender's id. Messages may be lost: a beat every second lists
what still runs, so that nothing stays counted that is over, and whoever isn't heard for `PATIENCE` is forgotten with
all that it sent. A newcomer is told everything. Nothing of this is said while nobody listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.messages import HASH_BYTES, OVERHEAD, pack, unpack
from dynamo.llm.kv.scheduler import KvScheduler

VERSION: Final = 1
BEAT_SECONDS: Final = 1.0
PATIENCE: Final = 3.5
MOST_PEERS: Final = 1024
MOST_REQUESTS: Final = 100_000
"""Of one peer; more are not counted."""
_ENTRY_BYTES: Final = 64
"""More than an `Added` needs beside its hashes."""


class Added(msgspec.Struct, array_like=True, gc=False):
    """A request was sent. Names are packed as in `kv/messages.py`."""

    number: int
    instance: int
    dp_rank: int
    to_prefill: int
    names: bytes


class ReplicaMessage(msgspec.Struct, array_like=True, gc=False):
    """One message of one frontend, on `dyn.<ns>.router.<client>`."""

    version: int
    client: int
    added: list[Added] = []
    prefilled: list[int] = []
    freed: list[int] = []
    active: list[int] | None = None
    """In a beat: all requests that run. What a reader has beside them is over."""
    prefilling: list[int] = []
    """In a beat: those of them without a first token."""
    leaving: bool = False


decode_message: Final = msgspec.msgpack.Decoder(ReplicaMessage).decode
"""Raises `messages.UNREADABLE`."""
_encode: Final = msgspec.msgpack.Encoder().encode


class _Sent(msgspec.Struct, gc=False):
    rank: Rank
    hashes: Sequence[int]
    to_prefill: int


class ReplicaSender:
    """Sender of one frontend's requests in one namespace. `listened`: somebody is there to hear it."""

    def __init__(self, client: int) -> None:
        self.listened = False
        self._client = client
        self._last = 0
        self._active: dict[int, _Sent] = {}
        self._added: dict[int, None] = {}
        self._prefilled: list[int] = []
        self._freed: list[int] = []

    def __len__(self) -> int:
        """Count the requests that run."""
        return len(self._active)

    @property
    def pending(self) -> bool:
        """Tell whether there is something for `take`."""
        return bool(self._added or self._prefilled or self._freed)

    def added(self, rank: Rank, hashes: Sequence[int], to_prefill: int) -> int:
        """Note that a request was sent; returns the number under which it goes on."""
        self._last += 1
        self._active[self._last] = _Sent(rank, hashes, to_prefill)
        if self.listened:
            self._added[self._last] = None
        return self._last

    def prefilled(self, number: int) -> None:
        """Note that its first token came."""
        sent = self._active.get(number)
        if sent is not None and sent.to_prefill:
            sent.to_prefill = 0
            if self.listened:
                self._prefilled.append(number)

    def freed(self, number: int) -> None:
        """Note that it is over; also where that was said already."""
        if self._active.pop(number, None) is not None and self.listened:
            self._added.pop(number, None)
            self._freed.append(number)

    def everything(self) -> None:
        """Say all that runs again, since somebody new listens; those who know it ignore it."""
        self.listened = True
        self._added = dict.fromkeys(self._active)

    def silence(self) -> None:
        """Fall silent: nobody listens any more."""
        self.listened = False
        self._added, self._prefilled, self._freed = {}, [], []

    def take(self, limit: int) -> Iterator[bytes]:
        """Yield the messages for what has happened since the last time, each of at most `limit` bytes."""
        added, prefilled, freed = self._added, self._prefilled, self._freed
        self._added, self._prefilled, self._freed = {}, [], []
        if prefilled or freed:
            yield _encode(ReplicaMessage(VERSION, self._client, [], prefilled, freed))
        entries: list[Added] = []
        size = OVERHEAD
        for entry in (self._entry(number, limit) for number in added):
            needs = len(entry.names) + _ENTRY_BYTES
            if entries and size + needs > limit:
                yield _encode(ReplicaMessage(VERSION, self._client, entries))
                entries, size = [], OVERHEAD
            entries.append(entry)
            size += needs
        if entries:
            yield _encode(ReplicaMessage(VERSION, self._client, entries))

    def beat(self) -> bytes:
        """Return the message of what still runs."""
        prefilling = [number for number, sent in self._active.items() if sent.to_prefill]
        return _encode(ReplicaMessage(VERSION, self._client, active=list(self._active), prefilling=prefilling))

    def farewell(self) -> bytes:
        """Say that all that it sent is over, or nobody will say when."""
        return _encode(ReplicaMessage(VERSION, self._client, leaving=True))

    def _entry(self, number: int, limit: int) -> Added:
        sent = self._active[number]
        hashes = sent.hashes[: max(0, limit - OVERHEAD - _ENTRY_BYTES) // HASH_BYTES]
        return Added(number, sent.rank.instance, sent.rank.dp_rank, sent.to_prefill, pack(hashes))


class _Peer:
    def __init__(self, now: float) -> None:
        self.heard_at = now
        self.requests: dict[int, int] = {}
        """The instance that each was sent to."""
        self.prefilling: set[int] = set()


RouterOf = Callable[[int], KvScheduler | None]
"""The router of an instance; None where that isn't known here."""


class ReplicaReceiver:
    """Receiver of what the other frontends of one namespace say, counted in this one's routers."""

    def __init__(self, client: int, router_of: RouterOf, patience: float = PATIENCE) -> None:
        self._client, self._router_of, self._patience = client, router_of, patience
        self._peers: dict[int, _Peer] = {}

    def __len__(self) -> int:
        """Count the frontends that are heard."""
        return len(self._peers)

    def heard(self, news: ReplicaMessage, now: float) -> bool:
        """Take a message in; True where its sender is new. Raises `ValueError` for hashes that can't be read."""
        if news.client == self._client:
            return False
        if news.leaving:
            self._forget(news.client)
            return False
        peer = self._peers.get(news.client)
        new = peer is None
        if peer is None:
            if len(self._peers) >= MOST_PEERS:
                return False
            peer = self._peers[news.client] = _Peer(now)
        peer.heard_at = now
        for number in news.prefilled:
            self._prefilled(news.client, peer, number)
        for number in news.freed:
            self._freed(news.client, peer, number)
        for entry in news.added:
            self._added(news.client, peer, entry)
        if news.active is not None:
            self._compare(news.client, peer, news.active, news.prefilling)
        return new

    def expire(self, now: float) -> None:
        """Forget whom nobody has heard of for too long."""
        for client in [client for client, peer in self._peers.items() if now - peer.heard_at > self._patience]:
            self._forget(client)

    def _added(self, client: int, peer: _Peer, entry: Added) -> None:
        router = self._router_of(entry.instance)
        if router is None or entry.number in peer.requests or len(peer.requests) >= MOST_REQUESTS:
            return
        hashes = unpack(entry.names)
        router.activity.add(_key(client, entry.number), Rank(entry.instance, entry.dp_rank), hashes, entry.to_prefill)
        peer.requests[entry.number] = entry.instance
        if entry.to_prefill:
            peer.prefilling.add(entry.number)

    def _prefilled(self, client: int, peer: _Peer, number: int) -> None:
        peer.prefilling.discard(number)
        router = self._router_of(peer.requests.get(number, 0))
        if router is not None:
            router.prefilled(_key(client, number))

    def _freed(self, client: int, peer: _Peer, number: int) -> None:
        peer.prefilling.discard(number)
        router = self._router_of(peer.requests.pop(number, 0))
        if router is not None:
            router.ended(_key(client, number))

    def _compare(self, client: int, peer: _Peer, active: list[int], prefilling: list[int]) -> None:
        for number in peer.requests.keys() - set(active):
            self._freed(client, peer, number)
        for number in peer.prefilling - set(prefilling):
            self._prefilled(client, peer, number)

    def _forget(self, client: int) -> None:
        peer = self._peers.pop(client, None)
        if peer is not None:
            for number in list(peer.requests):
                self._freed(client, peer, number)


def _key(client: int, number: int) -> str:
    """Return a key unlike any of this frontend's own."""
    return f"{client:x}.{number}"
