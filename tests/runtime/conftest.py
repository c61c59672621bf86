"""Buses to test over: memory, and a real `nats-server` of this test process (started once, on a free port)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import waiting
from tests.fixtures_nats import NatsServer

from dynamo.runtime.config import NatsConfig
from dynamo.runtime.errors import DynamoException
from dynamo.runtime.names import EndpointPath, InstanceKey, new_id
from dynamo.runtime.request_plane.caller import Caller
from dynamo.runtime.request_plane.server import RequestServer
from dynamo.runtime.transport.memory import MemoryBus, MemoryNetwork
from dynamo.runtime.transport.nats import NatsBus


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[Callable[..., NatsServer]]:
    """Start servers of this test's own: they may be killed, or get lines of configuration."""
    servers: list[NatsServer] = []

    def start(config: str = "") -> NatsServer:
        folder = tmp_path / f"nats{len(servers)}"
        folder.mkdir()
        servers.append(NatsServer(folder, config))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


class World:
    """Makes connected buses that reach each other; closes them all."""

    def __init__(
        self, server: NatsServer | None, network: MemoryNetwork | None = None, *, direct: bool = False
    ) -> None:
        self.server = server
        self.direct = direct
        self.network = network or MemoryNetwork()
        self.buses: list[MemoryBus | NatsBus] = []
        self.namespace = f"t{new_id():x}"
        self._parts: list[Caller | RequestServer] = []

    async def bus(self) -> Any:
        bus = self.network.bus() if self.server is None else NatsBus(NatsConfig(servers=(self.server.url,)))
        self.buses.append(bus)
        await bus.connect()
        return bus

    async def worker(self, handler: Any, *, endpoint: str = "generate", **options: Any) -> Any:
        """`(server, instance)`: a worker of its own that serves `handler`."""
        server = RequestServer(await self.bus(), new_id(), **{"direct": self.direct, **options})
        self._parts.append(server)
        path = EndpointPath(self.namespace, "backend", endpoint)
        await server.serve(path, handler)
        return server, InstanceKey(path, server.worker_id)

    async def caller(self, **options: Any) -> Caller:
        caller = Caller(await self.bus(), new_id(), **{"direct": self.direct, **options})
        self._parts.append(caller)
        await caller.start([self.namespace])
        return caller

    async def close(self) -> None:
        for part in self._parts:
            await part.stop()
        for bus in self.buses:
            await bus.close()


NATS = pytest.param("nats", marks=pytest.mark.servers)
NATS_AND_DIRECT = pytest.param("nats and direct", marks=pytest.mark.servers)


def _world(request: pytest.FixtureRequest) -> World:
    server = request.getfixturevalue("nats_server") if request.param.startswith("nats") else None
    return World(server, direct=request.param.endswith("direct"))


@pytest.fixture(params=["memory", "memory and direct", NATS, NATS_AND_DIRECT])
def world(request: pytest.FixtureRequest) -> World:
    """One test over both buses, with and without frames beside them."""
    return _world(request)


@pytest.fixture(params=["memory", NATS])
def buses(request: pytest.FixtureRequest) -> World:
    """One test over both buses alone."""
    return _world(request)


@pytest.fixture
def memory() -> World:
    """The memory bus alone, for tests that lose and delay on purpose (`world.network`)."""
    return World(None)


@pytest.fixture
def over() -> Callable[[NatsServer], World]:
    """A world over a server of the test's own."""
    return World


class Reader:
    """What one stream brought."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.ends: list[DynamoException | None] = []
        self.begun = asyncio.Event()
        self.done = asyncio.Event()
        self.ended_at = 0.0

    def on_item(self, data: Any, last: bool) -> None:
        self.items.append(data)
        self.begun.set()

    def on_end(self, error: DynamoException | None) -> None:
        self.ends.append(error)
        self.ended_at = time.monotonic()
        self.done.set()

    async def end(self, within: float = 10.0) -> DynamoException | None:
        """Wait for the end; the error, or None where it ended well."""
        async with asyncio.timeout(within):
            await self.done.wait()
        assert len(self.ends) == 1
        return self.ends[0]


@pytest.fixture
def reader() -> type[Reader]:
    return Reader


@pytest.fixture
def until() -> Any:
    """`await until("what", check)`: poll with a deadline."""
    return waiting.until
