"""The bus and the store that a runtime is put together from, and how the constructors of NVIDIA Dynamo's
versions ask for them.

`DistributedRuntime(loop, static)` is of 0.1 to 0.3, `(loop, "etcd", "tcp", enable_nats)` of 0.4 to 0.9, today's has
`event_plane=` and `response_plane=`. Servers are named by the environment, as everywhere. Nothing here connects.

`await DistributedRuntime.in_memory(world)`: runtimes of the same `MemoryWorld`, inside one process, see each other."""

from __future__ import annotations

import dataclasses
import os
from typing import Final, NamedTuple

from dynamo.runtime.config import ETCD, MEMORY, RuntimeConfig
from dynamo.runtime.discovery.memory import StoreWorld
from dynamo.runtime.discovery.store import Store
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.transport.bus import Bus
from dynamo.runtime.transport.memory import MemoryNetwork


@dataclasses.dataclass
class MemoryWorld:
    """World of a deployment, in the place of etcd and NATS."""

    store: StoreWorld = dataclasses.field(default_factory=StoreWorld)
    network: MemoryNetwork = dataclasses.field(default_factory=MemoryNetwork)


def lone_world() -> MemoryWorld:
    """Make the world of a single runtime, whose leases end only with it."""
    return MemoryWorld(StoreWorld(leases_end=False))


NATS: Final = "nats"
_PLANES: Final = (None, "", "tcp", "nats", "http", "zmq", "quic")
_OTHERS: Final = ("kubernetes", "file")


class Backends(NamedTuple):
    """`static`: workers are found over the bus, and the store is this process's own."""

    store: Store
    bus: Bus
    config: RuntimeConfig
    transport: str = NATS
    static: bool = False


def asked_config(backend: str | bool | None, static: bool, *planes: str | None) -> tuple[RuntimeConfig, bool]:
    """Return the configuration that a constructor asks for, and whether it asks for a static runtime.

    `InvalidArgument` for a discovery backend or a plane that there is not.
    """
    if isinstance(backend, bool):  # the second argument of 0.1 to 0.3
        static, backend = backend, None
    for plane in planes:
        if plane not in _PLANES:
            raise InvalidArgument(f"there is no plane {plane!r}; everything travels over NATS here (NATS_SERVER)")
    if backend in _OTHERS:
        raise InvalidArgument(
            f"discovery backend {backend!r} is not there: workers are found in etcd (ETCD_ENDPOINTS), in a cluster in "
            f"the operator's own; {MEMORY!r} serves one process"
        )
    if backend not in (None, "", ETCD, MEMORY):
        raise InvalidArgument(f"discovery backend {backend!r} must be {ETCD!r} or {MEMORY!r}")
    named = {"DYN_DISCOVERY_BACKEND": backend} if backend else {}
    return RuntimeConfig.from_env({**os.environ, **named}), static


def parts_of(config: RuntimeConfig, static: bool = False) -> Backends:
    """Make the adapters for a configuration, not connected yet."""
    if config.discovery_backend == MEMORY:
        return in_memory(lone_world(), config)
    if static:
        from dynamo.runtime.discovery.memory import MemoryStore

        return Backends(MemoryStore(StoreWorld(leases_end=False)), _nats_bus(config), config, static=True)
    return Backends(_etcd_store(config), _nats_bus(config), config)


def in_memory(world: MemoryWorld, config: RuntimeConfig | None) -> Backends:
    """Make the adapters of one process's own world."""
    from dynamo.runtime.discovery.memory import MemoryStore

    return Backends(MemoryStore(world.store), world.network.bus(), config or RuntimeConfig(), "memory")


def _etcd_store(config: RuntimeConfig) -> Store:
    # gRPC writes lines of its own to stderr; read once, when it is first imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from dynamo.runtime.discovery.etcd import EtcdStore

    return EtcdStore(config.etcd)


def _nats_bus(config: RuntimeConfig) -> Bus:
    from dynamo.runtime.transport.nats import NatsBus

    return NatsBus(config.nats)
