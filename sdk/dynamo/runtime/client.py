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
from typing import Any, Final, Protocol

from dynamo.runtime._membership import Instance
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException, NoInstances, StreamIncomplete
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.selection import RouterMode, select
from dynamo.runtime.view import InstanceView

BUFFER: Final = 10_000
"""Items that a reader may be behind before its stream is given up."""
WAIT_FOR_INSTANCES: Final = 600.0


class Call(Protocol):
    """One open stream (`calling.Call`)."""

    def cancel(self) -> None: ...


class Opener(Protocol):
    """The part of `calling.Caller` that a client needs."""

    def open(
        self,
        instance: InstanceKey,
        payload: Any,
        *,
        context: Context,
        on_item: Callable[[Any, bool], None],
        on_end: Callable[[DynamoException | None], None],
    ) -> Call: ...


class Annotated:
    """One item as the original wraps it; `is_error` is always False, errors are raised."""

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
    """What has arrived of one request and was not read yet; the caller's callbacks fill it."""

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
    """The items of one request: iterate it; `await` gives it back, as the original's calls do.

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
        if error is not None:
            raise error
        raise StopAsyncIteration


class Client:
    """See the module."""

    def __init__(
        self,
        path: EndpointPath,
        view: InstanceView,
        caller: Opener,
        mode: RouterMode | str | None = None,
        rng: _random.Random | None = None,
    ) -> None:
        self.path = path
        self._view, self._caller = view, caller
        self._mode = RouterMode.parse(mode)
        self._rng = rng or _random.Random()
        self._turn = 0
        self._loads: Counter[InstanceKey] = Counter()
        self._candidates: tuple[int, list[InstanceKey]] = (-1, [])

    def instances(self) -> list[Instance]:
        """Those that serve the endpoint now, in order of their ids."""
        found = [instance for key, instance in self._view.instances.items() if key.path == self.path]
        return sorted(found, key=lambda instance: instance.id)

    def instance_ids(self) -> list[int]:
        return [instance.id for instance in self.instances()]

    async def wait_for_instances(self, timeout: float = WAIT_FOR_INSTANCES) -> list[int]:
        """Return the ids as soon as there is one; `NoInstances` after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not (found := self.instance_ids()):
                    await self._view.wait_news()
        except TimeoutError:
            raise NoInstances(f"nobody has served {self.path} for {timeout:g} s") from None
        return found

    def random(self, request: Any, context: Context | None = None, annotated: bool = True) -> ItemStream:
        return self._send(RouterMode.RANDOM, request, context, annotated)

    def round_robin(self, request: Any, context: Context | None = None, annotated: bool = True) -> ItemStream:
        return self._send(RouterMode.ROUND_ROBIN, request, context, annotated)

    def least_loaded(self, request: Any, context: Context | None = None, annotated: bool = True) -> ItemStream:
        return self._send(RouterMode.LEAST_LOADED, request, context, annotated)

    def power_of_two(self, request: Any, context: Context | None = None, annotated: bool = True) -> ItemStream:
        return self._send(RouterMode.POWER_OF_TWO, request, context, annotated)

    def generate(self, request: Any, context: Context | None = None, annotated: bool = True) -> ItemStream:
        """Send by the client's own router mode."""
        return self._send(self._mode, request, context, annotated)

    def direct(
        self, request: Any, instance_id: int, context: Context | None = None, annotated: bool = True
    ) -> ItemStream:
        """Send to one instance, whatever traffic says of it."""
        key = InstanceKey(self.path, instance_id)
        if not self._view.serves(key):
            raise NoInstances(f"instance_id={instance_id} not found for endpoint {self.path}")
        return self._open(key, request, context, annotated)

    def _send(self, mode: RouterMode, request: Any, context: Context | None, annotated: bool) -> ItemStream:
        candidates = self._routable()
        if not candidates:
            silent = "; those that are known don't answer" if self.instance_ids() else ""
            raise NoInstances(f"nobody serves {self.path} now{silent}")
        self._turn += 1
        key = select(mode, candidates, self._loads, self._turn - 1, self._rng)
        return self._open(key, request, context, annotated)

    def _routable(self) -> list[InstanceKey]:
        if self._candidates[0] != self._view.version:
            self._candidates = (self._view.version, self._view.routable(self.path))
        return self._candidates[1]

    def _open(self, key: InstanceKey, request: Any, context: Context | None, annotated: bool) -> ItemStream:
        buffer = _Buffer(lambda: self._done(key))
        self._loads[key] += 1
        try:
            buffer.call = self._caller.open(
                key, request, context=context or Context(), on_item=buffer.on_item, on_end=buffer.on_end
            )
        except DynamoException:
            buffer.on_end(None)
            raise
        return ItemStream(buffer, Annotated if annotated else _raw)

    def _done(self, key: InstanceKey) -> None:
        self._loads[key] -= 1
        if self._loads[key] <= 0:
            del self._loads[key]


class UnaryClient:
    """For endpoints that answer once: `await UnaryClient(client).complete(request)`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def complete(self, request: Any, context: Context | None = None) -> Any:
        """The first item; `StreamIncomplete` where there is none."""
        async with self._client.generate(request, context=context, annotated=False) as items:
            async for item in items:
                return item
        raise StreamIncomplete(f"{self._client.path} ended without an answer")


def _raw(data: Any) -> Any:
    return data


__all__ = ["Annotated", "Client", "Instance", "ItemStream", "UnaryClient"]
