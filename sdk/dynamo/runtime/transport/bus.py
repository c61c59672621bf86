"""The two ports of the runtime: a bus for messages, a store for membership.

Both are small on purpose: the protocol (numbered frames, acceptance, heartbeats,
membership) lives above them once, in pure modules, and runs the same over NATS
and etcd as over memory. `tests/runtime/transport/test_bus_contract.py` and
`test_store_contract.py` are the contract; every adapter passes them.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from dynamo.runtime.errors import CannotConnect


class Verdict(enum.Enum):
    """Verdict on an instance, by a ping or by the lack of traffic."""

    ALIVE = "alive"
    DEAD = "dead"
    """Nobody listens on its subjects."""
    SILENT = "silent"
    """No answer in time: not picked; dead after 5 s of it."""


class Message(NamedTuple):
    """One message as it arrived. `no_responders`: the bus says that nobody listens (`data` is empty)."""

    subject: str
    data: bytes
    reply: str = ""
    no_responders: bool = False


OnMessage = Callable[[Message], None]
"""Called on the event loop, in order of arrival per subscription; must not block and must not raise."""


class Subscription(Protocol):
    """Subscription that `Bus.subscribe` gives back."""

    async def unsubscribe(self) -> None:
        """Stop, and return once the server knows (nothing arrives afterwards)."""


class Bus(Protocol):
    """At-most-once publish and subscribe. Loss is possible; the layer above makes it visible."""

    @property
    def max_payload(self) -> int:
        """Return how many bytes one message may hold."""

    @property
    def connected(self) -> bool: ...

    async def connect(self) -> None:
        """Connect, retrying with a log line that says what is waited for."""

    async def close(self) -> None: ...

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Hand one message to the server, without waiting.

        Raises `CannotConnect` while disconnected (nothing is buffered across an outage)
        and `InvalidArgument` where `data` is over `max_payload`.
        """

    async def flush(self) -> None:
        """Return when the server has seen all that was published before. Raises `CannotConnect`."""

    async def subscribe(self, subject: str, on_message: OnMessage, on_loss: Callable[[], None]) -> Subscription:
        """Listen; active on the server when this returns, and again after each reconnect.

        `on_loss` is called where messages of this subscription may have been dropped
        (slow reader, reconnect).
        """

    def on_state(self, listener: Callable[[bool], None]) -> None:
        """Call `listener(connected)` at each change."""


async def leave(subscription: Subscription) -> None:
    """Unsubscribe; a bus that is away has forgotten it."""
    try:
        await subscription.unsubscribe()
    except CannotConnect:
        logging.getLogger(__name__).debug("left while the bus was away")
