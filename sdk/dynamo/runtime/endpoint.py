"""Namespaces, components and endpoints: the objects by which programs name what they serve and call.

`runtime.endpoint("ns.comp.ep")` or `runtime.namespace("ns").component("comp").endpoint("ep")`.
Serving comes in two forms: `serve_endpoint` with an async generator, as NVIDIA Dynamo
has it, and `start` with a low-level handler, which the worker uses.

`dynamo.llm.register_model` offers a model at an endpoint (`Offers`), before or after the program serves that. The
runtime knows no word of models: it puts the card into the record, and each request through `adapt`."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from dynamo.runtime.client import Client
from dynamo.runtime.context import Context
from dynamo.runtime.discovery.readiness import Readiness
from dynamo.runtime.discovery.registry import Registration
from dynamo.runtime.errors import DynamoException
from dynamo.runtime.load_balancing import RouterMode
from dynamo.runtime.names import EndpointPath, check_name
from dynamo.runtime.request_plane.generator_handler import from_generator
from dynamo.runtime.request_plane.peer import Incoming
from dynamo.runtime.unsupported import refuse

if TYPE_CHECKING:
    from dynamo.runtime.request_plane.server import Handler, RequestServer
    from dynamo.runtime.runtime import DistributedRuntime


LEAVE_LIMIT: Final = 1.0
"""Seconds that a leaving instance waits for the clients to have heard of it."""


class Served:
    """An endpoint that this process serves."""

    def __init__(self, registration: Registration, server: RequestServer, forget: Callable[[Served], None]) -> None:
        self._registration, self._server, self._forget = registration, server, forget
        self._drained = False
        self._left: dict[str, str] = {}
        self._held: dict[str, str] = {}
        self.graceful = True
        """False: a shutdown does not wait for its streams."""
        self.gone = asyncio.Event()
        """Set when its record is away and its streams have ended, or were not waited for any longer."""

    @property
    def instance_id(self) -> int:
        return self._registration.key.id

    @property
    def path(self) -> EndpointPath:
        return self._registration.key.path

    @property
    def figures(self) -> Mapping[str, Any]:
        """Return what the record says of it."""
        return self._registration.instance.figures

    @property
    def draining(self) -> bool:
        return self._registration.instance.draining

    def readiness(self) -> Readiness:
        """Say whether every live frontend can route here, and if not, why."""
        readiness = self._registration.readiness()
        if reasons := [why for why in (*self._left.values(), *self._held.values()) if why]:
            return Readiness(False, reasons)
        return readiness

    async def update(self, *, figures: Mapping[str, Any] | None = None, card: Mapping[str, Any] | None = None) -> bool:
        """Publish new figures or another card. False: the store is away, it is written later."""
        return await self._registration.update(figures=figures, card=card)

    def hold(self, by: str, because: str) -> None:
        """Be not Ready on `by`'s account until `because` is empty; routing stays as it is."""
        self._held[by] = because

    async def leave(self, because: str = "", *, by: str = "") -> None:
        """Leave routing without ending; what still arrives is served. `/health` says `because` what.

        Each of several who have it leave (`by`) has to let it `rejoin`.
        """
        self._left[by] = because
        await self._registration.update(draining=True)

    async def rejoin(self, *, by: str = "") -> None:
        """Undo `leave`."""
        self._left.pop(by, None)
        if not self._left and not self._drained:
            await self._registration.update(draining=False)

    async def known_to_all(self, timeout: float) -> bool:
        """Wait until all clients have applied the last change; False where some have not within `timeout` seconds."""
        return await self._registration.known_to_all(timeout)

    async def drain(self, grace: float) -> bool:
        """Leave routing, refuse what still arrives, wait for running streams. False: some still ran after `grace`."""
        await self._registration.update(draining=True)
        if not self._drained:
            self._drained = True
            # Requests are refused only when nobody sends any more, or after a moment; a refusal is retryable.
            await self.known_to_all(min(LEAVE_LIMIT, grace))
            await self._server.drain(self.path)
        return await self._server.finished(grace)

    async def stop(self) -> None:
        """Refuse new requests and take the record away; running streams are not waited for."""
        try:
            await self.drain(0.0)
            await self._registration.withdraw()
        finally:
            self._forget(self)
            self.gone.set()


class Endpoint:
    """`namespace.component.endpoint`, to be served or called."""

    def __init__(self, runtime: DistributedRuntime, path: EndpointPath) -> None:
        self._runtime = runtime
        self.path = path
        self._served: Served | None = None

    @property
    def name(self) -> str:
        return self.path.endpoint

    @property
    def runtime(self) -> DistributedRuntime:
        """Return the runtime of this process."""
        return self._runtime

    def connection_id(self) -> int:
        """Return the id under which this process serves it."""
        return self._runtime.id

    def lease_id(self) -> int:
        """Return what 0.1 to 0.3 called `connection_id`."""
        return self._runtime.id

    async def client(self, router_mode: RouterMode | str | None = None) -> Client:
        """Return a client that knows the instances as they are now."""
        return await self._runtime.client(self.path, router_mode)

    async def start(
        self, handler: Handler, *, card: Mapping[str, Any] | None = None, figures: Mapping[str, Any] | None = None
    ) -> Served:
        """Serve it with a low-level handler; listening and registered when this returns."""
        self._served = await self._runtime.serve(self.path, handler, card=card, figures=figures)
        return self._served

    async def serve_endpoint(
        self,
        handler: Callable[..., Any],
        graceful_shutdown: bool = True,
        metrics_labels: Sequence[tuple[str, str]] | None = None,
        health_check_payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Serve it with an async generator `handler(request)` or `handler(request, context)` until the shutdown.

        Returns when the shutdown has let its streams end; `graceful_shutdown=False` cuts them. `metrics_labels` and
        `health_check_payload` change nothing: no figures are kept here, and handlers aren't probed.
        """
        served = await self.start(self._runtime.offers.handler(self.path, handler))
        served.graceful = graceful_shutdown
        try:
            if self._runtime.closing.is_set():
                await served.stop()  # nobody else will
            await served.gone.wait()
        finally:
            if not self._runtime.closing.is_set():
                await served.stop()

    @property
    def metrics(self) -> NoReturn:
        """Refuse: a program keeps its own figures."""
        refuse("Endpoint.metrics")

    def serve_bidirectional_endpoint(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a request is one message."""
        refuse("Endpoint.serve_bidirectional_endpoint")

    def first_token_source(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: frontends measure the first token."""
        refuse("Endpoint.first_token_source")

    async def unregister_endpoint_instance(self) -> None:
        """Leave routing without ending."""
        await self._own().leave()

    async def register_endpoint_instance(self) -> None:
        """Be routed to again."""
        await self._own().rejoin()

    def _own(self) -> Served:
        if self._served is None:
            raise DynamoException(f"{self.path} is not served by this process")
        return self._served


class Component:
    """`namespace.component`."""

    def __init__(self, runtime: DistributedRuntime, namespace: str, name: str) -> None:
        self._runtime, self.namespace = runtime, namespace
        self.name = check_name(name, "component")

    @property
    def runtime(self) -> DistributedRuntime:
        """Return the runtime of this process."""
        return self._runtime

    @property
    def metrics(self) -> NoReturn:
        """Refuse: a program keeps its own figures."""
        refuse("Component.metrics")

    def endpoint(self, name: str) -> Endpoint:
        return Endpoint(self._runtime, EndpointPath(self.namespace, self.name, check_name(name, "endpoint")))

    def create_service(self) -> Awaitable[None]:
        """Do nothing, awaited or not: a service needs no making since NVIDIA Dynamo 0.8."""
        warnings.warn(
            "create_service() changes nothing: serve_endpoint() makes the endpoint known; leave it out",
            DeprecationWarning,
            stacklevel=2,
        )
        return _Done()


class _Done:
    """Something to await that is over."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


class Namespace:
    """A Dynamo namespace."""

    def __init__(self, runtime: DistributedRuntime, name: str) -> None:
        self._runtime = runtime
        self.name = check_name(name, "namespace")

    @property
    def metrics(self) -> NoReturn:
        """Refuse: a program keeps its own figures."""
        refuse("Namespace.metrics")

    def component(self, name: str) -> Component:
        return Component(self._runtime, self.name, name)


Generate = Callable[..., Any]
"""`generate(request)` or `generate(request, context)`: a program's async generator."""


class ModelOffer(NamedTuple):
    """Offer a model at an endpoint: its card, and what turns its function into a handler."""

    card: Mapping[str, Any]
    adapt: Callable[[Generate], Generate]


class Offers:
    """Offers of one process, by endpoint."""

    def __init__(self) -> None:
        self._by_path: dict[EndpointPath, ModelOffer] = {}

    def put(self, path: EndpointPath, offer: ModelOffer) -> None:
        self._by_path[path] = offer

    def drop(self, path: EndpointPath) -> None:
        self._by_path.pop(path, None)

    def paths(self) -> list[EndpointPath]:
        """Return where something is offered."""
        return list(self._by_path)

    def card(self, path: EndpointPath) -> Mapping[str, Any] | None:
        """Return the model's card; None: nothing is offered there."""
        offer = self._by_path.get(path)
        return None if offer is None else offer.card

    def handler(self, path: EndpointPath, generate: Generate) -> Callable[[Incoming], None]:
        """Return the low-level handler of a generator; each request is given to what is offered when it comes."""
        plain = from_generator(generate)
        adapted: tuple[ModelOffer, Callable[[Incoming], None]] | None = None

        def handle(incoming: Incoming) -> None:
            nonlocal adapted
            offer = self._by_path.get(path)
            if offer is None:
                plain(incoming)
                return
            if adapted is None or adapted[0] is not offer:
                adapted = offer, from_generator(offer.adapt(generate))
            adapted[1](incoming)

        return handle


async def serve_unary_endpoint(endpoint: Endpoint, handler: Callable[..., Awaitable[Any]]) -> None:
    """Serve `await handler(request, context=…)`, which answers once, until the shutdown."""

    async def generate(request: Any, *, context: Context) -> AsyncIterator[Any]:
        yield await handler(request, context=context)

    await endpoint.serve_endpoint(generate)
