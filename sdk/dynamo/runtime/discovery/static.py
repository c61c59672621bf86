"""Workers found over the bus alone: `dynamo_worker(static=True)`, for programs of 2025 that run without etcd.

A process of this kind keeps its records in a store of its own. Who serves an endpoint answers on a subject of the
endpoint's with that record; who calls it asks there now and then, and puts what it hears into its own store, from where
the registry reads it as it reads etcd. Who doesn't answer three times is taken out, and confirmed by a ping as ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from dynamo.runtime.discovery.instance_view import InstanceView
from dynamo.runtime.discovery.lease import LeasedKey
from dynamo.runtime.discovery.membership import Instance
from dynamo.runtime.discovery.store import Store
from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.names import EndpointPath, hex_id, instance_key
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.runtime.transport.bus import Bus, Message, Subscription, leave

ASK_EVERY: Final = 1.0
ASK_OFTEN: Final = 0.1
"""Seconds between two questions while nobody is known."""
LOST_AFTER: Final = 3.5
"""Seconds without an answer after which a worker is taken out."""
FIRST_LOOK: Final = 1.0
"""Seconds that a new client waits for the first answer."""
MAX_WORKERS: Final = 1024
"""Per endpoint."""

log = logging.getLogger(__name__)


def who_subject(path: EndpointPath) -> str:
    """Return the subject where those who serve an endpoint are asked for."""
    return f"dyn.{path.namespace}.ep.{path.component}.{path.endpoint}.who"


def here_subject(path: EndpointPath, client: int) -> str:
    """Return the subject where they answer one client."""
    return f"dyn.{path.namespace}.in.{hex_id(client)}.here.{path.component}.{path.endpoint}"


class StaticWorkers:
    """Workers that say what they are and hear of each other, over one bus."""

    def __init__(
        self, bus: Bus, store: Store, client: int, own: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin; `store` is this process's own; `client` and `own` are its ids as a client and as an instance."""
        self._bus, self._store, self._client, self._own, self._clock = bus, store, client, own, clock
        self._tasks = TaskOwner(log)
        self._subscriptions: list[Subscription] = []
        self._looking: set[EndpointPath] = set()

    async def answer_for(self, path: EndpointPath, record: LeasedKey) -> None:
        """Tell whoever asks for `path` the record as it is then; once it is withdrawn, nothing."""

        def asked(message: Message) -> None:
            if record.value is not None and message.reply:
                self._publish(message.reply, record.value)

        self._subscriptions.append(await self._bus.subscribe(who_subject(path), asked, lambda: None))

    async def look_for(self, path: EndpointPath, view: InstanceView) -> None:
        """Ask for `path` from now on; returns when somebody is known, or after a moment."""
        if path not in self._looking:
            self._looking.add(path)
            looking = _Looking(path, self._own, self._clock)
            here = here_subject(path, self._client)
            self._subscriptions.append(await self._bus.subscribe(here, looking.heard, lambda: None))
            self._tasks.start(self._look(path, looking), f"look for {path}")
        try:
            async with asyncio.timeout(FIRST_LOOK):
                while not view.routable(path):
                    await view.wait_news()
        except TimeoutError:
            log.info("nobody serves %s yet; it is looked for", path)

    async def stop(self) -> None:
        """End everything."""
        self._tasks.cancel()
        await self._tasks.ended()
        for subscription in self._subscriptions:
            await leave(subscription)

    async def _look(self, path: EndpointPath, looking: _Looking) -> None:
        while True:
            self._publish(who_subject(path), b"", here_subject(path, self._client))
            await asyncio.sleep(ASK_EVERY if looking.known else ASK_OFTEN)
            for key, value in looking.settle():
                if value is None:
                    await self._store.delete(key)
                else:
                    await self._store.put(key, value)

    def _publish(self, subject: str, data: bytes, reply: str = "") -> None:
        try:
            self._bus.publish(subject, data, reply)
        except CannotConnect:
            log.debug("the bus is away; asked again soon")


class _Looking:
    """Instances that were heard of at one endpoint. Pure, but for the clock that it is given."""

    def __init__(self, path: EndpointPath, own: int, clock: Callable[[], float]) -> None:
        self._path, self._own, self._clock = path, own, clock
        self._heard: dict[str, tuple[bytes, float]] = {}
        self._stored: dict[str, bytes] = {}

    @property
    def known(self) -> bool:
        """Tell whether somebody is known, as of the last `settle`."""
        return bool(self._stored)

    def heard(self, message: Message) -> None:
        """Note that somebody answered. What can't be read, or is of another endpoint, is left out."""
        if message.no_responders:
            return
        try:
            instance = msgspec.json.decode(message.data, type=Instance)
        except msgspec.DecodeError as error:
            log.debug("an answer for %s is left out: %s", self._path, error)
            return
        if instance.path != self._path or instance.id == self._own or len(self._heard) >= MAX_WORKERS:
            return
        self._heard[instance_key(instance.key)] = message.data, self._clock()

    def settle(self) -> list[tuple[str, bytes | None]]:
        """Return what has to be written since the last time: keys with their values, None for those that are gone."""
        oldest = self._clock() - LOST_AFTER
        self._heard = {key: entry for key, entry in self._heard.items() if entry[1] >= oldest}
        now = {key: value for key, (value, _) in self._heard.items()}
        gone: list[tuple[str, bytes | None]] = [(key, None) for key in self._stored.keys() - now.keys()]
        changed = [(key, value) for key, value in now.items() if self._stored.get(key) != value]
        self._stored = now
        return [*gone, *changed]
