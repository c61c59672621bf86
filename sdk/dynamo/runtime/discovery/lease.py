"""The keys that a process keeps in the store, under one lease, through every outage.

`registry` says what each key should hold; the keeper makes it so: it renews the lease,
takes a new one where it was lost, writes again what an emptied store has lost, and
batches what changes often (ten writes a second at most, two where a thousand instances
read them: `write_gap`). Level-based: it compares what a key should hold with what was
written, so that nothing is lost while etcd is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from dynamo.runtime.discovery.prefix_watch import epoch_of, read_epoch
from dynamo.runtime.discovery.readiness import Written
from dynamo.runtime.discovery.store import Lease, LeaseLost, Store
from dynamo.runtime.errors import CannotConnect, DynamoException
from dynamo.runtime.names import EPOCH_KEY

GAP: Final = 0.1
"""Seconds between two writes of what changes often, at least."""
GAP_MOST: Final = 0.5
"""Half of what a leaving instance waits for the clients to have heard of it (`endpoint.LEAVE_LIMIT`)."""
READS_PER_SECOND: Final = 2000
"""What a client writes of itself is read by each instance: so many reads a second may one client cause."""
RETRY: Final = 0.5

log = logging.getLogger(__name__)


def write_gap(instances: int) -> float:
    """Return the seconds between two writes of a client that follows so many instances."""
    return min(max(GAP, instances / READS_PER_SECOND), GAP_MOST)


class IdTaken(DynamoException):
    """Another process has registered under this id."""

    code = "id_taken"


class LeasedKey:
    """One key and what it should hold. `same_owner` tells one's own earlier record from a stranger's."""

    def __init__(self, key: str, value: bytes, same_owner: Callable[[bytes], bool] | None = None) -> None:
        self.key = key
        self.value: bytes | None = value
        self.written: Written | None = None
        """Where it was first written under the present lease and epoch."""
        self.revision = 0
        """Where it was last written."""
        self._same_owner = same_owner
        self._stored: bytes | None = None
        self._lease = 0
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def dirty(self) -> bool:
        return self.value != self._stored

    @property
    def stored(self) -> bool:
        """Tell whether it is stored, as far as we know."""
        return self._stored is not None

    def forget(self) -> None:
        """Forget it: the store lost it, or may have."""
        self._stored = None
        self._lease = 0

    async def settled(self, timeout: float) -> bool:
        """Wait until the store holds the value; False after `timeout`. Raises what made it impossible."""
        if not self.dirty:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    def fail(self, error: Exception) -> bool:
        """Tell who waits; False where nobody does."""
        waiters = [w for w in self._waiters if not w.done()]
        for waiter in waiters:
            waiter.set_exception(error)
        return bool(waiters)

    async def sync(self, store: Store, lease: Lease, epoch: str, now: float) -> None:
        """Write or delete, where that is needed."""
        value = self.value
        if value == self._stored and (value is None or self._lease == lease.id):
            return
        if value is None:
            await store.delete(self.key)
        else:
            self.revision = await self._write(store, value, lease)
            if self._lease != lease.id:
                self.written = Written(epoch, self.revision, now)
            self._lease = lease.id
        self._stored = value
        for waiter in self._waiters:
            if not waiter.done() and not self.dirty:
                waiter.set_result(None)

    async def _write(self, store: Store, value: bytes, lease: Lease) -> int:
        if self._same_owner is None:
            return await store.put(self.key, value, lease)
        written, revision, present = await store.put_if(self.key, value, None, lease)
        if not written and present is not None and self._same_owner(present):
            written, revision, present = await store.put_if(self.key, value, present, lease)
        if not written:
            raise IdTaken(f"{self.key} belongs to another process")
        return revision


class LeaseKeeper:
    """Owns the lease and the keys under it."""

    def __init__(
        self,
        store: Store,
        ttl: float,
        on_replaced: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._ttl, self._clock = store, ttl, clock
        self._on_replaced = on_replaced
        self.gap = GAP
        """Seconds between two writes, unless somebody waits for one."""
        self._keys: dict[str, LeasedKey] = {}
        self._lease: Lease | None = None
        self._wanted = False
        """Somebody needs the lease for keys of his own."""
        self._renew_at = 0.0
        self._wake = asyncio.Event()
        self._hurry = False
        self.epoch = ""
        self._revision = 0
        self.away = ""
        """Why the store can't be used now; empty while it can."""

    def add(self, key: LeasedKey) -> None:
        self._keys[key.key] = key
        self.wake(now=True)

    def discard(self, key: LeasedKey) -> None:
        self._keys.pop(key.key, None)

    def wake(self, *, now: bool = False) -> None:
        """Look now: some key's value has changed; `now`: somebody waits for it to be written."""
        self._hurry |= now
        self._wake.set()

    def recheck(self) -> None:
        """Look now instead of at the next renewal: the store may have been replaced."""
        self._renew_at = 0.0
        self._wake.set()

    async def run(self) -> None:
        """Keep the keys until cancelled."""
        while True:
            self._wake.clear()
            self._hurry = False
            began = self._clock()
            delay = await self._round()
            await self._woken(delay)
            while not self._hurry and (rest := began + self.gap - self._clock()) > 0:
                self._wake.clear()
                await self._woken(rest)

    async def _woken(self, within: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._wake.wait()

    async def lease(self, timeout: float) -> Lease:
        """Return the lease, for keys that are written without being kept; `CannotConnect` after `timeout` seconds."""
        self._wanted = True
        try:
            async with asyncio.timeout(timeout):
                while self._lease is None:
                    self.wake(now=True)
                    await asyncio.sleep(GAP)
        except TimeoutError:
            raise CannotConnect(
                f"there was no lease within {timeout:.0f} s: {self.away or 'the store is slow'}"
            ) from None
        return self._lease

    async def release(self, timeout: float) -> None:
        """Give the lease back: all keys vanish at once."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            async with asyncio.timeout(timeout):
                await lease.revoke()
        except (DynamoException, TimeoutError) as error:
            log.debug("the lease could not be given back (%s); it ends by itself", error)

    async def _round(self) -> float:
        try:
            if self._keys or self._wanted:
                await self._renew()
                await self._sync()
            self._back()
        except LeaseLost:
            self._lease = None
            return 0.0
        except DynamoException as error:
            self._gone(error)
            return RETRY
        except Exception:  # a mistake in here must not take the process out of service
            log.exception("the keys in the store could not be kept; trying again")
            return RETRY
        return max(self._renew_at - self._clock(), 0.0) if self._keys or self._wanted else self._ttl

    async def _renew(self) -> None:
        now = self._clock()
        if self._lease is not None and now < self._renew_at:
            return
        lost, refused = list[LeasedKey](), None
        try:
            lost = await self._look()
        except CannotConnect:
            raise
        except DynamoException as error:  # what etcd won't let us read must not cost the lease, and all keys with it
            refused = error
        if self._lease is not None and not await self._lease.keep_alive():
            log.warning("Lost the lease in etcd; registering again.")
            self._lease = None
        if self._lease is None:
            self._lease = await self._store.grant(self._ttl)
        else:
            self._write_again(lost)
        if refused is not None:
            raise refused
        self._renew_at = now + self._ttl / 3

    async def _look(self) -> list[LeasedKey]:
        """Read the epoch, and return what is lost of our keys: one question, since a thousand processes ask it."""
        stored = [key for key in self._keys.values() if key.stored]
        revision, entries = await self._store.read_keys([EPOCH_KEY, *(key.key for key in stored)])
        there = {entry.key: entry for entry in entries}
        if (epoch := there.get(EPOCH_KEY)) is None:
            self._note_epoch(*await read_epoch(self._store))
        else:
            self._note_epoch(epoch_of(epoch), revision)
        return [key for key in stored if key.key not in there]

    def _write_again(self, lost: list[LeasedKey]) -> None:
        """Have keys written again that somebody deleted by hand."""
        for key in lost:
            if key.stored:
                log.warning("Key %s was deleted from etcd by another process; writing it again.", key.key)
                key.forget()

    def _note_epoch(self, epoch: str, revision: int) -> None:
        if self.epoch and (epoch != self.epoch or revision < self._revision):
            log.warning("etcd was replaced, or lost its data; registering again.")
            self._lease = None
            for key in self._keys.values():
                key.forget()
            self._on_replaced()
        self.epoch, self._revision = epoch, revision

    async def _sync(self) -> None:
        assert self._lease is not None
        for key in list(self._keys.values()):
            try:
                await key.sync(self._store, self._lease, self.epoch, self._clock())
            except IdTaken as error:
                if key.fail(error):
                    self.discard(key)
                else:
                    log.error("%s; this process can't register again.", error)

    def _gone(self, error: DynamoException) -> None:
        if not self.away:
            level = logging.WARNING if isinstance(error, CannotConnect) else logging.ERROR
            log.log(level, "Lost etcd (%s). Serving continues; instances re-register on reconnect.", error)
        self.away = error.message

    def _back(self) -> None:
        if self.away:
            log.info("Reconnected to etcd.")
        self.away = ""
