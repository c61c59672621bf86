"""Who serves what: registration of one's own endpoints, and the view of everybody else's.

The shell around `membership` and `readiness`: `Endpoint.start` registers here,
`Client` and the frontend's model pool read an `InstanceView`. While the store is away
everything goes on from what is known; `lease` writes again when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from dynamo.runtime.discovery.instance_view import InstanceListener, InstanceView
from dynamo.runtime.discovery.lease import IdTaken, LeasedKey, LeaseKeeper, write_gap
from dynamo.runtime.discovery.membership import (
    FRONTEND,
    Effect,
    Instance,
    Malformed,
    Replaced,
    encode_instance,
)
from dynamo.runtime.discovery.prefix_watch import PrefixWatch
from dynamo.runtime.discovery.readiness import Clients, Readiness
from dynamo.runtime.discovery.store import Change, Snapshot, Store
from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.names import InstanceKey, client_prefix, instance_key
from dynamo.runtime.transport.bus import Verdict

__all__ = ["IdTaken", "Instance", "InstanceListener", "InstanceView", "Readiness", "Registration", "Registry"]

FIRST_WRITE: Final = 120.0
"""Seconds that a registration may take before the process gives up."""
UPDATE_WAIT: Final = 2.0
AWAY_WAIT: Final = 0.3
"""Seconds that an update waits for the store; less where that is known to be away."""

Ping = Callable[[InstanceKey], Awaitable[Verdict]]

log = logging.getLogger(__name__)


class _Neighbours:
    """The clients of one namespace and those of all: what readiness is judged by."""

    def __init__(self, store: Store, namespace: str, clock: Callable[[], float]) -> None:
        self.clients = Clients()
        self.news = asyncio.Event()
        self._clock = clock
        self._epochs: dict[str, str] = {}
        prefixes = (client_prefix(namespace), client_prefix(None))
        self.prefix_watches = [self._prefix_watch(store, prefix) for prefix in prefixes]

    @property
    def synced(self) -> bool:
        return len(self._epochs) == len(self.prefix_watches)

    def _prefix_watch(self, store: Store, prefix: str) -> PrefixWatch:
        def listed(epoch: str, snapshot: Snapshot) -> None:
            self._epochs[prefix] = epoch
            self.clients.snapshot(prefix, snapshot.entries, self._clock())
            self.news.set()

        def changed(changes: list[Change]) -> None:
            self.clients.change(changes, self._clock())
            self.news.set()

        return PrefixWatch(store, prefix, listed, changed)


class Registration:
    """One endpoint of this process, as the others see it."""

    def __init__(
        self, instance: Instance, lease_keeper: LeaseKeeper, neighbours: _Neighbours, clock: Callable[[], float]
    ) -> None:
        self._instance = instance
        self._lease_keeper, self._neighbours, self._clock = lease_keeper, neighbours, clock
        self._ready = False
        self._told: set[str] = set()
        self.leased = LeasedKey(instance_key(instance.key), encode_instance(instance), self._mine)

    @property
    def key(self) -> InstanceKey:
        return self._instance.key

    @property
    def instance(self) -> Instance:
        return self._instance

    @property
    def revision(self) -> int:
        """Return the store's revision at which the others learned of this instance; 0 before."""
        return self.leased.written.revision if self.leased.written else 0

    async def update(
        self,
        *,
        figures: Mapping[str, Any] | None = None,
        card: Mapping[str, Any] | None = None,
        draining: bool | None = None,
    ) -> bool:
        """Change what the others read; what is None stays. False: the store is away, it is written later."""
        changes: dict[str, Any] = {"figures": figures, "card": card, "draining": draining}
        given = {name: value for name, value in changes.items() if value is not None}
        self._instance = msgspec.structs.replace(self._instance, **given)
        self.leased.value = encode_instance(self._instance)
        return await self._written()

    async def withdraw(self) -> None:
        """Take the record out of the store; where that is away, the lease's end does it."""
        self.leased.value = None
        await self._written()
        self._lease_keeper.discard(self.leased)

    async def known_to_all(self, timeout: float) -> bool:
        """Wait until all clients have applied the last update; False where some have not within `timeout`."""
        try:
            async with asyncio.timeout(timeout):
                while not self._covered():
                    self._neighbours.news.clear()
                    await self._neighbours.news.wait()
        except TimeoutError:
            return False
        return True

    def _covered(self) -> bool:
        known = self._neighbours
        settled = known.synced and not self.leased.dirty
        return settled and known.clients.cover(self._lease_keeper.epoch, self.leased.revision)

    def readiness(self) -> Readiness:
        """Say whether every live frontend can route here. Latches; drain ends it."""
        if self._instance.draining or self.leased.value is None:
            return Readiness(False, ["this instance is leaving"])
        if self._ready:
            return Readiness(True, [])
        if self.leased.written is None or not self._neighbours.synced:
            return Readiness(False, [f"registering: {self._lease_keeper.away or 'the store has not answered yet'}"])
        readiness = self._neighbours.clients.judge(self._instance.id, self.leased.written, self._clock())
        self._report(readiness)
        self._ready = readiness.ready
        return readiness

    async def _written(self) -> bool:
        self._lease_keeper.wake(now=True)
        return await self.leased.settled(AWAY_WAIT if self._lease_keeper.away else UPDATE_WAIT)

    def _report(self, readiness: Readiness) -> None:
        for line in set(readiness.lagging) - self._told:
            log.warning("%s; it lags more than 10 s and is not waited for", line)
        self._told |= set(readiness.lagging)

    def _mine(self, record: bytes) -> bool:
        try:
            return msgspec.json.decode(record, type=Instance).nonce == self._instance.nonce
        except msgspec.DecodeError:
            return False


class Registry:
    """Registration and watch of one process, over a `Store` and a way to ping an instance."""

    def __init__(
        self,
        store: Store,
        ping: Ping,
        client_id: int,
        *,
        lease_ttl: float = 10.0,
        transport: str = "nats",
        host: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._ping, self._clock = store, ping, clock
        self._client_id, self._transport, self._host = client_id, transport, host
        self._nonce = secrets.token_hex(16)
        self._lease_keeper = LeaseKeeper(store, lease_ttl, self._replaced, clock)
        self._views: dict[str | None, InstanceView] = {}
        self._neighbours: dict[str, _Neighbours] = {}
        self._prefix_watches: list[PrefixWatch] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False

    @property
    def store_away(self) -> str:
        """Return why the store can't be used now; empty while it can."""
        return self._lease_keeper.away

    async def register(
        self,
        key: InstanceKey,
        *,
        card: Mapping[str, Any] | None = None,
        figures: Mapping[str, Any] | None = None,
        timeout: float = FIRST_WRITE,
    ) -> Registration:
        """Make an endpoint of this process known; `IdTaken` where another process has the id."""
        instance = Instance(
            **key.path._asdict(), id=key.id, nonce=self._nonce, transport=self._transport, host=self._host,
            figures=dict(figures or {}), card=None if card is None else dict(card),
        )  # fmt: skip
        registration = Registration(instance, self._lease_keeper, self._neighbours_of(key.path.namespace), self._clock)
        self._add(registration.leased)
        if not await registration.leased.settled(timeout):
            self._lease_keeper.discard(registration.leased)
            raise CannotConnect(f"{key.path} could not be registered within {timeout:.0f} s: {self._lease_keeper.away}")
        return registration

    async def put(self, key: str, value: bytes, timeout: float = FIRST_WRITE) -> None:
        """Write a key of the program's own, which vanishes with this process. Raises `CannotConnect`, `LeaseLost`."""
        self._start()
        await self._store.put(key, value, await self._lease_keeper.lease(timeout))

    async def put_new(self, key: str, value: bytes, timeout: float = FIRST_WRITE) -> tuple[bool, bytes | None]:
        """Put a key that is absent: returns whether it was, else its value. In one step: no half of it stays."""
        self._start()
        written, _, present = await self._store.put_if(key, value, None, await self._lease_keeper.lease(timeout))
        return written, present

    async def watch(self, namespace: str | None, kind: str = "other") -> InstanceView:
        """Watch the instances of a namespace (None: of all). One view per namespace, shared by all who ask."""
        view = self._views.get(namespace)
        if view is None:
            view = InstanceView(self._store, namespace, self._client_id, self._clock, self._ping, self._settle)
            self._views[namespace] = view
            self._add(view.leased)
            self._prefix_watches.append(view.prefix_watch)
            self._spawn(view.prefix_watch.run(), f"follow instances of {namespace or 'all namespaces'}")
            self._spawn(view.confirm(), f"confirm instances of {namespace or 'all namespaces'}")
        if kind == FRONTEND:
            view.kind = FRONTEND
            view.publish()
        return view

    def observe(self, key: InstanceKey, verdict: Verdict) -> None:
        """Take what traffic learned of an instance."""
        for view in self._views.values():
            view.observe(key, verdict)

    async def stop_watching(self) -> None:
        """End everything but the lease; workers are told that this client goes, and so don't wait for it."""
        await self._say_goodbye()
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _say_goodbye(self) -> None:
        for view in self._views.values():
            view.leave()
        self._lease_keeper.wake(now=True)
        for view in self._views.values():
            if not await view.leased.settled(AWAY_WAIT):
                return  # the store is away: the lease's end says it

    async def stop(self, timeout: float = 2.0) -> None:
        """End everything; what this process has written vanishes with its lease."""
        await self.stop_watching()
        await self._lease_keeper.release(timeout)

    def _add(self, key: LeasedKey) -> None:
        self._lease_keeper.add(key)
        self._start()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._spawn(self._lease_keeper.run(), "keep the lease")

    def _neighbours_of(self, namespace: str) -> _Neighbours:
        neighbours = self._neighbours.get(namespace)
        if neighbours is None:
            neighbours = self._neighbours[namespace] = _Neighbours(self._store, namespace, self._clock)
            self._prefix_watches += neighbours.prefix_watches
            for prefix_watch in neighbours.prefix_watches:
                self._spawn(prefix_watch.run(), f"follow clients of {namespace}")
        return neighbours

    def _settle(self, effects: list[Effect], now: bool) -> None:
        """Settle effects of a view that concern the whole process, and a key of its own to be written (`now`)."""
        for effect in effects:
            if isinstance(effect, Replaced):
                self._lease_keeper.recheck()
            elif isinstance(effect, Malformed):
                log.warning("Ignoring the record %s in etcd: %s", effect.key, effect.reason)
        self._lease_keeper.gap = write_gap(max((view.size for view in self._views.values()), default=0))
        self._lease_keeper.wake(now=now)

    def _replaced(self) -> None:
        for prefix_watch in self._prefix_watches:
            prefix_watch.relist()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("membership stopped working (%s)", task.get_name(), exc_info=error)
