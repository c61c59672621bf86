"""The clients that a worker knows, in bounds: whoever may publish in its namespace can make some up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dynamo.runtime.request_plane.chunks import Shelf
from dynamo.runtime.request_plane.peer import Peer

IDLE: Final = 600.0
"""Seconds for which a client without streams is remembered."""
MOST_IDLE: Final = 1000


class Peers:
    """By namespace and client."""

    def __init__(self) -> None:
        self._shelf = Shelf()
        self._peers: dict[tuple[str, int], Peer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def values(self) -> Iterable[Peer]:
        """Those that are known."""
        return self._peers.values()

    def get(self, key: tuple[str, int]) -> Peer | None:
        return self._peers.get(key)

    def of(self, namespace: str, client: int, worker: int, now: float) -> Peer:
        """The client, known from now on. Where too many are, who came first of those without a stream is forgotten.

        `worker` is the id that clients are told; it changes where another process has the same.
        """
        key = (namespace, client)
        peer = self._peers.get(key)
        if peer is None:
            if len(self._peers) >= MOST_IDLE:
                self._forget_first()
            peer = self._peers[key] = Peer(namespace, client, worker, now, self._shelf)
        return peer

    def _forget_first(self) -> None:
        first = next((key for key, peer in self._peers.items() if not peer.streams), None)
        if first is not None:
            self._peers.pop(first).chunks.clear()

    def prune(self, now: float) -> None:
        """Forget what is over: unfinished requests that don't go on, and clients that have been quiet for long."""
        for key, peer in tuple(self._peers.items()):
            peer.chunks.expire(now)
            if not peer.streams and not peer.chunks.size and now - peer.outbox.last_sent > IDLE:
                del self._peers[key]
