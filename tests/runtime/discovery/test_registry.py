"""Registration and views over a memory store; what goes wrong is in `test_registry_faults`."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
import pytest
from tests.runtime.registries import KEY, PATH, Log, Site, play, watching
from tests.waiting import until

from dynamo.runtime.discovery.lease import GAP_MOST, write_gap
from dynamo.runtime.discovery.membership import ClientRecord, Instance, Membership, encode_instance
from dynamo.runtime.discovery.memory import MemoryStore
from dynamo.runtime.discovery.registry import IdTaken
from dynamo.runtime.endpoint import LEAVE_LIMIT
from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.names import EndpointPath, InstanceKey, client_key, instance_key
from dynamo.runtime.transport.bus import Verdict


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


def test_a_client_of_many_instances_writes_its_key_less_often() -> None:
    """Each instance reads each of those writes, and a leaving one waits a second for them at most."""
    assert [write_gap(instances) for instances in (0, 200, 1000, 100_000)] == [0.1, 0.1, 0.5, 0.5]
    assert GAP_MOST <= LEAVE_LIMIT / 2

    async def case(site: Site) -> None:
        others = [InstanceKey(PATH, 100 + number) for number in range(1000)]
        store = MemoryStore(site.world)
        for key in others:
            await store.put(instance_key(key), encode_instance(Instance(**PATH._asdict(), id=key.id, nonce="n")))
        view = await watching(site.registry(1), "frontend")
        before, began = site.world.revision, time.monotonic()
        for turn in range(60):
            view.failed(others[0], str(turn))
            await asyncio.sleep(0.01)
        await until("the last one is written", lambda: site.client_record(1)["failed"] == {"100": "59"})
        assert site.world.revision - before <= (time.monotonic() - began) / GAP_MOST + 2

    play(case)


def test_many_that_come_together_are_published_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is published lists all that are pending: once for each of them, it would be a million entries."""
    listed: list[int] = []
    acknowledgement = Membership.acknowledgement

    def counting(known: Membership, kind: str) -> ClientRecord:
        listed.append(len(known.pending))
        return acknowledgement(known, kind)

    monkeypatch.setattr(Membership, "acknowledgement", counting)

    async def case(site: Site) -> None:
        others = [InstanceKey(PATH, 100 + number) for number in range(300)]
        store = MemoryStore(site.world)
        for key in others:
            await store.put(instance_key(key), encode_instance(Instance(**PATH._asdict(), id=key.id, nonce="n")))
        view = await watching(site.registry(1), "frontend")
        log = Log()
        log.joined = lambda instance: view.pending(instance.key)  # type: ignore[method-assign]
        view.listen(log)
        assert len(view.instances) == 300
        with view.batch():
            for key in others[:-1]:
                view.loaded(key)
        await until("one is left", lambda: site.client_record(1)["pending"] == [others[-1].id])
        assert sum(listed) < 3 * len(others)

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

    with caplog.at_level(logging.CRITICAL + 1, "dynamo.runtime.discovery.instance_view"):
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
