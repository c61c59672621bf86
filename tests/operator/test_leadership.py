"""What surrounds the looks, against an API server in memory: a late CRD, the sweep, the lease, probes, the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from tests import waiting
from tests.operator.apiserver import ApiServer, refusal
from tests.operator.pipelines import SMALLEST, body

from dynamo.operator.cluster import pipeline_watch as watching
from dynamo.operator.cluster.pipeline_watch import Handlers, WatchLag
from dynamo.operator.controller import Controller, sweep
from dynamo.operator.kube.client import Api
from dynamo.operator.kube.leader_election import DEADLINE, Election
from dynamo.operator.kube.resources import Key
from dynamo.operator.metrics import Metrics
from dynamo.operator.probes import Health, Probes
from dynamo.operator.reconcile.reconciler import Outcome
from dynamo.operator.workqueue import Attempt, Backoff, WorkQueue

FIRST = Attempt()


async def until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait as `waiting.until`; a failure's traceback names the place."""
    await waiting.until("what is awaited here", holds, seconds)


def run(case: Callable[[ApiServer], Awaitable[None]]) -> None:
    """The case on a fresh server."""

    async def main() -> None:
        async with ApiServer() as server:
            await case(server)

    asyncio.run(main())


def test_a_kind_that_is_missing_at_start_is_waited_for() -> None:
    """The CRD comes later than the operator: then it begins."""

    async def case(server: ApiServer) -> None:
        server.fault = lambda method, path: refusal(404, "no such kind") if path.endswith("pipelines") else None
        async with api_of(server) as api:
            waiting = asyncio.create_task(watching.wait_for_kinds(api, (), 0.01))
            await until(lambda: len(server.requests) > 3)
            assert not waiting.done()
            server.fault = lambda method, path: None
            await asyncio.wait_for(waiting, 10)

    run(case)


async def test_looks_come_again_at_the_pace_that_is_asked_for() -> None:
    """Also of a queue that is still empty, which is false."""
    reconciled: list[Key] = []

    class RecordingReconciler:
        async def reconcile(self, key: Key, attempt: Attempt = FIRST) -> Outcome:
            reconciled.append(key)
            return Outcome()

    controller = Controller(Metrics(), queue=WorkQueue(Backoff(resync=0.01, spacing=0.0)))
    task = asyncio.create_task(controller.run(RecordingReconciler()))
    controller.mark(Key("serving", "llama"))
    await until(lambda: len(reconciled) > 3)
    task.cancel()


def test_the_sweep_finds_what_no_event_told() -> None:
    """A pipeline that nobody announced is reconciled; one that went unnoticed is forgotten."""

    async def case(server: ApiServer) -> None:
        reconciled: list[Key] = []

        class RecordingReconciler:
            async def reconcile(self, key: Key, attempt: Attempt = FIRST) -> Outcome:
                reconciled.append(key)
                return Outcome(gone=key.name == "ghost")

        metrics = Metrics()
        controller = Controller(metrics)
        server.put(body(SMALLEST))
        async with api_of(server) as api:
            task = asyncio.create_task(controller.run(RecordingReconciler()))
            controller.mark(Key("serving", "ghost"))
            await until(lambda: reconciled)
            controller.queue.mark(Key("serving", "ghost"), time.monotonic() + 1000)
            await sweep(api, (), controller, metrics)
            await until(lambda: controller.queue.known == {Key("serving", "llama")})
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(case)


def test_our_own_status_is_not_urgent() -> None:
    """A pipeline event counts as a new spec once per generation."""
    marks: list[tuple[Key, bool]] = []
    handlers = Handlers(lambda key, urgent: marks.append((key, urgent)))
    found = body(SMALLEST)
    found["metadata"]["resourceVersion"] = "7"
    handlers.pipeline(found, False)
    assert handlers.delivered() == {Key("serving", "llama"): 7}
    handlers.pipeline({**found, "status": {"x": 1}}, False)
    handlers.pipeline({**found, "metadata": {**found["metadata"], "generation": 2}}, False)
    handlers.pipeline(found, True)
    assert [urgent for _, urgent in marks] == [True, False, True, True]
    assert handlers.delivered() == {}


def test_one_of_two_leads_and_the_other_follows() -> None:
    """Whoever comes second waits; given back, the lease is taken at once; lost, `keep` ends."""

    async def case(server: ApiServer) -> None:
        now = [0.0]
        async with api_of(server) as api:
            one, two = (Election(api, "dynamo", "l", me, clock=lambda: now[0], period=0.01) for me in ("one", "two"))
            assert await one.step()
            assert not await two.step()
            now[0] = 14.0
            assert not await two.step()
            assert not one.leads()
            now[0] = 15.0
            assert await two.step()
            assert not await one.step()
            await two.release()
            assert await one.step()
            server.fault = lambda method, path: refusal(500, "down")
            keeping = asyncio.create_task(one.keep())
            await until(lambda: len(server.requests) > 12)
            assert not keeping.done()
            now[0] += DEADLINE
            await asyncio.wait_for(keeping, 5)

    run(case)


async def test_probes_tell_dead_watches() -> None:
    """Nothing read for three minutes, or a pipeline that waits for five: sick."""
    now = [0.0]
    health = Health(lambda: now[0])
    probes = Probes(health, Metrics().render, "127.0.0.1", 0)
    port = await probes.start()
    async with aiohttp.ClientSession() as session:

        async def healthz() -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                return answer.status, await answer.text()

        assert await healthz() == (200, "ok")
        now[0] = 200.0
        assert (await healthz())[0] == 503
        health.read()
        health.oldest = lambda: 301.0
        assert await healthz() == (503, "a pipeline has been waiting to be reconciled for 301 s")
        health.oldest, health.silent = lambda: 0.0, lambda: 181.0
        assert await healthz() == (503, "a watch of children is dead: silent for 181 s")
        health.silent, health.late = lambda: 0.0, lambda: 151.0
        assert (await healthz())[0] == 503
        health.late = lambda: 149.0
        assert await healthz() == (200, "ok")
    await probes.stop()


def test_what_is_listed_must_be_heard_of() -> None:
    """The first listed version counts, however often the object changes; what is heard of or gone doesn't."""
    a, b, lag = Key("x", "a"), Key("x", "b"), WatchLag()
    lag.listed({a: 5, b: 6}, {a: 5}, 0.0)
    assert lag.late({a: 5}, 10.0) == {b: 10.0}
    assert lag.late({a: 5, b: 7}, 10.0) == {}
    lag.listed({a: 9, b: 8}, {a: 5, b: 7}, 60.0)
    lag.listed({a: 20, b: 8}, {a: 5, b: 9}, 120.0)
    assert lag.late({a: 5, b: 9}, 130.0) == {a: 70.0}
    assert lag.late({a: 9, b: 9}, 130.0) == {}
    lag.listed({a: 21}, {a: 9}, 180.0)
    assert lag.late({a: 9}, 180.0) == {a: 0.0}
    lag.listed({}, {}, 240.0)
    assert lag.late({}, 300.0) == {}


async def test_a_defect_in_one_look_ends_nothing() -> None:
    """Other pipelines go on, and the one is tried again."""
    reconciled: list[Key] = []

    class RecordingReconciler:
        async def reconcile(self, key: Key, attempt: Attempt = FIRST) -> Outcome:
            reconciled.append(key)
            if key.name == "bad":
                raise ZeroDivisionError
            return Outcome()

    controller = Controller(Metrics(), limit=1, draw=lambda: 0.0)
    task = asyncio.create_task(controller.run(RecordingReconciler()))
    controller.mark(Key("a", "bad"))
    controller.mark(Key("a", "good"))
    await until(lambda: len(reconciled) >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert reconciled[:2] == [Key("a", "bad"), Key("a", "good")]
    assert reconciled[2].name == "bad"


@asynccontextmanager
async def api_of(server: ApiServer) -> AsyncIterator[Api]:
    """A session that is closed in the end."""
    api = Api(aiohttp.ClientSession(), server.url)
    try:
        yield api
    finally:
        await api.close()
