"""KV events between a worker's publisher and a frontend's index, over both buses: losses, snapshots, reports."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.fixtures_nats import NatsServer
from tests.frontend.routing.kv_reader import Site, run
from tests.waiting import until

from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.messages import OPERATION, VERSION, Part, Step
from dynamo.llm.kv_events.reader import EventReader
from dynamo.runtime.errors import EngineError
from dynamo.runtime.names import kv_subject
from dynamo.runtime.transport.memory import MemoryBus

Play = Callable[[Callable[[Site], Awaitable[None]]], None]


@pytest.fixture
def play(bus_server: NatsServer | None) -> Play:
    """One test over both buses."""
    return lambda case: run(case, bus_server)


def test_what_a_worker_says_is_known(play: Play) -> None:
    """What it had before anybody listened, each step after that, a cleared cache, and several ranks."""

    async def case(site: Site) -> None:
        worker, reader = await site.worker(), await site.reader()
        worker.engine.step([1, 2, 3])
        reader.join(worker.key)
        await until("the snapshot", lambda: reader.holds(worker.key) == {1, 2, 3})
        worker.engine.step([4], [1])
        worker.engine.step([7, 8], dp_rank=1)
        await until("both ranks", lambda: reader.holds(worker.key, 1) == {7, 8})
        assert reader.holds(worker.key) == {2, 3, 4}
        worker.engine.step([9], cleared=True)
        await until("a cleared cache", lambda: reader.holds(worker.key) == {9})
        assert reader.holds(worker.key, 1) == {7, 8}
        assert reader.meter.counters["model_kv_gaps_total"] == 0
        assert reader.meter.counters["model_kv_snapshots_total"] == 1

    play(case)


def test_who_leaves_leaves_nothing_to_the_collector(play: Play) -> None:
    """Workers come and go for as long as a frontend lives, whose collector comes rarely."""

    def followed() -> int:
        return sum(type(entry) is EventReader for entry in gc.get_objects())

    async def case(site: Site) -> None:
        worker, reader = await site.worker(), await site.reader()
        before = followed()
        gc.disable()
        try:
            for _ in range(3):
                reader.join(worker.key)
                await until("it is followed", lambda: not reader.events.behind())
                reader.events.left(worker.key)
            await until("nothing is left of it", lambda: followed() <= before)
        finally:
            gc.enable()

    play(case)


def test_who_comes_late_knows_as_much(play: Play) -> None:
    """A second frontend, in the middle of a worker's steps."""

    async def case(site: Site) -> None:
        worker, first = await site.worker(), await site.reader()
        first.join(worker.key)
        await until("the first has joined", lambda: not first.events.behind())
        late = await site.reader()
        for number in range(2000):
            worker.engine.step([number], [number - 500] if number >= 500 else [])
            if number == 1000:
                late.join(worker.key)
            if number % 10 == 0:
                await asyncio.sleep(0)
        last = set(range(1500, 2000))
        await until("the first knows all", lambda: first.holds(worker.key) == last)
        await until("the late one knows all", lambda: late.holds(worker.key) == last)

    play(case)


def test_a_snapshot_over_the_limit_arrives_in_parts(play: Play) -> None:
    """300,000 blocks are 2.4 MB, and a message holds one; steps go on meanwhile."""

    async def case(site: Site) -> None:
        worker, reader = await site.worker(), await site.reader()
        names = {n * 0x9E3779B97F4A7C15 % 2**64 for n in range(300_000)}
        worker.engine.step(names)
        reader.join(worker.key, total_kv_blocks=400_000)
        for number in range(50):
            worker.engine.step([number])
            await asyncio.sleep(0.001)
        await until("all is known", lambda: reader.routing.router.index.count(Rank(worker.key.id)) == 300_049, 30)
        assert reader.holds(worker.key) == names | set(range(50))

    play(case)


def test_who_left_is_not_listened_to_any_more(play: Play) -> None:
    """The last one of a component ends the subscription; one that joins again is known again."""

    async def case(site: Site) -> None:
        worker, reader = await site.worker(), await site.reader()
        for round_ in range(3):
            reader.join(worker.key)
            worker.engine.step([round_])
            await until("it is known", lambda: not reader.events.behind() and reader.holds(worker.key))
            reader.events.left(worker.key)
            reader.routing.left(worker.key)
            assert reader.holds(worker.key) == set()
            worker.engine.step([100 + round_])
        await reader.events.stop()
        assert reader.routing.router.index.ranks == {}.keys()

    play(case)


def lossy(case: Callable[[Site], Awaitable[None]]) -> None:
    """Over memory, where messages can be lost on purpose."""
    run(case, None)


def is_event(subject: str) -> bool:
    return ".kv." in subject


def test_a_lost_message_is_made_good_within_a_second() -> None:
    """One in the middle shows at the next one, the last one at the next beat."""

    async def case(site: Site) -> None:
        worker, reader = await site.worker(), await site.reader()
        reader.join(worker.key)
        await until("it is known", lambda: not reader.events.behind())
        lost: list[str] = []

        def lose(subject: str, data: bytes) -> bool:
            if is_event(subject) and not lost:
                lost.append(subject)
            return len(lost) == 1 and is_event(subject)

        site.world.network.drop = lose
        worker.engine.step([1])
        lost.append("over")
        worker.engine.step([2])
        await until("a gap is closed", lambda: reader.holds(worker.key) == {1, 2}, 1.0)
        assert reader.meter.counters["model_kv_gaps_total"] == 1
        lost.clear()
        worker.engine.step([3])
        lost.append("over")
        await until("the last one is known", lambda: reader.holds(worker.key) == {1, 2, 3}, 1.0)
        assert reader.meter.counters["model_kv_gaps_total"] == 2

    lossy(case)


def test_an_outage_of_the_bus_is_made_good() -> None:
    """What happened meanwhile is known after the reconnect, though no number was heard."""

    async def case(site: Site) -> None:
        worker, reader = await site.worker(), await site.reader()
        worker.engine.step([1])
        reader.join(worker.key)
        await until("it is known", lambda: not reader.events.behind())
        bus = reader.runtime.bus
        assert isinstance(bus, MemoryBus)
        bus.disconnect()
        worker.engine.step([2], [1])
        await asyncio.sleep(0)
        bus.reconnect()
        await until("what happened is known", lambda: reader.holds(worker.key) == {2}, 1.0)

    lossy(case)


def test_a_lost_question_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the question or its answer was lost."""
    monkeypatch.setattr("dynamo.llm.kv_events.subscriber.ASK_SECONDS", 0.05)

    async def case(site: Site) -> None:
        worker, reader = await site.worker(), await site.reader()
        worker.engine.step([1])
        asked: list[str] = []

        def lose(subject: str, data: bytes) -> bool:
            if subject.endswith(".ctl"):
                asked.append(subject)
            return bool(asked) and len(asked) < 3

        site.world.network.drop = lose
        reader.join(worker.key)
        assert reader.predicts(worker.key)
        await until("it is known", lambda: reader.holds(worker.key) == {1})
        assert len(asked) == 3
        await until("it is no longer counted", lambda: reader.meter.unfollowed["no_snapshot"] == 0)

    lossy(case)


@pytest.mark.parametrize(
    ("figures", "reason", "words"),
    [
        ({"kv_events": False}, "no_events", "publishes no KV events"),
        ({"kv_cache_block_size": 32}, "block_size", "has KV blocks of 32 tokens, and its card says 16"),
    ],
)
def test_who_can_not_be_followed_is_reported_once(
    figures: dict[str, Any], reason: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log and in the metrics; what is sent there is predicted then, and its events are not taken."""

    async def case(site: Site) -> None:
        good, bad, reader = await site.worker(), await site.worker(), await site.reader()
        with caplog.at_level(logging.WARNING):
            reader.join(bad.key, **figures)
            reader.join(good.key)
            bad.engine.step([1])
            good.engine.step([2])
            await until("the good one is known", lambda: reader.holds(good.key) == {2})
        assert [words in record.getMessage() for record in caplog.records] == [True]
        assert reader.meter.unfollowed == {reason: 1}
        assert reader.holds(bad.key) == set()
        assert (reader.predicts(bad.key), reader.predicts(good.key)) == (True, False)
        reader.events.left(bad.key)
        assert reader.meter.unfollowed == {reason: 0}

    lossy(case)


def test_events_that_never_arrive_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A worker that may not publish, say: its cache is looked at now and then, and it is counted until it is heard."""

    async def case(site: Site) -> None:
        worker, reader = await site.worker(), await site.reader(silent_seconds=0.3)
        site.world.network.drop = lambda subject, data: is_event(subject)
        worker.engine.step([1])
        reader.join(worker.key)
        await until("it is counted", lambda: reader.meter.unfollowed.get("silent") == 1)
        worker.engine.step([2])
        await until("its cache was looked at", lambda: reader.holds(worker.key) == {1, 2})
        site.world.network.drop = None
        worker.engine.step([3])
        await until("it is heard", lambda: reader.meter.unfollowed["silent"] == 0)
        assert reader.holds(worker.key) == {1, 2, 3}

    lossy(case)
    assert len([record for record in caplog.records if "don't arrive here" in record.getMessage()]) == 1


def test_more_than_its_capacity_is_refused_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A worker that never says "removed" can't fill the frontend's memory."""

    async def case(site: Site) -> None:
        worker, reader = await site.worker(), await site.reader()
        reader.join(worker.key, total_kv_blocks=100)
        await until("it is known", lambda: not reader.events.behind())
        for number in range(30):
            worker.engine.step(range(10 * number, 10 * number + 10))
        await until("all was heard", lambda: reader.meter.counters["model_kv_steps_total"] >= 30)
        assert reader.routing.router.index.count(Rank(worker.key.id)) == 100
        assert reader.meter.unfollowed == {"overfull": 1}

    lossy(case)
    assert len([record for record in caplog.records if "more than its 100 blocks" in record.getMessage()]) == 1


@pytest.mark.parametrize(
    "answer",
    [None, "text", [1], Part(VERSION + 1, 0, 0, 1, []), Part(VERSION, 0, 0, 1, [(0, b"123")]), EngineError("broken")],
)
def test_an_answer_that_is_none_is_reported_and_asked_for_again(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A foreign worker's answer harms nobody; as soon as a good one comes, all is well."""

    async def case(site: Site) -> None:
        worker, reader = await site.worker(), await site.reader()
        worker.engine.step([1])

        def answers(body: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        worker.runtime.server.on_control(site.path, OPERATION, answers)
        reader.join(worker.key)
        await until("it is counted", lambda: reader.meter.unfollowed.get("no_snapshot") == 1)
        worker.runtime.server.on_control(site.path, OPERATION, worker.publisher.snapshot)
        await until("it is known", lambda: reader.holds(worker.key) == {1})
        assert reader.meter.unfollowed == {"no_snapshot": 0}

    lossy(case)
    assert len([record for record in caplog.records if "does not say what it caches" in record.getMessage()]) == 1


def test_garbage_on_the_subject_is_said_once_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Bytes, another version, half a name, an instance that nobody knows."""

    async def case(site: Site) -> None:
        worker, reader = await site.worker(), await site.reader()
        reader.join(worker.key)
        await until("it is known", lambda: not reader.events.behind())
        subject, encode = kv_subject(site.path.namespace, site.path.component, worker.key.id), msgspec.msgpack.encode
        for step in (
            Step(VERSION + 1, worker.key.id, 9), Step(VERSION, worker.key.id, 1, stored=b"123"),
            Step(VERSION, 77, 1, stored=b"12345678"), Step(VERSION, worker.key.id, 1, dp_rank=-1),
        ):  # fmt: skip
            worker.runtime.bus.publish(subject, encode(step))
        worker.runtime.bus.publish(subject, b"\xc1\xff")
        worker.engine.step([5])
        await until("what follows is known", lambda: reader.holds(worker.key) == {5})

    lossy(case)
    assert len([record for record in caplog.records if "unreadable KV event" in record.getMessage()]) == 1


def test_nothing_is_published_while_nobody_follows() -> None:
    """A worker that no frontend in kv mode knows of sends no message for its cache."""

    async def case(site: Site) -> None:
        worker = await site.worker()
        sent: list[str] = []

        def record(subject: str, data: bytes) -> bool:
            sent.append(subject)
            return False

        site.world.network.drop = record
        for number in range(100):
            worker.engine.step([number])
        await asyncio.sleep(0.3)
        assert [subject for subject in sent if is_event(subject)] == []

    lossy(case)
