"""A program's own keys: what `runtime.etcd_client()` and `EtcdKvCache` were to programs of 2025.

They lie in the store that the runtime has, under the names that the program gives; without a lease of another's, a key
lives as long as this process, as there. New programs keep their settings where their other settings are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from dynamo.runtime.errors import DynamoException, InvalidArgument

if TYPE_CHECKING:
    from dynamo.runtime.discovery.registry import Registry
    from dynamo.runtime.discovery.store import Store
    from dynamo.runtime.endpoint import Served

OURS: Final = "dynamo/"
"""Keys of the runtime's own."""


class KeysOwner(Protocol):
    """The part of a runtime that a program's own keys need."""

    id: int

    @property
    def store(self) -> Store:
        """Return where keys are kept."""

    @property
    def registry(self) -> Registry:
        """Return what keeps keys under the process's lease."""

    @property
    def served(self) -> list[Served]:
        """Return the endpoints of this process."""

    async def ready(self) -> None:
        """Wait until the store can be asked."""


class EtcdClient:
    """Read and write a program's own keys; `runtime.etcd_client()` makes it."""

    def __init__(self, runtime: KeysOwner) -> None:
        self._runtime = runtime

    def primary_lease_id(self) -> int:
        """Return the id of this process: the one under which its endpoints are served."""
        return self._runtime.id

    async def kv_create(self, key: str, value: bytes, lease_id: int | None = None) -> None:
        """Write a key that is not there yet; `InvalidArgument` where it is. Raises `CannotConnect`."""
        await self._create(key, value, lease_id, anew=True)

    async def kv_create_or_validate(self, key: str, value: bytes, lease_id: int | None = None) -> None:
        """Create a key; fine too where it has this value."""
        await self._create(key, value, lease_id, anew=False)

    async def kv_put(self, key: str, value: bytes, lease_id: int | None = None) -> None:
        """Write a key, whatever it holds."""
        self._check(key, lease_id)
        await self._runtime.ready()
        await self._runtime.registry.put(key, value)

    async def kv_get_prefix(self, prefix: str) -> list[dict[str, Any]]:
        """Return all keys that begin so, in order: `key`, `value` (bytes) and `mod_revision`."""
        await self._runtime.ready()
        snapshot = await self._runtime.store.read(prefix)
        return [{"key": entry.key, "value": entry.value, "mod_revision": entry.revision} for entry in snapshot.entries]

    async def revoke_lease(self, lease_id: int) -> None:
        """Revoke a lease.

        With the primary id: no endpoint of this process is routed to any more, nor found; it runs on.
        """
        self._check("", lease_id)
        for served in self._runtime.served:
            await served.stop()

    async def delete(self, key: str) -> None:
        """Take a key away."""
        self._check(key, None)
        await self._runtime.ready()
        await self._runtime.store.delete(key)

    async def _create(self, key: str, value: bytes, lease_id: int | None, *, anew: bool) -> None:
        self._check(key, lease_id)
        await self._runtime.ready()
        written, present = await self._runtime.registry.put_new(key, value)
        if written:
            return
        if anew or present != value:
            raise InvalidArgument(f"the key {key} is there already" + ("" if anew else ", with another value"))
        await self._runtime.registry.put(key, value)

    def _check(self, key: str, lease_id: int | None) -> None:
        if key.startswith(OURS):
            raise InvalidArgument(f"keys that begin with {OURS!r} are the runtime's: name {key} otherwise")
        if lease_id not in (None, self._runtime.id):
            raise InvalidArgument(
                f"there is no lease {lease_id}: a process has one, primary_lease_id() names it; leave lease_id out"
            )


class EtcdKvCache:
    """A program's keys under one prefix; each read asks the store, so nothing is stale."""

    def __init__(self, etcd_client: EtcdClient, prefix: str, initial_values: Mapping[str, str | bytes]) -> None:
        raise DynamoException("make it with `await EtcdKvCache.create(etcd_client, prefix, initial_values)`")

    @classmethod
    async def create(
        cls, etcd_client: EtcdClient, prefix: str, initial_values: Mapping[str, str | bytes]
    ) -> EtcdKvCache:
        """Create the keys; those that are there already keep their values."""
        made = cls.__new__(cls)
        made._client, made._prefix = etcd_client, prefix
        there = await made.get_all()
        for key, value in initial_values.items():
            if key not in there:
                await made.put(key, value)
        return made

    _client: EtcdClient
    _prefix: str

    async def get(self, key: str) -> bytes | None:
        """Return the value of one key; None where it is not there."""
        return (await self.get_all()).get(key)

    async def get_all(self) -> dict[str, bytes]:
        """Return all values, without the prefix."""
        entries = await self._client.kv_get_prefix(self._prefix)
        return {entry["key"].removeprefix(self._prefix): entry["value"] for entry in entries}

    async def put(self, key: str, value: str | bytes, lease_id: int | None = None) -> None:
        data = value.encode() if isinstance(value, str) else value
        await self._client.kv_put(self._prefix + key, data, lease_id)

    async def delete(self, key: str) -> None:
        await self._client.delete(self._prefix + key)

    async def clear_all(self) -> None:
        """Take all of them away."""
        for key in await self.get_all():
            await self.delete(key)
