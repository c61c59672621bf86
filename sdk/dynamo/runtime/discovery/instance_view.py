"""The instances that a process may route to, kept up to date: the shell of `membership`.

`Registry.watch` makes one per namespace. `Client` picks from `routable`; the frontend's
model pool listens. What has been applied is published in the client's own key, which is
what makes workers Ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from dynamo.runtime.discovery.lease import LeasedKey
from dynamo.runtime.discovery.membership import Changed, Effect, Instance, Joined, Left, Membership
from dynamo.runtime.discovery.prefix_watch import PrefixWatch
from dynamo.runtime.discovery.store import Change, Snapshot, Store
from dynamo.runtime.errors import CannotConnect, DynamoException
from dynamo.runtime.names import EndpointPath, InstanceKey, client_key, instance_prefix
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.runtime.transport.bus import Verdict

PINGS_AT_ONCE: Final = 64

log = logging.getLogger(__name__)


class InstanceListener(Protocol):
    """Told of every change, on the loop; must not block. A `pending` said in here is published with the change."""

    def joined(self, instance: Instance) -> None: ...

    def changed(self, instance: Instance) -> None: ...

    def left(self, key: InstanceKey) -> None: ...


class InstanceView:
    """Follow the instances that a process may route to; `Registry.watch` makes a view per namespace.

    What has been applied is published in the client's own key, which is what makes workers Ready. The registry runs
    `prefix_watch` and `confirm`.
    """

    version: int = 0
    """Grows whenever `routable` may answer otherwise."""

    def __init__(
        self,
        store: Store,
        namespace: str | None,
        client_id: int,
        clock: Callable[[], float],
        ping: Callable[[InstanceKey], Awaitable[Verdict]],
        settle: Callable[[list[Effect], bool], None],
    ) -> None:
        self.kind = "other"
        self._clock, self._ping, self._settle = clock, ping, settle
        self._known = Membership()
        self._held = 0
        """Blocks of `batch` that are open."""
        self._listeners: list[InstanceListener] = []
        self._news = asyncio.Event()
        self._pings_due = asyncio.Event()
        self._pings = TaskOwner(log)
        self.leased = LeasedKey(client_key(namespace, client_id), b"")
        self.leased.value = None
        self.prefix_watch = PrefixWatch(store, instance_prefix(namespace), self._listed, self._changed)

    @property
    def instances(self) -> Mapping[InstanceKey, Instance]:
        """Return all instances that serve: neither draining nor confirmed gone."""
        return self._known.instances

    @property
    def size(self) -> int:
        """Return how many instances it knows, those that leave among them; cheaper than to ask for all of them."""
        return self._known.size

    @property
    def synced(self) -> bool:
        """Tell whether the first list is applied and the client's key written: requests may be sent."""
        return bool(self._known.epoch) and self.leased.written is not None

    def serves(self, key: InstanceKey) -> bool:
        """Tell whether it is one of `instances`; cheaper than to ask for all of them."""
        return self._known.serves(key)

    def routable(self, path: EndpointPath) -> list[InstanceKey]:
        """Return the instances of an endpoint that may be picked: those that traffic doesn't call dead or silent."""
        return self._known.routable(path)

    async def wait_synced(self, timeout: float = 120.0) -> None:
        """Wait; raises `CannotConnect` where the store doesn't answer in time."""
        try:
            async with asyncio.timeout(timeout):
                while not self._known.epoch:
                    await self.wait_news()
                synced = await self.leased.settled(timeout) or self.synced
        except TimeoutError:
            synced = False
        if not synced:
            raise CannotConnect(f"the instances could not be read from the store within {timeout:.0f} s")

    async def wait_news(self) -> None:
        """Return after the next change of any kind."""
        self._news.clear()
        await self._news.wait()

    def listen(self, listener: InstanceListener) -> Callable[[], None]:
        """Tell `listener` what is there and what happens; call the result to stop."""
        self._listeners.append(listener)
        with self.batch():
            for instance in self._known.instances.values():
                self._tell(listener, Joined(instance))
        return lambda: self._listeners.remove(listener)

    def pending(self, key: InstanceKey) -> None:
        """Note that this client is still loading what the instance needs: it is not Ready for it yet."""
        self._known.failed.pop(key, None)
        self._known.pending.add(key)
        self.publish()

    def loaded(self, key: InstanceKey) -> None:
        """Note that this client can route to the instance."""
        self._known.pending.discard(key)
        self._known.failed.pop(key, None)
        self.publish()

    def failed(self, key: InstanceKey, reason: str) -> None:
        """Note that this client can't use the instance; its `/health` says so."""
        self._known.pending.discard(key)
        self._known.failed[key] = reason
        self.publish()

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Publish what is said in the block once, at its end.

        What is published lists all that are pending: a thousand that come together would cost a million steps.
        """
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self.publish()

    def publish(self) -> None:
        """Have the client's key written, if it has changed."""
        if self._held or not self._known.epoch:
            return
        value = msgspec.json.encode(self._known.acknowledgement(self.kind))
        if value != self.leased.value:
            self.leased.value = value
            self._settle([], self.leased.written is None)

    def leave(self) -> None:
        """Have the client's key say that it goes, if it has one."""
        self._known.leaving = True
        if self.leased.value is not None:
            self.publish()

    def observe(self, key: InstanceKey, verdict: Verdict | None) -> None:
        """Take what a ping or traffic said of an instance."""
        self._apply(self._known.verdict(key, verdict, self._clock()))

    async def confirm(self) -> None:
        """Ping what is unconfirmed or suspended, until cancelled."""
        try:
            while True:
                self._pings_due.clear()
                self._start_pings()
                due = self._known.next_ping()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if due is None else max(due - self._clock(), 0.01)):
                        await self._pings_due.wait()
        finally:
            self._pings.cancel()

    def _start_pings(self) -> None:
        for key in self._known.due_pings(self._clock()):
            if len(self._pings) < PINGS_AT_ONCE:
                self._pings.start(self._ask(key), f"ping {key.path}")

    async def _ask(self, key: InstanceKey) -> None:
        try:
            verdict: Verdict | None = await self._ping(key)
        except DynamoException as error:
            log.debug("%s could not be pinged: %s", key.path, error)
            verdict = None
        self.observe(key, verdict)

    def _listed(self, epoch: str, snapshot: Snapshot) -> None:
        self._apply(self._known.snapshot(epoch, snapshot.revision, snapshot.entries, self._clock()))

    def _changed(self, changes: list[Change]) -> None:
        self._apply(self._known.change(changes, self._clock()))

    def _apply(self, effects: list[Effect]) -> None:
        self.version = self._known.version
        with self.batch():
            for effect in effects:
                for listener in list(self._listeners):
                    self._tell(listener, effect)
            self._settle(effects, False)
        self._news.set()
        if self._known.next_ping() is not None:
            self._pings_due.set()

    def _tell(self, listener: InstanceListener, effect: Effect) -> None:
        try:
            match effect:
                case Joined(instance):
                    listener.joined(instance)
                case Changed(instance):
                    listener.changed(instance)
                case Left(key):
                    listener.left(key)
        except Exception:  # a listener's bug must not end membership for everybody else
            log.exception("a listener failed on %s", type(effect).__name__)
