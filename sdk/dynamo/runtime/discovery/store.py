"""The store port: keys under leases, listed and watched. Adapters: `etcd.py` and `memory.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from dynamo.runtime.errors import DynamoException


class Entry(NamedTuple):
    """A key with its value and the revision at which it was last written."""

    key: str
    value: bytes
    revision: int


class Snapshot(NamedTuple):
    """Snapshot of all entries of a prefix at one revision of the store."""

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
        """Tell whether the lease is there; false once the store said that it is gone."""

    async def keep_alive(self) -> bool:
        """Renew once; False where the lease is gone. Raises `CannotConnect`."""

    async def revoke(self) -> None: ...


class Store(Protocol):
    """An ordered key-value store with leases and watches (the part of etcd that we use)."""

    async def connect(self) -> None:
        """Reach the store, retrying with a log line that says what is waited for."""

    async def close(self) -> None: ...

    async def grant(self, ttl: float) -> Lease:
        """Make a new lease of `ttl` seconds. Raises `CannotConnect`."""

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

    async def read_keys(self, keys: Sequence[str]) -> Snapshot:
        """Return those of the keys that are there, in the order asked for; up to a hundred at one revision.

        At least one key must be asked for. Raises `CannotConnect`.
        """

    def watch(self, prefix: str, start_revision: int) -> AsyncIterator[list[Change]]:
        """Yield changes from `start_revision` on, in order, in batches of one revision or more.

        Raises `Compacted`, or `CannotConnect` where the connection is lost (open it again from the last
        revision + 1).
        """
