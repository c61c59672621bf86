"""What frontends tell each other of their requests, over both buses: losses, outages, foreign messages, leaving."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec
import pytest
from tests.fixtures_nats import NatsServer
from tests.frontend.routing.kv_reader import Site, run
from tests.waiting import until

from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.frontend.routing.kv_routing import KvAttempt, KvRouting
from dynamo.llm.kv.active_requests import IDLE, Load
from dynamo.llm.kv.index import Rank
from dynamo.llm.kv_events.replica_protocol import VERSION, Added, ReplicaMessage
from dynamo.llm.kv_events.replica_sync import ReplicaSync
from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.names import InstanceKey, router_subject
from dynamo.runtime.transport.memory import MemoryBus

Play = Callable[[Callable[[Site], Awaitable[None]]], None]
WORKER = 7


class Frontend:
    """The routing of one frontend that knows one instance."""

    def __init__(self, runtime: DistributedRuntime, key: InstanceKey) -> None:
        self.runtime, self.key = runtime, key
        self.sharing = ReplicaSync(runtime.bus, runtime.client_id, beat_seconds=0.05, patience=2.0)
        self.routing = KvRouting(KvOptions(), 4, Random(1), lambda: 0.0, self.sharing)
        self.sharing.joined(key, self.routing)

    def send(self, tokens: int = 8) -> KvAttempt:
        ticket = self.routing.ticket(PreprocessedRequest(model="m", token_ids=list(range(tokens))))
        ticket.place([WORKER])
        return ticket

    @property
    def load(self) -> Load:
        return self.routing.router.activity.load(Rank(WORKER))

    def drop_own(self) -> None:
        """As `ModelWatcher` does it."""
        self.sharing.left(self.key)
        self.routing.left(self.key)


class Frontends:
    """Some frontends on one site; ends them."""

    def __init__(self, site: Site) -> None:
        self.site, self.made = site, list[Frontend]()

    async def start(self, count: int) -> list[Frontend]:
        new = [Frontend(await self.site.runtime(), InstanceKey(self.site.path, WORKER)) for _ in range(count)]
        self.made += new
        others = len(self.made) - 1
        await until("all hear each other", lambda: all(item.sharing.peers == others for item in self.made))
        return new


def with_frontends(case: Callable[[Frontends], Awaitable[None]]) -> Callable[[Site], Awaitable[None]]:
    async def body(site: Site) -> None:
        frontends = Frontends(site)
        try:
            await case(frontends)
        finally:
            for item in frontends.made:
                await item.sharing.stop()

    return body


@pytest.fixture
def play(bus_server: NatsServer | None) -> Play:
    """One test over both buses."""
    return lambda case: run(case, bus_server)


def test_a_request_counts_at_every_frontend(play: Play) -> None:
    """From its choice to its end; its prefill until its first token; also at one that came in between."""

    async def case(frontends: Frontends) -> None:
        first, other = await frontends.start(2)
        ticket = first.send()
        await until("the other knows", lambda: other.load == Load(8, 2, 1))
        (late,) = await frontends.start(1)
        await until("the late one knows", lambda: late.load == Load(8, 2, 1))
        ticket.prefilled()
        await until("its prefill is over", lambda: [other.load, late.load] == [Load(0, 2, 1)] * 2)
        ticket.close()
        await until("it is over", lambda: [other.load, late.load] == [IDLE] * 2)
        assert first.load == IDLE

    play(with_frontends(case))


def test_a_frontend_that_leaves_takes_its_requests_along(play: Play) -> None:
    async def case(frontends: Frontends) -> None:
        first, other = await frontends.start(2)
        first.send()
        await until("the other knows", lambda: other.load.requests == 1)
        await first.sharing.stop()
        await until("it is forgotten", lambda: (other.load, other.sharing.peers) == (IDLE, 0), 1.5)

    play(with_frontends(case))


def test_a_frontend_that_is_killed_is_forgotten_after_a_while() -> None:
    async def case(frontends: Frontends) -> None:
        first, other = await frontends.start(2)
        first.send()
        await until("the other knows", lambda: other.load.requests == 1)
        assert isinstance(first.runtime.bus, MemoryBus)
        first.runtime.bus.crash()
        await until("it is forgotten", lambda: (other.load, other.sharing.peers) == (IDLE, 0))

    run(with_frontends(case), None)


def test_lost_messages_are_mended_by_beats() -> None:
    """An end that nobody heard of doesn't count for long."""

    async def case(frontends: Frontends) -> None:
        first, other = await frontends.start(2)
        ticket = first.send()
        await until("the other knows", lambda: other.load.requests == 1)
        network = frontends.site.world.network
        network.drop = lambda subject, data: ".router." in subject
        ticket.close()
        await until("it was said in vain", lambda: first.load == IDLE)
        network.drop = None
        await until("it is over", lambda: other.load == IDLE)

    run(with_frontends(case), None)


def test_an_outage_of_the_bus_is_made_good() -> None:
    """Both forget each other, and tell each other everything when they hear of each other again."""

    async def case(frontends: Frontends) -> None:
        first, other = await frontends.start(2)
        first.send()
        await until("the other knows", lambda: other.load.requests == 1)
        bus = first.runtime.bus
        assert isinstance(bus, MemoryBus)
        bus.disconnect()
        await until("they forget each other", lambda: (first.sharing.peers, other.sharing.peers) == (0, 0))
        assert other.load == IDLE
        bus.reconnect()
        await until("the other knows again", lambda: other.load == Load(8, 2, 1))

    run(with_frontends(case), None)


def test_a_worker_that_leaves_ends_it(play: Play) -> None:
    """Its requests don't count any more, nor do those that a frontend sends there that hasn't heard of it yet."""

    async def case(frontends: Frontends) -> None:
        first, other = await frontends.start(2)
        first.send()
        await until("the other knows", lambda: other.load.requests == 1)
        other.drop_own()
        first.send()
        await until("nobody is heard", lambda: first.sharing.peers == 0)
        assert other.load == IDLE
        other.sharing.joined(other.key, other.routing)
        await until("the other knows again", lambda: other.load.requests == 2)

    play(with_frontends(case))


@pytest.mark.parametrize(
    "said",
    [
        b"\xc1",
        ReplicaMessage(VERSION + 1, 99),
        ReplicaMessage(VERSION, 99, [Added(1, WORKER, 0, 5, b"123")]),
        [VERSION, "x"],
    ],
)
def test_garbage_is_said_once_and_harms_nobody(said: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def case(frontends: Frontends) -> None:
        first, other = await frontends.start(2)
        data = said if isinstance(said, bytes) else msgspec.msgpack.encode(said)
        for _ in range(2):
            first.runtime.bus.publish(router_subject(frontends.site.path.namespace, 99), data)
        first.send()
        await until("the other knows", lambda: other.load == Load(8, 2, 1))

    run(with_frontends(case), None)
    complaints = [record.getMessage() for record in caplog.records]
    assert len(complaints) == 2, "once at each frontend"
    assert all("unreadable message on" in complaint for complaint in complaints)


def test_alone_nothing_is_said_but_beats() -> None:
    """One frontend costs one message a second, however many requests it has."""

    async def case(frontends: Frontends) -> None:
        sent: list[int] = []

        def record(subject: str, data: bytes) -> bool:
            said = msgspec.msgpack.decode(data, type=ReplicaMessage) if ".router." in subject else None
            sent.extend([len(said.added) + len(said.freed)] if said is not None else [])
            return False

        (first,) = await frontends.start(1)
        frontends.site.world.network.drop = record
        for _ in range(20):
            first.send().close()
        await until("it beats", lambda: len(sent) > 1)
        assert set(sent) == {0}

    run(with_frontends(case), None)
