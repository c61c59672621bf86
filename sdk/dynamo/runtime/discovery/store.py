"""The two ports of the runtime: a bus for messages, a store for membership.

Both are small on purpose: the protocol (numbered frames, acceptance, heartbeats,
membership) lives above them once, in pure modules, and runs the same over NATS
and etcd as over memory. `tests/runtime/test_bus_contract.py` and
`test_store_contract.py` are the contract; every adapter passes them.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Protocol

from dynamo.runtime.errors import DynamoException


class Verdict(enum.Enum):
    """What a ping, or the lack of traffic, says of an instance."""

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
    """What `Bus.subscribe` gives back."""

    async def unsubscribe(self) -> None:
        """Stop, and return once the server knows (nothing arrives afterwards)."""


class Bus(Protocol):
    """At-most-once publish and subscribe. Loss is possible; the layer above makes it visible."""

    @property
    def max_payload(self) -> int:
        """Bytes that one message may hold."""

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
        """`listener(connected)` at each change."""


class Entry(NamedTuple):
    """A key with its value and the revision at which it was last written."""

    key: str
    value: bytes
    revision: int


class Snapshot(NamedTuple):
    """All entries of a prefix at one revision of the store."""

    revision: int
    entries: list[Entry]


class Change(NamedTuple):
    """A key that was written, or deleted where `value` is None."""

    key: str
    value: bytes | None
    revision: int


class Compacted(DynamoException):
    """The store no longer has the revision that a watch asked for: list again."""

    code = "compacted"
    retryable = True


class LeaseLost(DynamoException):
    """The lease that a write names is gone: take a new one and write again."""

    code = "lease_lost"
    retryable = True


class Lease(Protocol):
    """The guard of a process's keys: they vanish when it is no longer kept alive."""

    @property
    def id(self) -> int: ...

    @property
    def alive(self) -> bool:
        """False once the store said that the lease is gone."""

    async def keep_alive(self) -> bool:
        """Renew once; False where the lease is gone. Raises `CannotConnect`."""

    async def revoke(self) -> None: ...


class Store(Protocol):
    """An ordered key-value store with leases and watches (the part of etcd that we use)."""

    async def connect(self) -> None:
        """Reach the store, retrying with a log line that says what is waited for."""

    async def close(self) -> None: ...

    async def grant(self, ttl: float) -> Lease:
        """A new lease of `ttl` seconds. Raises `CannotConnect`."""

    async def put(self, key: str, value: bytes, lease: Lease | None = None) -> int:
        """Write; returns the revision. Raises `LeaseLost`, `CannotConnect`."""

    async def put_if(
        self, key: str, value: bytes, expected: bytes | None, lease: Lease | None = None
    ) -> tuple[bool, int, bytes | None]:
        """Write where the present value equals `expected` (None: the key is absent).

        Returns `(written, revision, value found)`; the value found is None where the key was absent.
        """

    async def delete(self, key: str) -> None: ...

    async def read(self, prefix: str) -> Snapshot: ...

    def watch(self, prefix: str, start_revision: int) -> AsyncIterator[list[Change]]:
        """Changes from `start_revision` on, in order, in batches of one revision or more.

        Raises `Compacted`, or `CannotConnect` where the connection is lost (open it again
        from the last revision + 1).
        """
