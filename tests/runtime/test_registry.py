"""Registration and views over a memory store that can be switched off, emptied and compacted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from dynamo.runtime._memory_store import MemoryStore, StoreWorld
from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.names import EndpointPath, InstanceKey, client_key, instance_key
from dynamo.runtime.ports import Verdict
from dynamo.runtime.registry import IdTaken, Instance, InstanceView, Registry

PATH = EndpointPath("ns", "backend", "generate")
KEY = InstanceKey(PATH, 5)


class Site:
    """One store and the registries on it, with what a ping answers."""

    def __init__(self) -> None:
        self.world = StoreWorld()
        self.verdict: Verdict | Exception = Verdict.ALIVE
        self.pings: list[InstanceKey] = []
        self._registries: list[Registry] = []

    async def ping(self, key: InstanceKey) -> Verdict:
        self.pings.append(key)
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    def registry(self, client: int = 1, ttl: float = 1.0) -> Registry:
        made = Registry(MemoryStore(self.world), self.ping, client, lease_ttl=ttl)
        self._registries.append(made)
        return made

    def client_record(self, client: int, namespace: str | None = "ns") -> dict[str, Any]:
        value = self.world.get(client_key(namespace, client))
        return {} if value is None else msgspec.json.decode(value)

    async def close(self) -> None:
        self.world.down = False
        for registry in self._registries:
            await registry.stop()


def play(case: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        site = Site()
        try:
            async with asyncio.timeout(30):
                await case(site)
        finally:
            await site.close()

    asyncio.run(main())


async def until(what: str, check: Callable[[], Any], within: float = 10.0) -> None:
    deadline = asyncio.get_running_loop().time() + within
    while not check():
        assert asyncio.get_running_loop().time() < deadline, f"not within {within} s: {what}"
        await asyncio.sleep(0.01)


async def watching(registry: Registry, kind: str = "other", namespace: str | None = "ns") -> InstanceView:
    view = await registry.watch(namespace, kind)
    await view.wait_synced(5)
    return view


class Log:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def joined(self, instance: Instance) -> None:
        self.lines.append(f"joined {instance.id}")

    def changed(self, instance: Instance) -> None:
        self.lines.append(f"changed {instance.id}")

    def left(self, key: InstanceKey) -> None:
        self.lines.append(f"left {key.id}")


def test_registered_seen_changed_withdrawn() -> None:
    """A view follows an instance through its life, and late listeners are told what is there."""

    async def case(site: Site) -> None:
        view = await watching(site.registry(1))
        log = Log()
        view.listen(log)
        registration = await site.registry(5).register(KEY, card={"name": "m"}, figures={"slots": 1})
        assert registration.revision > 0
        await until("joined", lambda: KEY in view.instances)
        assert view.instances[KEY].card == {"name": "m"}
        late = Log()
        view.listen(late)
        assert late.lines == ["joined 5"]
        assert await registration.update(figures={"slots": 2})
        await until("changed", lambda: view.instances[KEY].figures == {"slots": 2})
        await registration.update(draining=True)
        await registration.withdraw()
        await until("left", lambda: KEY not in view.instances)
        assert log.lines == ["joined 5", "changed 5", "left 5"]
        assert site.pings == []

    play(case)


def test_a_view_may_be_of_all_namespaces() -> None:
    """A client of every namespace sees all of them and writes its key under `_all`."""

    async def case(site: Site) -> None:
        await site.registry(5).register(KEY)
        other = InstanceKey(EndpointPath("other", "b", "g"), 6)
        await site.registry(6).register(other)
        view = await watching(site.registry(1), namespace=None)
        assert set(view.instances) == {KEY, other}
        assert site.client_record(1, None)["kind"] == "other"

    play(case)


def test_an_id_that_is_taken_is_refused() -> None:
    """Two processes can't register one id; the second learns it at once."""

    async def case(site: Site) -> None:
        await site.registry(5).register(KEY)
        with pytest.raises(IdTaken):
            await site.registry(5).register(KEY)

    play(case)


def test_the_client_key_says_what_is_applied() -> None:
    """A frontend's key names epoch, revision, what it still loads and what it can't use."""

    async def case(site: Site) -> None:
        view = await watching(site.registry(1), "frontend")
        log = Log()
        log.joined = lambda instance: view.pending(instance.key)  # type: ignore[method-assign]
        view.listen(log)
        registration = await site.registry(5).register(KEY)
        await until("applied", lambda: site.client_record(1)["revision"] >= registration.revision)
        assert site.client_record(1)["pending"] == [5]
        assert not registration.readiness().ready
        view.failed(KEY, "no tokenizer")
        await until("failed", lambda: site.client_record(1)["failed"] == {"5": "no tokenizer"})
        await until("told", lambda: "no tokenizer" in str(registration.readiness().reasons))
        view.loaded(KEY)
        await until("ready", lambda: registration.readiness().ready)
        view.pending(KEY)
        clients = registration._neighbours.clients
        await until("pending again", lambda: not clients.judge(5, registration.leased.written, 0.0).ready)  # type: ignore[arg-type]
        assert registration.readiness().ready, "readiness latches"
        await registration.update(draining=True)
        assert not registration.readiness().ready, "drain ends it"

    play(case)


def test_who_waits_for_a_frontend_hears_that_it_leaves() -> None:
    """One that goes while it still loads says so; a lease that just ends is waited for."""

    async def case(site: Site) -> None:
        loading = site.registry(1)
        view = await watching(loading, "frontend")
        log = Log()
        log.joined = lambda instance: view.pending(instance.key)  # type: ignore[method-assign]
        view.listen(log)
        registration = await site.registry(5).register(KEY)
        await until("held back", lambda: "still loading" in str(registration.readiness().reasons))
        await loading.stop()
        await until("ready", lambda: registration.readiness().ready, within=5)

    play(case)


def test_leaving_does_not_wait_for_a_store_that_is_away() -> None:
    """The lease's end says the same."""

    async def case(site: Site) -> None:
        leaving = site.registry(1)
        await watching(leaving, "frontend")
        site.world.down = True
        async with asyncio.timeout(5):
            await leaving.stop()

    play(case)


def test_ready_without_frontends() -> None:
    """Clients that are no frontends, or of other namespaces, aren't waited for."""

    async def case(site: Site) -> None:
        await watching(site.registry(1), "other")
        await watching(site.registry(2), "frontend", "elsewhere")
        registration = await site.registry(5).register(KEY)
        await until("ready", lambda: registration.readiness().ready)

    play(case)


def test_a_leaving_instance_knows_when_all_have_heard() -> None:
    """`known_to_all` waits for every client, and no longer than it is told to."""

    async def case(site: Site) -> None:
        view = await watching(site.registry(1))
        registration = await site.registry(5).register(KEY)
        await registration.update(draining=True)
        assert await registration.known_to_all(5)
        assert KEY not in view.instances
        site.world.put(client_key("ns", 9), msgspec.json.encode({"kind": "other", "epoch": "older", "revision": 1}), 0)
        await until("seen", lambda: not registration._neighbours.clients.cover("e", 1))
        await registration.update(figures={"x": 1})
        assert not await registration.known_to_all(0.05)

    play(case)


def test_the_client_key_is_written_at_most_ten_times_a_second() -> None:
    """A burst of news is one write."""

    async def case(site: Site) -> None:
        view = await watching(site.registry(1), "frontend")
        await site.registry(5).register(KEY)
        await until("joined", lambda: KEY in view.instances)
        before = site.world.revision
        for turn in range(50):
            view.failed(KEY, str(turn))
            await asyncio.sleep(0.005)
        await until("the last one is written", lambda: site.client_record(1)["failed"] == {"5": "49"})
        assert 2 <= site.world.revision - before <= 8

    play(case)


def test_a_lost_lease_is_replaced() -> None:
    """A process whose lease ended registers again under the same id, and nobody stops routing to it meanwhile."""

    async def case(site: Site) -> None:
        view = await watching(site.registry(1))
        log = Log()
        view.listen(log)
        registration = await site.registry(5).register(KEY)
        await until("joined", lambda: KEY in view.instances)
        first = registration.revision
        for lease in range(1, 20):
            site.world.drop_lease(lease)
        assert site.world.get(instance_key(KEY)) is None
        await until("registered again", lambda: site.world.get(instance_key(KEY)) is not None)
        assert registration.revision > first
        assert log.lines == ["joined 5"]
        assert KEY in view.instances

    play(case)


def test_a_store_that_comes_back_empty() -> None:
    """A replaced store: nobody leaves, all register again, and readiness of new workers works there."""

    async def case(site: Site) -> None:
        view = await watching(site.registry(1), "frontend")
        log = Log()
        view.listen(log)
        worker = site.registry(5)
        await worker.register(KEY)
        await until("joined", lambda: KEY in view.instances)
        site.world.replace()
        await until("worker is back", lambda: site.world.get(instance_key(KEY)) is not None)
        await until("client is back", lambda: site.client_record(1))
        assert log.lines == ["joined 5"]
        other = InstanceKey(PATH, 6)
        registration = await site.registry(6).register(other)
        await until("seen", lambda: other in view.instances)
        await until("ready", lambda: registration.readiness().ready)

    play(case)


def test_a_store_that_is_emptied_silently() -> None:
    """Where nothing breaks and the watch stays silent, the epoch's absence is noticed at the next renewal."""

    async def case(site: Site) -> None:
        site.world.revision = 1000
        view = await watching(site.registry(1))
        await site.registry(5).register(KEY)
        await until("joined", lambda: KEY in view.instances)
        generation = site.world.generation
        site.world.replace()
        site.world.generation = generation
        await until("worker is back", lambda: site.world.get(instance_key(KEY)) is not None)
        other = InstanceKey(PATH, 6)
        await site.registry(6).register(other)
        await until("the view follows the new store", lambda: other in view.instances)
        assert KEY in view.instances

    play(case)


def test_a_record_that_somebody_deletes() -> None:
    """A key deleted by hand is written again, and nobody stops routing to the instance."""

    async def case(site: Site) -> None:
        view = await watching(site.registry(1))
        await site.registry(5).register(KEY)
        await until("joined", lambda: KEY in view.instances)
        site.world.delete(instance_key(KEY))
        await until("pinged", lambda: site.pings == [KEY])
        await until("written again", lambda: site.world.get(instance_key(KEY)) is not None)
        assert view.routable(PATH) == [KEY]

    play(case)


def test_a_frontend_that_lags_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A frontend that stopped following no longer counts after ten seconds, and a log line says so once."""

    async def case(site: Site) -> None:
        stuck = msgspec.json.encode({"kind": "frontend", "epoch": "older", "revision": 1})
        site.world.put(client_key("ns", 9), stuck, 0)
        worker = site.registry(5)
        registration = await worker.register(KEY)
        await until("seen", lambda: "has not seen" in str(registration.readiness().reasons))
        later = registration._clock() + 11
        registration._clock = lambda: later
        assert registration.readiness().ready
        assert registration.readiness().ready

    with caplog.at_level(logging.WARNING, "dynamo"):
        play(case)
    assert caplog.text.count("frontend 00000000000009 has not seen this instance yet; it lags more than 10 s") == 1


def test_an_outage_changes_nothing() -> None:
    """While the store is away views keep what they know, updates wait, and all is written when it is back."""

    async def case(site: Site) -> None:
        view = await watching(site.registry(1))
        registration = await site.registry(5).register(KEY)
        await until("joined", lambda: KEY in view.instances)
        site.world.down = True
        assert await registration.update(figures={"slots": 9}) is False
        assert view.routable(PATH) == [KEY]
        assert registration.readiness().ready
        site.world.down = False
        await until("written", lambda: view.instances[KEY].figures == {"slots": 9})

    play(case)


def test_compaction_during_an_outage() -> None:
    """A view that was away while history was compacted lists again and misses nothing."""

    async def case(site: Site) -> None:
        view = await watching(site.registry(1))
        await site.registry(5).register(KEY)
        await until("joined", lambda: KEY in view.instances)
        site.world.down = True
        await until("noticed", lambda: view.follower._watching is None)
        site.world._down = False
        other = InstanceKey(PATH, 6)
        await site.registry(6).register(other)
        site.world.compact()
        await until("listed again", lambda: other in view.instances)

    play(case)


@pytest.mark.parametrize("answer", [Verdict.DEAD, Verdict.ALIVE, CannotConnect("bus away")])
def test_a_record_that_vanishes_is_pinged(answer: Verdict | Exception) -> None:
    """Nobody listens: gone; an answer, or nobody to ask: kept."""

    async def case(site: Site) -> None:
        view = await watching(site.registry(1))
        crashed = site.registry(5)
        await crashed.register(KEY)
        await until("joined", lambda: KEY in view.instances)
        site.verdict = answer
        await crashed.stop()
        await until("pinged", lambda: site.pings)
        if answer is Verdict.DEAD:
            await until("gone", lambda: KEY not in view.instances)
        else:
            await until("pinged again", lambda: len(site.pings) > 1)
            assert view.routable(PATH) == [KEY]

    play(case)


def test_traffic_is_listened_to() -> None:
    """What traffic calls dead isn't picked until a ping is answered."""

    async def case(site: Site) -> None:
        registry = site.registry(1)
        view = await watching(registry)
        await site.registry(5).register(KEY)
        await until("joined", lambda: KEY in view.instances)
        registry.observe(KEY, Verdict.DEAD)
        assert view.routable(PATH) == []
        await until("answered", lambda: view.routable(PATH) == [KEY])
        assert site.pings == [KEY]

    play(case)


def test_a_failing_listener_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """One listener's bug is logged; the others and the view go on."""

    async def case(site: Site) -> None:
        view = await watching(site.registry(1))
        bad, good = Log(), Log()
        bad.joined = lambda instance: 1 / 0  # type: ignore[method-assign, assignment]
        view.listen(bad)
        view.listen(good)
        await site.registry(5).register(KEY)
        await until("the other one is told", lambda: good.lines == ["joined 5"])

    with caplog.at_level(logging.CRITICAL + 1, "dynamo.runtime.view"):
        play(case)


def test_stopping_takes_everything_along() -> None:
    """After `stop` nothing of the process is left in the store, and no task of it runs."""

    async def case(site: Site) -> None:
        registry = site.registry(5)
        await registry.register(KEY)
        await watching(registry)
        await registry.stop()
        assert site.world.get(instance_key(KEY)) is None
        assert site.client_record(5) == {}
        assert [t.get_name() for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []

    play(case)


def test_registering_without_a_store_ends_with_a_sentence() -> None:
    """Where the store stays away, the registration gives up and says what it waited for."""

    async def case(site: Site) -> None:
        site.world.down = True
        with pytest.raises(
            CannotConnect, match=r"ns\.backend\.generate could not be registered within 1 s: the memory"
        ):
            await site.registry(5).register(KEY, timeout=0.6)

    play(case)
