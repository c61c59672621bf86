"""Who serves what: registration of one's own endpoints, and the view of everybody else's.

The shell around `_membership` and `_readiness`: `Endpoint.start` registers here,
`Client` and the frontend's model pool read an `InstanceView`. While the store is away
everything goes on from what is known; `_keeper` writes again when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from dynamo.runtime._follow import Follower
from dynamo.runtime._keeper import IdTaken, Keeper, LeasedKey
from dynamo.runtime._membership import (
    FRONTEND,
    Effect,
    Instance,
    Malformed,
    Replaced,
    encode_instance,
)
from dynamo.runtime._readiness import Clients, Readiness
from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.names import InstanceKey, client_prefix, instance_key
from dynamo.runtime.ports import Change, Snapshot, Store, Verdict
from dynamo.runtime.view import InstanceListener, InstanceView

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
        self.followers = [self._follower(store, prefix) for prefix in prefixes]

    @property
    def synced(self) -> bool:
        return len(self._epochs) == len(self.followers)

    def _follower(self, store: Store, prefix: str) -> Follower:
        def listed(epoch: str, snapshot: Snapshot) -> None:
            self._epochs[prefix] = epoch
            self.clients.snapshot(prefix, snapshot.entries, self._clock())
            self.news.set()

        def changed(changes: list[Change]) -> None:
            self.clients.change(changes, self._clock())
            self.news.set()

        return Follower(store, prefix, listed, changed)


class Registration:
    """One endpoint of this process, as the others see it."""

    def __init__(self, instance: Instance, keeper: Keeper, neighbours: _Neighbours, clock: Callable[[], float]) -> None:
        self._instance = instance
        self._keeper, self._neighbours, self._clock = keeper, neighbours, clock
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
        """The store's revision at which the others learned of this instance; 0 before."""
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
        self._keeper.discard(self.leased)

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
        return settled and known.clients.cover(self._keeper.epoch, self.leased.revision)

    def readiness(self) -> Readiness:
        """Can every live frontend route here? Latches; drain ends it."""
        if self._instance.draining or self.leased.value is None:
            return Readiness(False, ["this instance is leaving"])
        if self._ready:
            return Readiness(True, [])
        if self.leased.written is None or not self._neighbours.synced:
            return Readiness(False, [f"registering: {self._keeper.away or 'the store has not answered yet'}"])
        found = self._neighbours.clients.judge(self._instance.id, self.leased.written, self._clock())
        self._report(found)
        self._ready = found.ready
        return found

    async def _written(self) -> bool:
        self._keeper.wake(now=True)
        return await self.leased.settled(AWAY_WAIT if self._keeper.away else UPDATE_WAIT)

    def _report(self, found: Readiness) -> None:
        for line in set(found.lagging) - self._told:
            log.warning("%s; it lags more than 10 s and is not waited for", line)
        self._told |= set(found.lagging)

    def _mine(self, found: bytes) -> bool:
        try:
            return msgspec.json.decode(found, type=Instance).nonce == self._instance.nonce
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
        self._keeper = Keeper(store, lease_ttl, self._replaced, clock)
        self._views: dict[str | None, InstanceView] = {}
        self._neighbours: dict[str, _Neighbours] = {}
        self._followers: list[Follower] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False

    @property
    def store_away(self) -> str:
        """Why the store can't be used now; empty while it can."""
        return self._keeper.away

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
        registration = Registration(instance, self._keeper, self._neighbours_of(key.path.namespace), self._clock)
        self._add(registration.leased)
        if not await registration.leased.settled(timeout):
            self._keeper.discard(registration.leased)
            raise CannotConnect(f"{key.path} could not be registered within {timeout:.0f} s: {self._keeper.away}")
        return registration

    async def put(self, key: str, value: bytes, timeout: float = FIRST_WRITE) -> None:
        """Write a key of the program's own, which vanishes with this process. Raises `CannotConnect`, `LeaseLost`."""
        self._start()
        await self._store.put(key, value, await self._keeper.lease(timeout))

    async def put_new(self, key: str, value: bytes, timeout: float = FIRST_WRITE) -> tuple[bool, bytes | None]:
        """The same where the key is absent: whether it was, else its value. In one step: no half of it stays."""
        self._start()
        written, _, found = await self._store.put_if(key, value, None, await self._keeper.lease(timeout))
        return written, found

    async def watch(self, namespace: str | None, kind: str = "other") -> InstanceView:
        """The instances of a namespace (None: of all). One view per namespace, shared by all who ask."""
        view = self._views.get(namespace)
        if view is None:
            view = InstanceView(self._store, namespace, self._client_id, self._clock, self._ping, self._settle)
            self._views[namespace] = view
            self._add(view.leased)
            self._followers.append(view.follower)
            self._spawn(view.follower.run(), f"follow instances of {namespace or 'all namespaces'}")
            self._spawn(view.confirm(), f"confirm instances of {namespace or 'all namespaces'}")
        if kind == FRONTEND:
            view.kind = FRONTEND
            view.publish()
        return view

    def observe(self, key: InstanceKey, verdict: Verdict) -> None:
        """What traffic learned of an instance."""
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
        self._keeper.wake(now=True)
        for view in self._views.values():
            if not await view.leased.settled(AWAY_WAIT):
                return  # the store is away: the lease's end says it

    async def stop(self, timeout: float = 2.0) -> None:
        """End everything; what this process has written vanishes with its lease."""
        await self.stop_watching()
        await self._keeper.release(timeout)

    def _add(self, key: LeasedKey) -> None:
        self._keeper.add(key)
        self._start()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._spawn(self._keeper.run(), "keep the lease")

    def _neighbours_of(self, namespace: str) -> _Neighbours:
        found = self._neighbours.get(namespace)
        if found is None:
            found = self._neighbours[namespace] = _Neighbours(self._store, namespace, self._clock)
            self._followers += found.followers
            for follower in found.followers:
                self._spawn(follower.run(), f"follow clients of {namespace}")
        return found

    def _settle(self, effects: list[Effect], now: bool) -> None:
        """Effects of a view that concern the whole process, and a key of its own to be written (`now`)."""
        for effect in effects:
            if isinstance(effect, Replaced):
                self._keeper.recheck()
            elif isinstance(effect, Malformed):
                log.warning("the record %s is left out: %s", effect.key, effect.reason)
        self._keeper.wake(now=now)

    def _replaced(self) -> None:
        for follower in self._followers:
            follower.relist()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("membership stopped working (%s)", task.get_name(), exc_info=error)
