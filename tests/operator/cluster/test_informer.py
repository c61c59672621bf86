"""Looks that read the mirror, against an API server in memory: what they ask, what stale sight may not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import aiohttp
import pytest
from tests.operator.apiserver import ApiServer, refusal
from tests.operator.pipelines import SMALLEST, body
from tests.operator.test_reconcile import KEY, NOW, SETTINGS, TWO
from tests.operator.test_run import until

from dynamo.operator import mirroring
from dynamo.operator.dirty import Key, Turn
from dynamo.operator.intervals import Intervals
from dynamo.operator.kinds import CHILDREN, PIPELINES, PODS
from dynamo.operator.kube import Api
from dynamo.operator.latest import Latest
from dynamo.operator.mirror import Mirror
from dynamo.operator.mirroring import Mirroring
from dynamo.operator.reconcile import Outcome, Reconciler

KINDS = (*CHILDREN, PODS)


class Sight:
    """A reconciler with a mirror whose watches run."""

    def __init__(self, server: ApiServer, api: Api, again: float) -> None:
        self.server, self.api, self.mirror = server, api, Mirror()
        self.marked: list[Key] = []
        self.mirroring = Mirroring(api, self.mirror, self.marked.append, again=again)
        self.looks = Reconciler(api, SETTINGS, mirror=self.mirror, missed=self.mirroring.missed)

    def know(self, latest: Latest) -> None:
        """From now on what was told of pipelines is believed."""
        self.looks = Reconciler(self.api, SETTINGS, mirror=self.mirror, latest=latest)

    def live(self) -> bool:
        return all(self.mirror.of(kind, KEY) is not None for kind in KINDS)

    async def look(self, *, is_quiet: bool = False) -> tuple[Outcome, list[tuple[str, str]]]:
        """One look, and what it asked."""
        before = len(self.server.requests)
        outcome = await self.looks.reconcile(KEY, Turn(is_quiet=is_quiet))
        return outcome, self.server.requests[before:]

    async def seen(self) -> None:
        """Until the mirror has what the server has."""
        count = sum(k != PIPELINES.kind for k, _, _ in self.server.objects)
        await until(lambda: self.live() and self.mirror.size() == count)
        await asyncio.sleep(0.05)

    async def settle(self) -> None:
        for _ in range(20):
            outcome, _ = await self.look()
            self.server.play()
            await self.seen()
            if not outcome.writes and not (await self.look())[0].writes:
                return
        raise AssertionError(f"no rest: {self.server.writes[-5:]}")


@asynccontextmanager
async def seeing(spec: dict[str, object] = SMALLEST, again: float = Intervals.resync) -> AsyncIterator[Sight]:
    async with ApiServer() as server, aiohttp.ClientSession() as session:
        server.put(body(spec))
        sight = Sight(server, Api(session, server.url), again)
        task = asyncio.create_task(sight.mirroring.run())
        await sight.mirroring.settled()
        try:
            yield sight
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def run(
    case: Callable[[Sight], Awaitable[None]], spec: dict[str, object] = SMALLEST, again: float = Intervals.resync
) -> None:
    async def main() -> None:
        async with seeing(spec, again) as sight:
            await case(sight)

    asyncio.run(main())


def test_a_look_at_rest_asks_for_the_pipeline_only() -> None:
    """No LIST, no write."""

    async def case(sight: Sight) -> None:
        await sight.settle()
        outcome, asked = await sight.look()
        assert outcome == Outcome()
        assert asked == [("GET", PIPELINES.path("serving", "llama"))]

    run(case, TWO)


def test_creation_asks_for_the_pipeline_only() -> None:
    """What isn't there is made; the server refuses it where anything is, so nothing needs to be asked."""

    async def case(sight: Sight) -> None:
        outcome, asked = await sight.look()
        assert outcome.writes == 7
        gets = [path for method, path in asked if method == "GET" and "/namespaces/serving/" in path]
        assert [path for path in gets if not path.endswith("/httproutes")] == [PIPELINES.path("serving", "llama")]

    run(case)


def test_own_writes_are_known_at_once() -> None:
    """Before any event has come, the next look finds nothing to write, and no event of them marks anything."""

    async def case(sight: Sight) -> None:
        await sight.look()
        outcome, asked = await sight.look()
        assert outcome.writes == 0
        assert [path for _, path in asked if "/namespaces/" in path] == [PIPELINES.path("serving", "llama")]
        await sight.seen()
        assert sight.marked == []

    run(case)


def test_what_others_do_is_news() -> None:
    """A pod that appears, a child that is edited or removed: the pipeline is looked at, and set right."""

    async def case(sight: Sight) -> None:
        await sight.settle()
        for kind in ("Deployment", "Service"):
            sight.marked.clear()
            sight.server.remove(kind, sight.server.names(kind)[0])
            await until(lambda: KEY in sight.marked)
            assert (await sight.look())[0].writes >= 1
        await sight.seen()
        sight.marked.clear()
        found = sight.server.one("StatefulSet", sight.server.names("StatefulSet")[0])
        sight.server.put({**found, "spec": {**found["spec"], "replicas": 7}})
        await until(lambda: KEY in sight.marked)
        outcome, asked = await sight.look()
        assert outcome.writes >= 1
        assert ("GET", PODS.path("serving")) in asked, "before a change of what is there, all is read anew"

    run(case)


def test_stale_sight_writes_nothing_wrong() -> None:
    """The mirror stands still while others act: what it takes for missing or for wrong is looked at before a write."""

    async def case(sight: Sight) -> None:
        await sight.settle()
        for kind, _, name in list(sight.server.objects):
            if kind in ("Service", "StatefulSet"):
                sight.mirror.forget(next(k for k in KINDS if k.kind == kind), "serving", name)
        written = len(sight.server.writes)
        assert (await sight.look())[0].writes == 0
        deployment = next(k for k in KINDS if k.kind == "Deployment")
        seen = sight.mirror.of(deployment, KEY) or []
        spec = {**seen[0]["spec"], "replicas": 9}
        late = {**seen[0], "spec": spec, "metadata": {**seen[0]["metadata"], "resourceVersion": "99999999"}}
        sight.mirror.take(deployment, late)
        outcome, asked = await sight.look()
        assert outcome.writes == 0
        assert ("GET", deployment.path("serving")) in asked
        assert len(sight.server.writes) == written

    run(case)


def test_a_kind_that_may_not_be_read_is_asked_for_and_told() -> None:
    """Its watch is tried again; meanwhile the status says why nothing happens, and the other kinds stay live."""

    async def case(sight: Sight) -> None:
        await sight.settle()
        sight.server.fault = lambda m, path: refusal(403, "forbidden") if path.endswith("/services") else None
        services = next(k for k in KINDS if k.kind == "Service")
        sight.server.end_watches()
        await until(lambda: sight.mirror.of(services, KEY) is None)
        outcome, asked = await sight.look()
        assert outcome.failed
        assert ("GET", services.path("serving")) in asked
        found = sight.server.one("DynamoPipeline", "llama")["status"]["conditions"]
        assert {c["reason"] for c in found if c["type"] == "Ready"} == {"Forbidden"}
        sight.server.fault = lambda m, path: None
        await until(sight.live)
        assert not (await sight.look())[0].failed

    run(case)


def test_after_a_lost_history_ghosts_go() -> None:
    """What was deleted while nobody watched is not in the next list, and so is news."""

    async def case(sight: Sight) -> None:
        await sight.settle()
        name = sight.server.names("Deployment")[0]
        gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
        del sight.server.objects["Deployment", "serving", name]
        sight.marked.clear()
        sight.server.break_watches("Deployment", gone)
        await until(lambda: KEY in sight.marked)
        assert (await sight.look())[0].writes >= 1
        assert sight.server.names("Deployment") == [name]

    run(case)


def test_what_a_watch_leaves_out_is_listed_within_a_resync() -> None:
    """A live watch says nothing of a deletion and of an edit; the kind stays live meanwhile."""

    async def case(sight: Sight) -> None:
        await sight.settle()
        sight.marked.clear()
        sight.server.mute |= {"Deployment", "Service"}
        services = sight.server.names("Service")
        sight.server.remove("Service", services[0])
        deployment = sight.server.one("Deployment", sight.server.names("Deployment")[0])
        sight.server.put({**deployment, "spec": {**deployment["spec"], "replicas": 7}})
        assert (await sight.look())[0].writes == 0, "nobody has told"
        await until(lambda: len(sight.marked) >= 2)
        assert sight.live()
        assert (await sight.look())[0].writes >= 2
        assert sight.server.names("Service") == services
        assert set(sight.marked) == {KEY}

    run(case, again=1.0)


def listed(asked: list[tuple[str, str]]) -> list[str]:
    """The kinds of which the pipeline's were asked for."""
    return sorted(path.rpartition("/")[2] for _, path in asked if path.endswith(("/pods", "/deployments")))


def test_who_stands_still_on_the_way_is_asked_for() -> None:
    """Two LISTs, after a while without news, and one pipeline a second; no write but the status. At rest nothing."""

    async def case(sight: Sight) -> None:
        await sight.look()
        await sight.look()
        await sight.seen()
        sight.server.mute |= {"Pod", "Deployment"}
        sight.server.play()
        outcome, asked = await sight.look()
        assert (outcome.writes, listed(asked)) == (0, [])
        written = len(sight.server.writes)
        outcome, asked = await sight.look(is_quiet=True)
        assert listed(asked) == ["deployments", "pods"]
        assert [path.rpartition("/")[2] for _, path in sight.server.writes[written:]] == ["status", "events"]
        ready = sight.server.one("DynamoPipeline", "llama")["status"]["conditions"][0]
        assert (ready["status"], ready["reason"]) == ("True", "Serving")
        assert listed((await sight.look(is_quiet=True))[1]) == [], "at rest"

    run(case)


def test_not_everybody_who_stands_still_asks() -> None:
    """A thousand pipelines without nodes are no load: one a second is asked for."""

    async def case(sight: Sight) -> None:
        now = NOW
        sight.looks = Reconciler(sight.api, SETTINGS, lambda: now, mirror=sight.mirror)
        await sight.look()
        await sight.seen()
        assert len(listed((await sight.look(is_quiet=True))[1])) == 2
        assert listed((await sight.look(is_quiet=True))[1]) == []
        now += timedelta(seconds=1)
        assert len(listed((await sight.look(is_quiet=True))[1])) == 2

    run(case)


def test_a_watch_that_stands_still_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pipeline finds it out, all are helped by it; one that only was late goes on."""
    monkeypatch.setattr(mirroring, "BEHIND_SECONDS", 0.3)

    async def case(sight: Sight) -> None:
        await sight.settle()
        sight.server.mute.add("Pod")
        name = sight.server.names("Pod")[0]
        other = {**sight.server.one("Pod", name), "status": {}}
        sight.server.put(other)
        lists = sight.server.requests.count(("GET", PODS.path()))
        assert sight.server.names("Pod") == [o["metadata"]["name"] for o in sight.mirror.of(PODS, KEY) or []]
        sight.mirroring.missed(PODS, "serving", int(sight.server.one("Pod", name)["metadata"]["resourceVersion"]))
        sight.marked.clear()
        await until(lambda: KEY in sight.marked)
        begun = sight.server.requests.count(("GET", PODS.path()))
        assert begun > lists
        sight.server.mute.clear()
        await until(lambda: any(kind == "Pod" for kind, _ in sight.server.watchers))
        found = sight.server.put({**other, "metadata": {"name": name, "labels": other["metadata"]["labels"]}})
        sight.mirroring.missed(PODS, "serving", int(found["metadata"]["resourceVersion"]))
        await asyncio.sleep(0.8)
        assert sight.server.requests.count(("GET", PODS.path())) == begun

    run(case)
