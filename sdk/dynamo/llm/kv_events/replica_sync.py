"""What this router has sent, told to the others, and what they say counted: the shell around
`dynamo.llm.kv_events.replica_protocol`.

One channel per Dynamo namespace that has instances of a kv-routed model. What happens in one turn of the loop leaves as
one message; a beat every second says what still runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.messages import UNREADABLE
from dynamo.llm.kv.scheduler import KvScheduler
from dynamo.llm.kv_events.replica_protocol import (
    BEAT_SECONDS,
    PATIENCE,
    VERSION,
    ReplicaReceiver,
    ReplicaSender,
    decode_message,
)
from dynamo.runtime.errors import CannotConnect, InvalidArgument
from dynamo.runtime.names import InstanceKey, router_subject
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.runtime.transport.bus import Bus, Message, Subscription, leave

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 1.0
"""Between two attempts to listen."""


class Shared(Protocol):
    """A request, as the others hear of it."""

    def prefilled(self) -> None: ...

    def freed(self) -> None: ...


class Sharing(Protocol):
    """Listener that tells them (`ReplicaSync`)."""

    def sent(self, rank: Rank, hashes: Sequence[int], to_prefill: int) -> Shared | None: ...


class Routing(Protocol):
    """Routing whose requests are told."""

    @property
    def router(self) -> KvScheduler: ...


class _Sent:
    """One request."""

    __slots__ = ("_channel", "_number")

    def __init__(self, channel: _Channel, number: int) -> None:
        self._channel, self._number = channel, number

    def prefilled(self) -> None:
        self._channel.sender.prefilled(self._number)
        self._channel.flush_soon()

    def freed(self) -> None:
        self._channel.sender.freed(self._number)
        self._channel.flush_soon()


class _Channel:
    """One namespace. `run` is its task."""

    def __init__(self, bus: Bus, namespace: str, client: int, clock: Callable[[], float], patience: float) -> None:
        self._bus, self._namespace, self._clock = bus, namespace, clock
        self._subject = router_subject(namespace, client)
        self.routings: dict[int, Routing] = {}
        self.sender = ReplicaSender(client)
        self.receiver = ReplicaReceiver(client, self._router_of, patience)
        self.task: asyncio.Task[None] | None = None
        self._flushing = False
        self._complained = False

    def sent(self, rank: Rank, hashes: Sequence[int], to_prefill: int) -> _Sent:
        made = _Sent(self, self.sender.added(rank, hashes, to_prefill))
        self.flush_soon()
        return made

    def flush_soon(self) -> None:
        """Say at the end of this turn of the loop what has happened in it."""
        if self.sender.pending and not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    async def run(self, beat_seconds: float) -> None:
        """Listen and beat until cancelled; then say farewell."""
        subscription: Subscription | None = None
        try:
            while subscription is None:
                try:
                    subscription = await self._bus.subscribe(
                        router_subject(self._namespace, "*"), self._on_message, lambda: None
                    )
                except CannotConnect as error:
                    log.warning("Can't subscribe to what other routers send: %s", error)
                    await asyncio.sleep(AGAIN_SECONDS)
            while True:
                self._beat()
                await asyncio.sleep(beat_seconds)
        finally:
            self._publish(self.sender.farewell())
            self.receiver.expire(float("inf"))
            if subscription is not None:
                await leave(subscription)

    def _router_of(self, instance: int) -> KvScheduler | None:
        routing = self.routings.get(instance)
        return None if routing is None else routing.router

    def _beat(self) -> None:
        self.receiver.expire(self._clock())
        if self.sender.listened and not len(self.receiver):
            self.sender.silence()
        self._flush()
        self._publish(self.sender.beat())

    def _flush(self) -> None:
        self._flushing = False
        if self.sender.pending:
            for data in self.sender.take(self._bus.max_payload):
                self._publish(data)

    def _publish(self, data: bytes) -> None:
        try:
            self._bus.publish(self._subject, data)
        except (CannotConnect, InvalidArgument) as error:  # the next beat mends what matters
            log.debug("the other frontends could not be told: %s", error)

    def _on_message(self, message: Message) -> None:
        if message.subject == self._subject:
            return  # its own
        try:
            news = decode_message(message.data)
            if news.version != VERSION:
                raise ValueError(f"its version is {news.version}, not {VERSION}")
            new = self.receiver.heard(news, self._clock())
        except UNREADABLE as error:
            if not self._complained:
                self._complained = True
                log.warning("unreadable message on %s: %s (said once)", message.subject, error)
            return
        if new:
            self.sender.everything()
            self._beat()


class ReplicaSync:
    """Tell other routers what this one sent; its owner says who joins and leaves, and `stop` ends its tasks."""

    def __init__(
        self, bus: Bus, client: int, *, clock: Callable[[], float] = time.monotonic,
        beat_seconds: float = BEAT_SECONDS, patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        self._bus, self._client, self._clock = bus, client, clock
        self._beat_seconds, self._patience = beat_seconds, patience
        self._channels: dict[str, _Channel] = {}
        self._of: dict[int, _Channel] = {}
        self._tasks = TaskOwner(log)

    def joined(self, key: InstanceKey, routing: Routing) -> None:
        """Note that an instance is there that `routing` routes to."""
        namespace = key.path.namespace
        channel = self._channels.get(namespace)
        if channel is None:
            channel = _Channel(self._bus, namespace, self._client, self._clock, self._patience)
            self._channels[namespace] = channel
            channel.task = self._tasks.start(channel.run(self._beat_seconds), f"kv sharing in {namespace}")
        channel.routings[key.id] = routing
        self._of[key.id] = channel

    def left(self, key: InstanceKey) -> None:
        """Note that it is gone."""
        channel = self._of.pop(key.id, None)
        if channel is None:
            return
        channel.routings.pop(key.id, None)
        if not channel.routings:
            self._channels.pop(key.path.namespace, None)
            if channel.task is not None:
                channel.task.cancel()

    def sent(self, rank: Rank, hashes: Sequence[int], to_prefill: int) -> _Sent | None:
        """Note that a request goes to `rank`; the result hears how it goes on."""
        channel = self._of.get(rank.instance)
        return None if channel is None else channel.sent(rank, hashes, to_prefill)

    @property
    def peers(self) -> int:
        """Count the frontends that are heard, in all namespaces."""
        return sum(len(channel.receiver) for channel in self._channels.values())

    async def stop(self) -> None:
        """Tell and hear nothing more."""
        self._of.clear()
        self._channels.clear()
        self._tasks.cancel()
        await self._tasks.ended()
