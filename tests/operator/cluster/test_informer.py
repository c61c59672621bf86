"""Looks that read the store, against an API server in memory: what they ask, what stale sight may not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import aiohttp
import pytest
from tests.operator.apiserver import ApiServer, refusal
from tests.operator.pipelines import SMALLEST, body
from tests.operator.reconcile.test_reconciler import KEY, NOW, SETTINGS, TWO
from tests.operator.test_leadership import until

from dynamo.operator.cluster import informer
from dynamo.operator.cluster.informer import Informer
from dynamo.operator.cluster.object_store import ObjectStore
from dynamo.operator.cluster.pipeline_cache import PipelineCache
from dynamo.operator.intervals import Intervals
from dynamo.operator.kube.client import Api
from dynamo.operator.kube.resources import CHILDREN, PIPELINES, PODS, Key
from dynamo.operator.reconcile.reconciler import Outcome, Reconciler
from dynamo.operator.workqueue import Attempt

KINDS = (*CHILDREN, PODS)


class Bench:
    """A reconciler with a store whose watches run."""

    def __init__(self, server: ApiServer, api: Api, again: float) -> None:
        self.server, self.api, self.store = server, api, ObjectStore()
        self.marked: list[Key] = []
        self.informer = Informer(api, self.store, self.marked.append, resync=again)
        self.reconciler = Reconciler(api, SETTINGS, store=self.store, expect_version=self.informer.expect_version)

    def know(self, latest: PipelineCache) -> None:
        """From now on what was told of pipelines is believed."""
        self.reconciler = Reconciler(self.api, SETTINGS, store=self.store, cache=latest)

    def live(self) -> bool:
        return all(self.store.of(kind, KEY) is not None for kind in KINDS)

    async def reconcile(self, *, is_quiet: bool = False) -> tuple[Outcome, list[tuple[str, str]]]:
        """One reconcile, and what it asked."""
        before = len(self.server.requests)
        outcome = await self.reconciler.reconcile(KEY, Attempt(is_quiet=is_quiet))
        return outcome, self.server.requests[before:]

    async def seen(self) -> None:
        """Until the store has what the server has."""
        count = sum(k != PIPELINES.kind for k, _, _ in self.server.objects)
        await until(lambda: self.live() and self.store.size() == count)
        await asyncio.sleep(0.05)

    async def settle(self) -> None:
        for _ in range(20):
            outcome, _ = await self.reconcile()
            self.server.play()
            await self.seen()
            if not outcome.writes and not (await self.reconcile())[0].writes:
                return
        raise AssertionError(f"no rest: {self.server.writes[-5:]}")


@asynccontextmanager
async def watching(spec: dict[str, object] = SMALLEST, again: float = Intervals.resync) -> AsyncIterator[Bench]:
    async with ApiServer() as server, aiohttp.ClientSession() as session:
        server.put(body(spec))
        bench = Bench(server, Api(session, server.url), again)
        task = asyncio.create_task(bench.informer.run())
        await bench.informer.settled()
        try:
            yield bench
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def run(
    case: Callable[[Bench], Awaitable[None]], spec: dict[str, object] = SMALLEST, again: float = Intervals.resync
) -> None:
    async def main() -> None:
        async with watching(spec, again) as bench:
            await case(bench)

    asyncio.run(main())


def test_a_look_at_rest_asks_for_the_pipeline_only() -> None:
    """No LIST, no write."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        outcome, asked = await bench.reconcile()
        assert outcome == Outcome()
        assert asked == [("GET", PIPELINES.path("serving", "llama"))]

    run(case, TWO)


def test_creation_asks_for_the_pipeline_only() -> None:
    """What isn't there is made; the server refuses it where anything is, so nothing needs to be asked."""

    async def case(bench: Bench) -> None:
        outcome, asked = await bench.reconcile()
        assert outcome.writes == 7
        gets = [path for method, path in asked if method == "GET" and "/namespaces/serving/" in path]
        assert [path for path in gets if not path.endswith("/httproutes")] == [PIPELINES.path("serving", "llama")]

    run(case)


def test_own_writes_are_known_at_once() -> None:
    """Before any event has come, the next reconcile finds nothing to write, and no event of them marks anything."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        outcome, asked = await bench.reconcile()
        assert outcome.writes == 0
        assert [path for _, path in asked if "/namespaces/" in path] == [PIPELINES.path("serving", "llama")]
        await bench.seen()
        assert bench.marked == []

    run(case)


def test_what_others_do_is_news() -> None:
    """A pod that appears, a child that is edited or removed: the pipeline is reconciled, and set right."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        for kind in ("Deployment", "Service"):
            bench.marked.clear()
            bench.server.remove(kind, bench.server.names(kind)[0])
            await until(lambda: KEY in bench.marked)
            assert (await bench.reconcile())[0].writes >= 1
        await bench.seen()
        bench.marked.clear()
        live = bench.server.one("StatefulSet", bench.server.names("StatefulSet")[0])
        bench.server.put({**live, "spec": {**live["spec"], "replicas": 7}})
        await until(lambda: KEY in bench.marked)
        outcome, asked = await bench.reconcile()
        assert outcome.writes >= 1
        assert ("GET", PODS.path("serving")) in asked, "before a change of what is there, all is read anew"

    run(case)


def test_stale_sight_writes_nothing_wrong() -> None:
    """The store stands still while others act: what it takes for missing or for wrong is checked before a write."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        for kind, _, name in list(bench.server.objects):
            if kind in ("Service", "StatefulSet"):
                bench.store.forget(next(k for k in KINDS if k.kind == kind), "serving", name)
        written = len(bench.server.writes)
        assert (await bench.reconcile())[0].writes == 0
        deployment = next(k for k in KINDS if k.kind == "Deployment")
        seen = bench.store.of(deployment, KEY) or []
        spec = {**seen[0]["spec"], "replicas": 9}
        late = {**seen[0], "spec": spec, "metadata": {**seen[0]["metadata"], "resourceVersion": "99999999"}}
        bench.store.take(deployment, late)
        outcome, asked = await bench.reconcile()
        assert outcome.writes == 0
        assert ("GET", deployment.path("serving")) in asked
        assert len(bench.server.writes) == written

    run(case)


def test_a_kind_that_may_not_be_read_is_asked_for_and_told() -> None:
    """Its watch is tried again; meanwhile the status says why nothing happens, and the other kinds stay live."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        bench.server.fault = lambda m, path: refusal(403, "forbidden") if path.endswith("/services") else None
        services = next(k for k in KINDS if k.kind == "Service")
        bench.server.end_watches()
        await until(lambda: bench.store.of(services, KEY) is None)
        outcome, asked = await bench.reconcile()
        assert outcome.failed
        assert ("GET", services.path("serving")) in asked
        conditions = bench.server.one("DynamoPipeline", "llama")["status"]["conditions"]
        assert {c["reason"] for c in conditions if c["type"] == "Ready"} == {"Forbidden"}
        bench.server.fault = lambda m, path: None
        await until(bench.live)
        assert not (await bench.reconcile())[0].failed

    run(case)


def test_after_a_lost_history_ghosts_go() -> None:
    """What was deleted while nobody watched is not in the next list, and so is news."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        name = bench.server.names("Deployment")[0]
        gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
        del bench.server.objects["Deployment", "serving", name]
        bench.marked.clear()
        bench.server.break_watches("Deployment", gone)
        await until(lambda: KEY in bench.marked)
        assert (await bench.reconcile())[0].writes >= 1
        assert bench.server.names("Deployment") == [name]

    run(case)


def test_what_a_watch_leaves_out_is_listed_within_a_resync() -> None:
    """A live watch says nothing of a deletion and of an edit; the kind stays live meanwhile."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        bench.marked.clear()
        bench.server.mute |= {"Deployment", "Service"}
        services = bench.server.names("Service")
        bench.server.remove("Service", services[0])
        deployment = bench.server.one("Deployment", bench.server.names("Deployment")[0])
        bench.server.put({**deployment, "spec": {**deployment["spec"], "replicas": 7}})
        assert (await bench.reconcile())[0].writes == 0, "nobody has told"
        await until(lambda: len(bench.marked) >= 2)
        assert bench.live()
        assert (await bench.reconcile())[0].writes >= 2
        assert bench.server.names("Service") == services
        assert set(bench.marked) == {KEY}

    run(case, again=1.0)


def listed(asked: list[tuple[str, str]]) -> list[str]:
    """The kinds of which the pipeline's were asked for."""
    return sorted(path.rpartition("/")[2] for _, path in asked if path.endswith(("/pods", "/deployments")))


def test_who_stands_still_on_the_way_is_asked_for() -> None:
    """Two LISTs, after a while without news, and one pipeline a second; no write but the status. At rest nothing."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        await bench.reconcile()
        await bench.seen()
        bench.server.mute |= {"Pod", "Deployment"}
        bench.server.play()
        outcome, asked = await bench.reconcile()
        assert (outcome.writes, listed(asked)) == (0, [])
        written = len(bench.server.writes)
        outcome, asked = await bench.reconcile(is_quiet=True)
        assert listed(asked) == ["deployments", "pods"]
        assert [path.rpartition("/")[2] for _, path in bench.server.writes[written:]] == ["status", "events"]
        ready = bench.server.one("DynamoPipeline", "llama")["status"]["conditions"][0]
        assert (ready["status"], ready["reason"]) == ("True", "Serving")
        assert listed((await bench.reconcile(is_quiet=True))[1]) == [], "at rest"

    run(case)


def test_not_everybody_who_stands_still_asks() -> None:
    """A thousand pipelines without nodes are no load: one a second is asked for."""

    async def case(bench: Bench) -> None:
        now = NOW
        bench.reconciler = Reconciler(bench.api, SETTINGS, lambda: now, store=bench.store)
        await bench.reconcile()
        await bench.seen()
        assert len(listed((await bench.reconcile(is_quiet=True))[1])) == 2
        assert listed((await bench.reconcile(is_quiet=True))[1]) == []
        now += timedelta(seconds=1)
        assert len(listed((await bench.reconcile(is_quiet=True))[1])) == 2

    run(case)


def test_a_watch_that_stands_still_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pipeline finds it out, all are helped by it; one that only was late goes on."""
    monkeypatch.setattr(informer, "BEHIND_SECONDS", 0.3)

    async def case(bench: Bench) -> None:
        await bench.settle()
        bench.server.mute.add("Pod")
        name = bench.server.names("Pod")[0]
        other = {**bench.server.one("Pod", name), "status": {}}
        bench.server.put(other)
        lists = bench.server.requests.count(("GET", PODS.path()))
        assert bench.server.names("Pod") == [o["metadata"]["name"] for o in bench.store.of(PODS, KEY) or []]
        bench.informer.expect_version(
            PODS, "serving", int(bench.server.one("Pod", name)["metadata"]["resourceVersion"])
        )
        bench.marked.clear()
        await until(lambda: KEY in bench.marked)
        begun = bench.server.requests.count(("GET", PODS.path()))
        assert begun > lists
        bench.server.mute.clear()
        await until(lambda: any(kind == "Pod" for kind, _ in bench.server.watchers))
        monkeypatch.setattr(informer, "BEHIND_SECONDS", 2.0)  # a busy machine brings an event late, too
        await asyncio.sleep(0.5)  # what was due by the shorter time has begun
        begun = bench.server.requests.count(("GET", PODS.path()))
        record = bench.server.put({**other, "metadata": {"name": name, "labels": other["metadata"]["labels"]}})
        bench.informer.expect_version(PODS, "serving", int(record["metadata"]["resourceVersion"]))
        await asyncio.sleep(2.5)
        assert bench.server.requests.count(("GET", PODS.path())) == begun

    run(case)
