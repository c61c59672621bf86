"""A bus inside one process: `dynamo-run` without infrastructure, and the tests' world.

Several `MemoryBus` share one `MemoryNetwork`, as clients share a NATS server. It
behaves like the real one where that matters: messages are bytes and arrive on a later
turn of the loop in order, nobody listening is reported to the reply subject, a
disconnected bus refuses to publish and misses what was sent meanwhile. Tests lose,
delay and cut on purpose through `drop`, `delay`, `disconnect` and `crash`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from dynamo.runtime.errors import CannotConnect, InvalidArgument
from dynamo.runtime.transport.bus import Message, OnMessage

_log = logging.getLogger(__name__)
DEFAULT_MAX_PAYLOAD = 1024 * 1024


class MemorySubscription:
    """One subject that one bus listens to; a last part `*` stands for any one part."""

    def __init__(self, bus: MemoryBus, subject: str, on_message: OnMessage, on_loss: Callable[[], None]) -> None:
        self.bus = bus
        self.subject = subject
        self.on_message = on_message
        self.on_loss = on_loss
        self.active = True

    async def unsubscribe(self) -> None:
        self.active = False
        self.bus.forget(self)


class MemoryNetwork:
    """Network that all buses of one world share."""

    def __init__(self, *, max_payload: int = DEFAULT_MAX_PAYLOAD) -> None:
        self.max_payload = max_payload
        self.drop: Callable[[str, bytes], bool] | None = None
        """Tests: True loses this message."""
        self.delay: Callable[[str, bytes], float] | None = None
        """Tests: seconds by which this message comes late (0: at once)."""
        self._subscriptions: dict[str, list[MemorySubscription]] = {}

    def bus(self) -> MemoryBus:
        """Make a new bus of this world, not yet connected."""
        return MemoryBus(self)

    def add(self, subscription: MemorySubscription) -> None:
        self._subscriptions.setdefault(subscription.subject, []).append(subscription)

    def remove(self, subscription: MemorySubscription) -> None:
        listeners = self._subscriptions.get(subscription.subject, [])
        if subscription in listeners:
            listeners.remove(subscription)
        if not listeners:
            self._subscriptions.pop(subscription.subject, None)

    def listeners(self, subject: str) -> list[MemorySubscription]:
        wildcard = subject.rpartition(".")[0] + ".*"
        subscriptions = self._subscriptions.get(subject, []) + self._subscriptions.get(wildcard, [])
        return [s for s in subscriptions if s.bus.connected]

    def route(self, message: Message) -> None:
        """Hand `message` to everybody who listens, or say to its reply subject that nobody does."""
        listeners = self.listeners(message.subject)
        if not listeners and message.reply:
            self._hand(self.listeners(message.reply), Message(message.reply, b"", "", True))
            return
        if self.drop is not None and self.drop(message.subject, message.data):
            return
        wait = self.delay(message.subject, message.data) if self.delay is not None else 0.0
        if wait > 0:
            asyncio.get_running_loop().call_later(wait, self._hand, listeners, message)
        else:
            self._hand(listeners, message)

    @staticmethod
    def _hand(listeners: list[MemorySubscription], message: Message) -> None:
        for subscription in listeners:
            subscription.bus.arrive(subscription, message)


class MemoryBus:
    """One participant of a `MemoryNetwork` (the port: `dynamo.runtime.transport.bus.Bus`)."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._connected = False
        self._arrived: deque[tuple[MemorySubscription, Message]] = deque()
        self._scheduled = False
        self._subscriptions: list[MemorySubscription] = []
        self._listeners: list[Callable[[bool], None]] = []

    @property
    def max_payload(self) -> int:
        return self._network.max_payload

    @property
    def connected(self) -> bool:
        return self._connected

    async def connect(self) -> None:
        self._set_connected(True)

    async def close(self) -> None:
        self.crash()

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if not self._connected:
            raise CannotConnect("the bus is disconnected")
        if len(data) > self.max_payload:
            raise InvalidArgument(f"a message of {len(data)} bytes is over the bus's limit of {self.max_payload}")
        self._network.route(Message(subject, data, reply))

    async def flush(self) -> None:
        if not self._connected:
            raise CannotConnect("the bus is disconnected")
        await asyncio.sleep(0)

    async def subscribe(self, subject: str, on_message: OnMessage, on_loss: Callable[[], None]) -> MemorySubscription:
        subscription = MemorySubscription(self, subject, on_message, on_loss)
        self._subscriptions.append(subscription)
        self._network.add(subscription)
        return subscription

    def on_state(self, listener: Callable[[bool], None]) -> None:
        self._listeners.append(listener)

    def disconnect(self) -> None:
        """Lose the connection, for tests; what was on its way to this bus is gone."""
        self._arrived.clear()
        self._set_connected(False)

    def reconnect(self) -> None:
        """Come back, for tests, with the subscriptions that it had."""
        self._set_connected(True)
        for subscription in tuple(self._subscriptions):
            subscription.on_loss()

    def crash(self) -> None:
        """Vanish without a word, for tests, as a killed process does."""
        self.disconnect()
        for subscription in tuple(self._subscriptions):
            subscription.active = False
            self.forget(subscription)

    def forget(self, subscription: MemorySubscription) -> None:
        self._network.remove(subscription)
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def arrive(self, subscription: MemorySubscription, message: Message) -> None:
        """Take `message` in; it is handled on the next turn of the loop with all others that came."""
        self._arrived.append((subscription, message))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._handle)

    def _handle(self) -> None:
        self._scheduled = False
        for _ in range(len(self._arrived)):
            if not self._arrived:
                return
            subscription, message = self._arrived.popleft()
            if subscription.active:
                self._call(subscription, message)
        if self._arrived and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._handle)

    @staticmethod
    def _call(subscription: MemorySubscription, message: Message) -> None:
        try:
            subscription.on_message(message)
        except Exception:  # a listener's mistake must not lose the messages behind it
            _log.exception("a listener of %s failed", subscription.subject)

    def _set_connected(self, connected: bool) -> None:
        if connected == self._connected:
            return
        self._connected = connected
        for listener in tuple(self._listeners):
            listener(connected)
