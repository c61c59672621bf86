"""The `Store` port over memory: membership of a process that needs no etcd, and of the tests.

A `StoreWorld` is the server: several `MemoryStore`s (one per runtime) share it. It keeps
revisions, leases and history as etcd does, and has the switches that tests of an outage
need: `down`, `compact()` and `replace()`. `tests/runtime/discovery/test_store_contract.py` holds it
to what etcd does.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

from dynamo.runtime.discovery.store import Change, Compacted, Entry, Lease, LeaseLost, Snapshot
from dynamo.runtime.errors import CannotConnect

HISTORY: Final = 10_000
"""Changes that are kept for watches from an old revision; older ones count as compacted."""


class _Held(NamedTuple):
    entry: Entry
    lease: int


class StoreWorld:
    """The state that all stores of one world share. Nothing in it waits.

    Leases end for who may die alone. In a world of one runtime nobody can: a loop that stood still for longer than a
    lease lasts, while a model is loaded, must not take its own instances out of service.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, leases_end: bool = True) -> None:
        self.clock = clock
        self._leases_end = leases_end
        self.generation = 0
        self._down = False
        self._watchers: set[asyncio.Event] = set()
        self._lease_ids = itertools.count(1)
        self._empty()

    def _empty(self) -> None:
        self.revision = 1
        self._entries: dict[str, _Held] = {}
        self._history: list[Change] = []
        self._compacted = 0
        self._leases: dict[int, tuple[float, float]] = {}

    @property
    def down(self) -> bool:
        """Tell whether every operation raises `CannotConnect` and every watch ends."""
        return self._down

    @down.setter
    def down(self, value: bool) -> None:
        self._down = value
        self.generation += 1
        self._wake()

    def compact(self) -> None:
        """Forget the history: a watch from an older revision raises `Compacted`."""
        self._compacted = self.revision
        self._history.clear()

    def replace(self) -> None:
        """Put an empty store in this one's place, as after a lost data directory."""
        self.generation += 1
        self._empty()
        self._wake()

    def check(self) -> None:
        if self._down:
            raise CannotConnect("the memory store is switched off")
        self.expire()

    def expire(self) -> None:
        """Drop leases whose time has passed, with their keys."""
        if not self._leases_end:
            return
        now = self.clock()
        for lease in [lease for lease, (_, until) in self._leases.items() if until <= now]:
            self.drop_lease(lease)

    def next_expiry(self) -> float | None:
        """Return the seconds until the first lease may end."""
        untils = [until for _, until in self._leases.values()] if self._leases_end else []
        return max(min(untils) - self.clock(), 0.001) if untils else None

    def grant(self, ttl: float) -> int:
        lease = next(self._lease_ids)
        self._leases[lease] = (ttl, self.clock() + ttl)
        self._wake()
        return lease

    def renew(self, lease: int) -> bool:
        if lease not in self._leases:
            return False
        ttl = self._leases[lease][0]
        self._leases[lease] = (ttl, self.clock() + ttl)
        return True

    def has_lease(self, lease: int) -> bool:
        return lease in self._leases

    def drop_lease(self, lease: int) -> None:
        self._leases.pop(lease, None)
        keys = [key for key, held in self._entries.items() if held.lease == lease]
        if keys:
            self.revision += 1
        for key in keys:
            del self._entries[key]
            self._record(Change(key, None, self.revision))

    def get(self, key: str) -> bytes | None:
        held = self._entries.get(key)
        return held.entry.value if held else None

    def put(self, key: str, value: bytes, lease: int) -> int:
        if lease and lease not in self._leases:
            raise LeaseLost
        self.revision += 1
        self._entries[key] = _Held(Entry(key, value, self.revision), lease)
        self._record(Change(key, value, self.revision))
        return self.revision

    def delete(self, key: str) -> None:
        if self._entries.pop(key, None) is not None:
            self.revision += 1
            self._record(Change(key, None, self.revision))

    def read(self, prefix: str) -> Snapshot:
        entries = [held.entry for key, held in sorted(self._entries.items()) if key.startswith(prefix)]
        return Snapshot(self.revision, entries)

    def read_keys(self, keys: Sequence[str]) -> Snapshot:
        return Snapshot(self.revision, [self._entries[key].entry for key in keys if key in self._entries])

    def since(self, prefix: str, revision: int) -> list[Change]:
        """Return what happened from `revision` on."""
        if revision <= self._compacted:
            raise Compacted
        first = len(self._history)
        while first and self._history[first - 1].revision >= revision:
            first -= 1
        return [change for change in self._history[first:] if change.key.startswith(prefix)]

    def listen(self, event: asyncio.Event) -> None:
        self._watchers.add(event)

    def unlisten(self, event: asyncio.Event) -> None:
        self._watchers.discard(event)

    def _record(self, change: Change) -> None:
        self._history.append(change)
        if len(self._history) > 2 * HISTORY:
            dropped = self._history[:HISTORY]
            del self._history[:HISTORY]
            self._compacted = dropped[-1].revision
        self._wake()

    def _wake(self) -> None:
        for event in self._watchers:
            event.set()


class MemoryLease:
    """A lease of a `StoreWorld`."""

    def __init__(self, world: StoreWorld, ttl: float) -> None:
        self._world = world
        self._id = world.grant(ttl)

    @property
    def id(self) -> int:
        return self._id

    @property
    def alive(self) -> bool:
        return self._world.has_lease(self._id)

    async def keep_alive(self) -> bool:
        self._world.check()
        return self._world.renew(self._id)

    async def revoke(self) -> None:
        self._world.check()
        self._world.drop_lease(self._id)


class MemoryStore:
    """One process's connection to a `StoreWorld`."""

    def __init__(self, world: StoreWorld | None = None) -> None:
        self._world = world or StoreWorld()

    async def connect(self) -> None:
        self._world.check()

    async def close(self) -> None:
        """Do nothing: nothing is to be freed, leases end by themselves, as with etcd."""

    async def grant(self, ttl: float) -> Lease:
        self._world.check()
        return MemoryLease(self._world, ttl)

    async def put(self, key: str, value: bytes, lease: Lease | None = None) -> int:
        self._world.check()
        return self._world.put(key, value, lease.id if lease else 0)

    async def put_if(
        self, key: str, value: bytes, expected: bytes | None, lease: Lease | None = None
    ) -> tuple[bool, int, bytes | None]:
        self._world.check()
        present = self._world.get(key)
        if present != expected:
            return False, self._world.revision, present
        return True, self._world.put(key, value, lease.id if lease else 0), present

    async def delete(self, key: str) -> None:
        self._world.check()
        self._world.delete(key)

    async def read(self, prefix: str) -> Snapshot:
        self._world.check()
        return self._world.read(prefix)

    async def read_keys(self, keys: Sequence[str]) -> Snapshot:
        self._world.check()
        return self._world.read_keys(keys)

    async def watch(self, prefix: str, start_revision: int) -> AsyncIterator[list[Change]]:
        world, wake = self._world, asyncio.Event()
        world.check()
        if start_revision > world.revision + 1:
            raise Compacted("the store is younger than what is watched for")
        generation, revision = world.generation, start_revision
        world.listen(wake)
        try:
            while True:
                wake.clear()
                world.expire()
                if world.generation != generation or world.down:
                    raise CannotConnect("the memory store went away")
                changes = world.since(prefix, revision)
                revision = max(revision, world.revision + 1)
                if changes:
                    yield changes
                    continue
                await _wait(wake, world.next_expiry())
        finally:
            world.unlisten(wake)


async def _wait(wake: asyncio.Event, timeout: float | None) -> None:
    try:
        async with asyncio.timeout(timeout):
            await wake.wait()
    except TimeoutError:
        return
