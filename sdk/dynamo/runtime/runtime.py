"""The composition of a process: store, bus, caller, server and registry, opened and closed in order.

Every deployable makes one `DistributedRuntime`; tests and `dynamo-run` make it over
memory. Signals are the deployables' business: they call `shutdown`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dynamo.runtime.calling import Caller
from dynamo.runtime.client import Client
from dynamo.runtime.component import Endpoint, Namespace, Served
from dynamo.runtime.config import MEMORY, RuntimeConfig
from dynamo.runtime.engine_routes import Callback, EngineRoutes
from dynamo.runtime.errors import CannotConnect, DynamoException
from dynamo.runtime.memory import MemoryWorld
from dynamo.runtime.names import EndpointPath, InstanceKey, new_id
from dynamo.runtime.ports import Bus, Store, Verdict
from dynamo.runtime.registry import IdTaken, Registry
from dynamo.runtime.selection import RouterMode
from dynamo.runtime.serving import RequestServer
from dynamo.runtime.tracing import Tracing

if TYPE_CHECKING:
    from dynamo.runtime.serving import Handler

CLOSE_LIMIT: Final = 3.0
"""Seconds for each closing step that talks to a server."""

log = logging.getLogger(__name__)


class DistributedRuntime:
    """See the module. `store` and `bus` are connected; `create` and `in_memory` see to that."""

    def __init__(
        self, store: Store, bus: Bus, *, config: RuntimeConfig | None = None, transport: str = "nats",
        instance_id: int | None = None,
    ) -> None:  # fmt: skip
        self.config = config or RuntimeConfig()
        self.id = instance_id or new_id()
        self.store, self.bus = store, bus
        self.client_id = new_id()
        self.caller = Caller(bus, self.client_id)
        self.server = RequestServer(bus, self.id)
        self.registry = Registry(
            store, self._ping, self.client_id, lease_ttl=self.config.etcd.lease_ttl, transport=transport,
            host=self.config.host,
        )  # fmt: skip
        self.closing = asyncio.Event()
        """Set when the shutdown begins."""
        self.health: bool | None = None
        """What `set_health_status` said; None: nothing, readiness decides."""
        self.engine_routes = EngineRoutes()
        """What a system server of this process answers under `/engine/`."""
        self.tracing: Tracing | None = None
        """Set by who starts the process, where traces are asked for; closed with the runtime."""
        self._served: list[Served] = []
        self._figures: dict[EndpointPath, dict[str, Any]] = {}
        """What was announced of endpoints, served already or not."""
        self.kept: dict[Any, Any] = {}
        """What other layers keep as long as this process serves, by keys of their own."""
        self._on_close: list[Callable[[], None]] = []
        self._writing: set[asyncio.Task[bool]] = set()
        self._closed: asyncio.Task[None] | None = None

    @classmethod
    async def create(cls, config: RuntimeConfig | None = None) -> DistributedRuntime:
        """Over etcd and NATS; waits for both, says so, and gives up after the configuration's limit."""
        config = config or RuntimeConfig.from_env()
        if config.discovery_backend == MEMORY:
            return await cls.in_memory(config=config)
        store, bus = _etcd_store(config), _nats_bus(config)
        try:
            await store.connect()
            await bus.connect()
            return await cls(store, bus, config=config)._start()
        except BaseException:
            await store.close()
            await bus.close()
            raise

    @classmethod
    async def in_memory(
        cls, world: MemoryWorld | None = None, *, config: RuntimeConfig | None = None
    ) -> DistributedRuntime:
        """Inside this process; runtimes of the same world see each other."""
        from dynamo.runtime._memory_store import MemoryStore

        world = world or MemoryWorld()
        bus = world.network.bus()
        await bus.connect()
        return await cls(MemoryStore(world.store), bus, config=config, transport="memory")._start()

    def namespace(self, name: str) -> Namespace:
        return Namespace(self, name)

    def endpoint(self, path: str | EndpointPath) -> Endpoint:
        """`ns.comp.ep` or `dyn://ns.comp.ep`."""
        return Endpoint(self, path if isinstance(path, EndpointPath) else EndpointPath.parse(path))

    @property
    def served(self) -> list[Served]:
        """The endpoints of this process."""
        return list(self._served)

    def set_health_status(self, ready: bool) -> None:
        """What `/health` says from now on, whatever the endpoints say."""
        self.health = ready

    def register_engine_route(self, route_name: str, callback: Callback) -> None:
        """Have `POST /engine/<route_name>` of the system server call `callback(dict) -> dict`, async or not."""
        self.engine_routes.register(route_name, callback)

    def announce(self, path: EndpointPath, figures: Mapping[str, Any]) -> None:
        """Publish these figures beside those that the endpoint was or will be served with."""
        known = self._figures.setdefault(path, {})
        known.update(figures)
        for served in self._served:
            if served.path == path:
                task = asyncio.get_running_loop().create_task(served.update(figures={**served.figures, **known}))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the shutdown has withdrawn all endpoints; must not raise."""
        self._on_close.append(callback)

    async def client(self, path: EndpointPath, mode: RouterMode | str | None = None) -> Client:
        """A client of an endpoint; requests may be sent when this returns."""
        await self.caller.listen(path.namespace)
        view = await self.registry.watch(path.namespace, "other")
        await view.wait_synced()
        return Client(path, view, self.caller, mode)

    async def serve(
        self,
        path: EndpointPath,
        handler: Handler,
        *,
        card: Mapping[str, Any] | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> Served:
        """Listen, then register: nobody is routed to an endpoint that does not listen yet."""
        for _ in range(3):
            await self.server.serve(path, handler)
            try:
                key = InstanceKey(path, self.id)
                both = {**(figures or {}), **self._figures.get(path, {})}
                registration = await self.registry.register(key, card=card, figures=both)
            except IdTaken:
                await self._take_new_id(path)
                continue
            served = Served(registration, self.server, self._forget)
            self._served.append(served)
            return served
        raise IdTaken(f"three ids in a row are taken at {path}")

    async def shutdown(self, grace: float | None = None) -> None:
        """Leave in order: out of routing, finish streams within `grace`, records, caller, bus, lease, store."""
        if self._closed is None:
            self.closing.set()
            grace = self.config.grace if grace is None else grace
            self._closed = asyncio.get_running_loop().create_task(self._shutdown(grace), name="shutdown")
        await asyncio.shield(self._closed)

    async def __aenter__(self) -> DistributedRuntime:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def _start(self) -> DistributedRuntime:
        await self.caller.start([])
        self.caller.on_verdict(self.registry.observe)
        return self

    async def _ping(self, key: InstanceKey) -> Verdict:
        if not self.bus.connected:
            raise CannotConnect("the bus is away, nobody can be asked")
        return await self.caller.ping(key)

    async def _take_new_id(self, path: EndpointPath) -> None:
        if self._served:
            raise IdTaken(f"another process serves {path} under the id of this one; restart this one")
        log.warning("another process serves %s under id %d; this one takes a new id", path, self.id)
        await self.server.stop()
        self.id = self.server.worker_id = new_id()

    def _forget(self, served: Served) -> None:
        if served in self._served:
            self._served.remove(served)

    async def _shutdown(self, grace: float) -> None:
        served = self.served
        drains = [one.drain(grace if one.graceful else 0.0) for one in served]
        if not all(await asyncio.gather(*drains)):
            log.warning("streams still run after %g s; they end now", grace)
        for one in served:
            await self._step("withdraw", one.stop())
        for callback in self._on_close:
            callback()
        await self._step("stop serving", self.server.stop())
        await self._step("stop watching", self.registry.stop_watching())
        await self._step("stop calling", self.caller.stop())
        await self._step("close the bus", self.bus.close())
        await self._step("give the lease back", self.registry.stop())
        await self._step("close the store", self.store.close())
        if self.tracing is not None:
            await self.tracing.close()

    async def _step(self, what: str, work: Any) -> None:
        try:
            async with asyncio.timeout(CLOSE_LIMIT):
                await work
        except (DynamoException, TimeoutError) as error:
            log.debug("shutdown: %s did not succeed: %r", what, error)


def _etcd_store(config: RuntimeConfig) -> Store:
    # gRPC writes lines of its own to stderr; read once, when it is first imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from dynamo.runtime._etcd import EtcdStore

    return EtcdStore(config.etcd)


def _nats_bus(config: RuntimeConfig) -> Bus:
    from dynamo.runtime._nats import NatsBus

    return NatsBus(config.nats)
