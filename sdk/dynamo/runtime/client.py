"""A client of one endpoint: who serves it, and one request to one of them.

What `await endpoint.client()` gives. The frontend's hot path uses `Caller.open`
directly; this is the form for programs: `async for item in client.random(request)`.
It retries nothing by itself; every error says whether another instance may do better.
"""

from __future__ import annotations

import asyncio
import random as _random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Final, NoReturn, Protocol

from dynamo.runtime.context import Context
from dynamo.runtime.discovery.instance_view import InstanceView
from dynamo.runtime.discovery.membership import Instance
from dynamo.runtime.errors import DynamoException, InvalidArgument, NoInstances, StreamIncomplete
from dynamo.runtime.load_balancing import RouterMode, select
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.unsupported import refuse

BUFFER: Final = 10_000
"""Items that a reader may be behind before its stream is given up."""
WAIT_FOR_INSTANCES: Final = 600.0


class Call(Protocol):
    """One open stream (`calling.Call`)."""

    def cancel(self) -> None: ...


class Opener(Protocol):
    """The part of `caller.Caller` that a client needs."""

    def open(
        self,
        instance: InstanceKey,
        payload: Any,
        *,
        context: Context,
        on_item: Callable[[Any, bool], None],
        on_end: Callable[[DynamoException | None], None],
    ) -> Call: ...


class InvalidRequest(InvalidArgument, ValueError):  # noqa: N818 - as its parent; callers of NVIDIA Dynamo catch ValueError
    """The worker could not take the request."""


class Annotated:
    """One item as NVIDIA Dynamo wraps it. Errors are raised while iterating: none comes as an item."""

    __slots__ = ("_data",)

    def __init__(self, data: Any) -> None:
        self._data = data

    def data(self) -> Any:
        return self._data

    def event(self) -> str | None:
        return None

    def comments(self) -> list[str]:
        return []

    def id(self) -> str | None:
        return None

    def is_error(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Annotated(data={self._data!r})"


class _Buffer:
    """Buffer of what has arrived of one request and was not read yet; the caller's callbacks fill it."""

    def __init__(self, on_done: Callable[[], None]) -> None:
        self._on_done = on_done
        self.items: deque[Any] = deque()
        self.news = asyncio.Event()
        self.ended = False
        self.error: DynamoException | None = None
        self.call: Call | None = None

    def on_item(self, data: Any, _last: bool) -> None:
        if self.ended:
            return
        if len(self.items) >= BUFFER:
            self.give_up(StreamIncomplete(f"the reader is {BUFFER} items behind; the request was cancelled"))
            return
        self.items.append(data)
        self.news.set()

    def on_end(self, error: DynamoException | None) -> None:
        if self.ended:
            return
        self.ended, self.error = True, error
        self.news.set()
        self._on_done()

    def give_up(self, error: DynamoException | None = None) -> None:
        """Cancel a request that still runs."""
        if not self.ended:
            if self.call is not None:
                self.call.cancel()
            self.on_end(error)


class ItemStream:
    """The items of one request: iterate it; `await` gives it back, as NVIDIA Dynamo's calls do.

    Leaving it (`aclose`, `async with`, or dropping it) cancels the request.
    """

    def __init__(self, buffer: _Buffer, wrap: Callable[[Any], Any]) -> None:
        self._buffer, self._wrap = buffer, wrap

    def __await__(self) -> Generator[Any, None, ItemStream]:
        yield from ()
        return self

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        buffer = self._buffer
        while not buffer.items:
            if buffer.ended:
                return self._finish()
            buffer.news.clear()
            await buffer.news.wait()
        return self._wrap(buffer.items.popleft())

    async def __aenter__(self) -> ItemStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop reading; a request that still runs is cancelled."""
        self._buffer.give_up()
        self._buffer.items.clear()

    def __del__(self) -> None:
        self._buffer.give_up()

    def _finish(self) -> Any:
        error, self._buffer.error = self._buffer.error, None
        if type(error) is InvalidArgument:
            raise InvalidRequest(error.message) from error
        if error is not None:
            raise error
        raise StopAsyncIteration


class Client:
    """Knows who serves one endpoint, and sends requests to them."""

    def __init__(
        self,
        path: EndpointPath,
        view: InstanceView,
        caller: Opener,
        mode: RouterMode | str | None = None,
        rng: _random.Random | None = None,
        *,
        static: bool = False,
    ) -> None:
        """Make a client; `static`: of a runtime that finds workers without etcd."""
        self.path = path
        self._static = static
        self._view, self._caller = view, caller
        self._mode = RouterMode.parse(mode)
        self._rng = rng or _random.Random()
        self._turn = 0
        self._loads: Counter[InstanceKey] = Counter()
        self._candidates: tuple[int, list[InstanceKey]] = (-1, [])

    def instances(self) -> list[Instance]:
        """Return the instances that serve the endpoint now, in order of their ids."""
        instances = [instance for key, instance in self._view.instances.items() if key.path == self.path]
        return sorted(instances, key=lambda instance: instance.id)

    def instance_ids(self) -> list[int]:
        return [instance.id for instance in self.instances()]

    def endpoint_ids(self) -> list[int]:
        """Return what 0.1 called `instance_ids`."""
        return self.instance_ids()

    async def wait_for_instances(self, timeout: float = WAIT_FOR_INSTANCES) -> list[int]:
        """Return the ids as soon as there is one; `NoInstances` after `timeout` seconds."""
        instances = await self._wait(self.instances, 1, timeout)
        if not instances:
            raise NoInstances(f"nobody has served {self.path} for {timeout:g} s")
        return [instance.id for instance in instances]

    async def wait_for_endpoints(self, timeout: float = WAIT_FOR_INSTANCES) -> list[int]:
        """Return what 0.1 called `wait_for_instances`."""
        return await self.wait_for_instances(timeout)

    async def wait_for_instance_by_runtime_data(self, key: str, value: str, timeout_s: float | None = None) -> int:
        """Return the id of an instance whose model was registered with `runtime_data[key] == value`."""
        return (await self.wait_for_instances_by_runtime_data(key, value, 1, timeout_s))[0]

    async def wait_for_instances_by_runtime_data(
        self, key: str, value: str, min_count: int, timeout_s: float | None = None
    ) -> list[int]:
        """Return the ids of `min_count` such instances or more; `NoInstances` after `timeout_s` seconds."""
        timeout = WAIT_FOR_INSTANCES if timeout_s is None else timeout_s

        def matching() -> list[Instance]:
            return [
                instance
                for instance in self.instances()
                if dict(instance.figures.get("runtime_data") or {}).get(key) == value
            ]

        instances = await self._wait(matching, min_count, timeout)
        if len(instances) < min_count:
            raise NoInstances(f"{len(instances)} instances of {self.path} have {key}={value} after {timeout:g} s")
        return [instance.id for instance in instances]

    async def _wait(self, find: Callable[[], list[Instance]], count: int, timeout: float) -> list[Instance]:
        """Return what `find` gives once that are `count` or more, or `timeout` seconds have passed."""
        try:
            async with asyncio.timeout(timeout):
                while len(instances := find()) < count:
                    await self._view.wait_news()
        except TimeoutError:
            return find()
        return instances

    # `annotated` False: bare values instead of `Annotated`. `context`: the request stops with it.

    def random(self, request: Any, annotated: bool | None = True, context: Context | None = None) -> ItemStream:
        return self._send(RouterMode.RANDOM, request, annotated, context)

    def round_robin(self, request: Any, annotated: bool | None = True, context: Context | None = None) -> ItemStream:
        return self._send(RouterMode.ROUND_ROBIN, request, annotated, context)

    def least_loaded(self, request: Any, annotated: bool | None = True, context: Context | None = None) -> ItemStream:
        return self._send(RouterMode.LEAST_LOADED, request, annotated, context)

    def power_of_two(self, request: Any, annotated: bool | None = True, context: Context | None = None) -> ItemStream:
        return self._send(RouterMode.POWER_OF_TWO, request, annotated, context)

    def generate(self, request: Any, annotated: bool | None = True, context: Context | None = None) -> ItemStream:
        """Send by the client's own router mode."""
        return self._send(self._mode, request, annotated, context)

    def direct(
        self, request: Any, instance_id: int, annotated: bool | None = True, context: Context | None = None
    ) -> ItemStream:
        """Send to one instance, whatever traffic says of it."""
        key = InstanceKey(self.path, instance_id)
        if not self._view.serves(key):
            raise NoInstances(f"instance_id={instance_id} not found for endpoint {self.path}")
        return self._open(key, request, annotated, context)

    def static(self, request: Any, annotated: bool | None = True, context: Context | None = None) -> ItemStream:
        """Send to whoever serves it without etcd; `InvalidArgument` where this process isn't static."""
        if not self._static:
            raise InvalidArgument("Client.static() belongs to dynamo_worker(static=True): use round_robin() here")
        return self._send(self._mode, request, annotated, context)

    def device_aware_weighted(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: instances have no weights."""
        refuse("Client.device_aware_weighted")

    def _send(self, mode: RouterMode, request: Any, annotated: bool | None, context: Context | None) -> ItemStream:
        candidates = self._routable()
        if not candidates:
            silent = "; those that are known don't answer" if self.instance_ids() else ""
            raise NoInstances(f"nobody serves {self.path} now{silent}")
        self._turn += 1
        key = select(mode, candidates, self._loads.__getitem__, self._turn - 1, self._rng)
        return self._open(key, request, annotated, context)

    def _routable(self) -> list[InstanceKey]:
        if self._candidates[0] != self._view.version:
            self._candidates = (self._view.version, self._view.routable(self.path))
        return self._candidates[1]

    def _open(self, key: InstanceKey, request: Any, annotated: object, context: Context | None) -> ItemStream:
        if isinstance(annotated, Context):
            raise InvalidArgument("the context has its place behind `annotated`: write context=…")
        buffer = _Buffer(lambda: self._done(key))
        self._loads[key] += 1
        try:
            buffer.call = self._caller.open(
                key, request, context=context or Context(), on_item=buffer.on_item, on_end=buffer.on_end
            )
        except DynamoException:
            buffer.on_end(None)
            raise
        return ItemStream(buffer, _raw if annotated is False else Annotated)

    def _done(self, key: InstanceKey) -> None:
        self._loads[key] -= 1
        if self._loads[key] <= 0:
            del self._loads[key]


class UnaryClient:
    """Client for endpoints that answer once: `await UnaryClient(client).complete(request)`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def complete(self, request: Any, context: Context | None = None) -> Any:
        """Return the first item; `StreamIncomplete` where there is none."""
        async with self._client.generate(request, annotated=False, context=context) as items:
            async for item in items:
                return item
        raise StreamIncomplete(f"{self._client.path} ended without an answer")


def _raw(data: Any) -> Any:
    return data


__all__ = ["Annotated", "Client", "Instance", "ItemStream", "UnaryClient"]
