"""Leases lost, stores away, emptied and compacted: what a registry makes of it."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
import pytest
from tests.runtime.registries import KEY, PATH, Log, Site, play, watching
from tests.waiting import until

from dynamo.runtime.discovery.memory import MemoryStore
from dynamo.runtime.discovery.store import Snapshot
from dynamo.runtime.errors import CannotConnect, InvalidArgument
from dynamo.runtime.names import InstanceKey, client_key, instance_key
from dynamo.runtime.transport.bus import Verdict


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


def test_a_lease_outlives_reads_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may not read what it looks for keeps its lease, and so its keys; it says what is refused."""

    async def refuse(store: MemoryStore, keys: object) -> Snapshot:
        raise InvalidArgument("you may not read that")

    async def case(site: Site) -> None:
        worker = site.registry(5, ttl=0.6)
        registration = await worker.register(KEY)
        revision = registration.revision
        monkeypatch.setattr(MemoryStore, "read_keys", refuse)
        await until("it is told", lambda: "may not read" in worker.store_away)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            site.world.expire()
            assert site.world.get(instance_key(KEY)) is not None
            await asyncio.sleep(0.05)
        assert registration.revision == revision
        monkeypatch.undo()

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
        await until("noticed", lambda: view.prefix_watch._watching is None)
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
