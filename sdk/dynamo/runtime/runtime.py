"""The composition of a process: store, bus, caller, server and registry, opened and closed in order.

Every deployable makes one `DistributedRuntime`; tests and `dynamo-run` make it over
memory. Signals are the deployables' business: they call `shutdown`.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dynamo.runtime.backends import NATS, Backends, MemoryWorld, asked_config, in_memory, lone_world, parts_of
from dynamo.runtime.cancellation import CancellationToken
from dynamo.runtime.client import Client
from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.discovery.registry import IdTaken, Registry
from dynamo.runtime.discovery.static import StaticWorkers
from dynamo.runtime.endpoint import Endpoint, ModelOffer, Namespace, Offers, Served
from dynamo.runtime.errors import CannotConnect, DynamoException
from dynamo.runtime.http.engine_routes import Callback, EngineRoutes
from dynamo.runtime.load_balancing import RouterMode
from dynamo.runtime.names import EndpointPath, InstanceKey, new_id
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.runtime.process.tracing import Tracing
from dynamo.runtime.request_plane.caller import Caller
from dynamo.runtime.request_plane.server import RequestServer
from dynamo.runtime.transport.bus import Verdict
from dynamo.runtime.unsupported import refuse

if TYPE_CHECKING:
    from dynamo.runtime.etcd_client import EtcdClient
    from dynamo.runtime.request_plane.server import Handler

CLOSE_LIMIT: Final = 3.0
"""Seconds for each closing step that talks to a server."""

log = logging.getLogger(__name__)


class DistributedRuntime:
    """A process on etcd and NATS: gives endpoints to serve and to call, and leaves in order.

    `create` and `in_memory` connect at once; the constructor leaves it to the first use.
    """

    def __init__(
        self,
        event_loop: asyncio.AbstractEventLoop | None = None,
        discovery_backend: str | bool | None = None,
        request_plane: str | None = None,
        enable_nats: bool | None = None,
        *,
        event_plane: str | None = None,
        response_plane: str | None = None,
        is_static: bool = False,
        store_kv: str | None = None,
    ) -> None:
        """Take the arguments of all of NVIDIA Dynamo's versions: `(loop, is_static)`, `(loop, "etcd", "tcp")`.

        Needs no running loop.

        `discovery_backend` (0.8: `store_kv`): `etcd`, `mem`, or as `DYN_DISCOVERY_BACKEND` says. Planes and
        `enable_nats` change nothing: all travels over NATS. Raises `InvalidArgument`.
        """
        planes = (request_plane, event_plane, response_plane)
        config, static = asked_config(discovery_backend or store_kv, is_static, *planes)
        self._loop = event_loop
        self._compose(parts_of(config, static))

    @classmethod
    def over(cls, parts: Backends) -> DistributedRuntime:
        """Make a runtime over these adapters, connected or not."""
        made = cls.__new__(cls)
        made._loop = None
        made._compose(parts)
        return made

    def _compose(self, backends: Backends) -> None:
        self.config, self.store, self.bus = backends.config, backends.store, backends.bus
        self.id, self.client_id = new_id(), new_id()
        direct = self.config.direct_frames and backends.transport == NATS
        self.caller = Caller(self.bus, self.client_id, direct=direct)
        self.server = RequestServer(self.bus, self.id, direct=direct)
        self.registry = Registry(
            self.store, self._ping, self.client_id, lease_ttl=self.config.etcd.lease_ttl, transport=backends.transport,
            host=self.config.host,
        )  # fmt: skip
        self.caller.on_verdict(self.registry.observe)
        self.closing = asyncio.Event()
        """Set when the shutdown begins."""
        self.health: bool | None = None
        """What `set_health_status` said; None: nothing, readiness decides."""
        self.engine_routes = EngineRoutes()
        """What a system server of this process answers under `/engine/`."""
        self.system_url: str | None = None
        """Where a system server of this process answers; set by who starts it."""
        self.offers = Offers()
        """What other layers say of endpoints that are served, or will be: by `offer`."""
        self.tracing: Tracing | None = None
        """Set by who starts the process, where traces are asked for; closed with the runtime."""
        self._served: list[Served] = []
        self._figures: dict[EndpointPath, dict[str, Any]] = {}
        """What was announced of endpoints, served already or not."""
        self.kept: dict[Any, Any] = {}
        """What other layers keep as long as this process serves, by keys of their own."""
        self._on_close: list[Callable[[], None]] = []
        self._announcements = TaskOwner(log)
        self._static = StaticWorkers(self.bus, self.store, self.client_id, self.id) if backends.static else None
        self._tokens: weakref.WeakSet[CancellationToken] = weakref.WeakSet()
        self._connecting: asyncio.Task[None] | None = None
        self._closed: asyncio.Task[None] | None = None

    @classmethod
    async def create(cls, config: RuntimeConfig | None = None, *, static: bool = False) -> DistributedRuntime:
        """Make a runtime over etcd and NATS; waits for both, says so, and gives up after the configuration's limit.

        `static`: over NATS alone, see `dynamo.runtime.discovery.static`.
        """
        return await cls.over(parts_of(config or RuntimeConfig.from_env(), static))._opened()

    @classmethod
    async def in_memory(
        cls, world: MemoryWorld | None = None, *, config: RuntimeConfig | None = None
    ) -> DistributedRuntime:
        """Make a runtime inside this process; runtimes of the same world see each other."""
        return await cls.over(in_memory(world or lone_world(), config))._opened()

    async def _opened(self) -> DistributedRuntime:
        try:
            await self.ready()
        except BaseException:
            await self.shutdown(0)
            raise
        return self

    async def ready(self) -> None:
        """Return when it is connected; what serves or calls waits for it. Raises `CannotConnect`."""
        if self._connecting is None or (self._connecting.done() and _failed(self._connecting)):
            self._loop = asyncio.get_running_loop()
            self._connecting = self._loop.create_task(self._connect(), name="connect")
        await asyncio.shield(self._connecting)

    async def _connect(self) -> None:
        try:
            await self.store.connect()
            await self.bus.connect()
        except BaseException:
            await self.store.close()
            await self.bus.close()
            raise

    def namespace(self, name: str) -> Namespace:
        return Namespace(self, name)

    def endpoint(self, path: str | EndpointPath) -> Endpoint:
        """Return the endpoint `ns.comp.ep` or `dyn://ns.comp.ep`."""
        return Endpoint(self, path if isinstance(path, EndpointPath) else EndpointPath.parse(path))

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that it was given, else the running one."""
        return self._loop or asyncio.get_running_loop()

    def etcd_client(self) -> EtcdClient | None:
        """Return a client for keys of the program's own; None where the runtime is static."""
        from dynamo.runtime.etcd_client import EtcdClient

        return None if self._static else EtcdClient(self)

    def primary_token(self) -> CancellationToken:
        """Return a token that is cancelled when the runtime shuts down; `cancel()` shuts it down."""
        return self._token(self.shutdown)

    def child_token(self) -> CancellationToken:
        """Return a token that is cancelled likewise, but whose `cancel()` ends nothing else."""
        return self._token(None)

    def _token(self, on_cancel: Callable[[], object] | None) -> CancellationToken:
        token = CancellationToken(on_cancel)
        self._tokens.add(token)
        if self.closing.is_set():
            token.end()
        return token

    @staticmethod
    def detached() -> NoReturn:
        """Refuse: no runtime is found by itself."""
        refuse("DistributedRuntime.detached")

    def to_capsule(self) -> NoReturn:
        """Refuse: there is no native library."""
        refuse("DistributedRuntime.to_capsule")

    @property
    def served(self) -> list[Served]:
        """Return the endpoints of this process."""
        return list(self._served)

    def set_health_status(self, ready: bool) -> None:
        """Set what `/health` says from now on, whatever the endpoints say."""
        self.health = ready

    def system_status_server_url(self) -> str | None:
        """Return the URL of `/health` of this process; None where `DYN_SYSTEM_PORT` doesn't ask for it."""
        return self.system_url

    def register_engine_route(self, route_name: str, callback: Callback) -> None:
        """Have `POST /engine/<route_name>` of the system server call `callback(dict) -> dict`, async or not."""
        self.engine_routes.register(route_name, callback)

    def announce(self, path: EndpointPath, figures: Mapping[str, Any]) -> None:
        """Publish these figures beside those that the endpoint was or will be served with."""
        known = self._figures.setdefault(path, {})
        known.update(figures)
        for served in self._served:
            if served.path == path:
                self._announcements.start(served.update(figures={**served.figures, **known}), f"announce {path}")

    async def offer(self, path: EndpointPath, offer: ModelOffer | None) -> None:
        """Have the endpoint, served already or not, be what `offer` says; None: nothing but itself."""
        if offer is None:
            self.offers.drop(path)
        else:
            self.offers.put(path, offer)
        for served in [serving for serving in self._served if serving.path == path]:
            await served.update(card=self.offers.card(path) or {})

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the shutdown has withdrawn all endpoints; must not raise."""
        self._on_close.append(callback)

    async def client(self, path: EndpointPath, mode: RouterMode | str | None = None) -> Client:
        """Make a client of an endpoint; requests may be sent when this returns."""
        await self.ready()
        await self.caller.listen(path.namespace)
        view = await self.registry.watch(path.namespace, "other")
        await view.wait_synced()
        if self._static is not None:
            await self._static.look_for(path, view)
        return Client(path, view, self.caller, mode, static=self._static is not None)

    async def serve(
        self,
        path: EndpointPath,
        handler: Handler,
        *,
        card: Mapping[str, Any] | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> Served:
        """Listen, then register: nobody is routed to an endpoint that does not listen yet."""
        await self.ready()
        for _ in range(3):
            await self.server.serve(path, handler)
            try:
                key = InstanceKey(path, self.id)
                both = {**(figures or {}), **self._figures.get(path, {})}
                offered = self.offers.card(path)
                registration = await self.registry.register(key, card=card or offered, figures=both)
            except IdTaken:
                await self._take_new_id(path)
                continue
            served = Served(registration, self.server, self._forget)
            self._served.append(served)
            if self._static is not None:
                await self._static.answer_for(path, registration.leased)
            if (now := self.offers.card(path)) is not offered:  # while it was being written
                await served.update(card=now or {})
            return served
        raise IdTaken(f"three ids in a row are taken at {path}")

    def shutdown(self, grace: float | None = None) -> Awaitable[None]:
        """Leave in order: out of routing, finish streams within `grace`, records, caller, bus, lease, store.

        It begins at once, awaited or not; `await` it for its end. From another thread too, or a signal handler.
        """
        try:
            loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None or self._loop not in (None, loop):
            if self._loop is not None and self._loop.is_running():
                self._loop.call_soon_threadsafe(self._begin_shutdown, grace)
        else:
            self._begin_shutdown(grace)
            loop.call_soon_threadsafe(_wake)  # from a signal handler, a loop that waits would not notice
        return _Closing(self._until_closed)

    def _begin_shutdown(self, grace: float | None) -> None:
        if self._closed is None:
            self.closing.set()
            for token in tuple(self._tokens):
                token.end()
            grace = self.config.grace if grace is None else grace
            self._closed = asyncio.get_running_loop().create_task(self._shutdown(grace), name="shutdown")

    async def _until_closed(self) -> None:
        if self._closed is not None:
            await asyncio.shield(self._closed)

    async def __aenter__(self) -> DistributedRuntime:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def _ping(self, key: InstanceKey) -> Verdict:
        if not self.bus.connected:
            raise CannotConnect("the bus is away, nobody can be asked")
        return await self.caller.ping(key)

    async def _take_new_id(self, path: EndpointPath) -> None:
        if self._served:
            raise IdTaken(f"another process serves {path} under the id of this one; restart this one")
        log.warning("Another process serves %s as instance %d; taking a new id.", path, self.id)
        await self.server.stop()
        self.id = self.server.worker_id = new_id()

    def _forget(self, served: Served) -> None:
        if served in self._served:
            self._served.remove(served)

    async def _shutdown(self, grace: float) -> None:
        if self._connecting is not None:
            if not self._connecting.done():
                self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        served = self.served
        drains = [serving.drain(grace if serving.graceful else 0.0) for serving in served]
        if not all(await asyncio.gather(*drains)):
            log.warning("Streams still run after %g s; ending them.", grace)
        for serving in served:
            await self._step("withdraw", serving.stop())
        for callback in self._on_close:
            callback()
        if self._static is not None:
            await self._step("stop looking for workers", self._static.stop())
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


class _Closing:
    """The end of a shutdown that has begun; it need not be awaited."""

    def __init__(self, wait: Callable[[], Awaitable[None]]) -> None:
        self._wait = wait

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()


def _wake() -> None:
    """Do nothing: the loop turns."""


def _failed(task: asyncio.Task[None]) -> bool:
    return task.cancelled() or task.exception() is not None
