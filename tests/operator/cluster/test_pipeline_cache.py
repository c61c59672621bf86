"""What the watch told of pipelines: order, deletion, our own writes; and what looks by it may not do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.operator.apiserver import ApiServer, refusal
from tests.operator.cluster.test_informer import Bench, watching
from tests.operator.pipelines import SMALLEST, body
from tests.operator.reconcile.test_reconciler import KEY
from tests.operator.test_leadership import run, until

from dynamo.operator.cluster.pipeline_cache import PipelineCache
from dynamo.operator.kube.resources import PIPELINES, ROUTES, Key
from dynamo.operator.reconcile.reconciler import Outcome

ASKED = ("GET", PIPELINES.path("serving", "llama"))


def of_serving(asked: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without the watches, which are of all namespaces."""
    return [request for request in asked if "/namespaces/" in request[1]]


def told(version: int, uid: str = "u", **more: Any) -> dict[str, Any]:
    metadata = {"namespace": "serving", "name": "llama", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata | {"managedFields": ["x"] * 9}, **more}


def version(cache: PipelineCache) -> int | None:
    result = cache.of(KEY)
    return None if result is None else int(result["metadata"]["resourceVersion"])


def test_the_newest_stands_without_managed_fields() -> None:
    """An answer to a write may come before the events of what was before it."""
    cache = PipelineCache()
    assert cache.of(KEY) is None
    cache.put(told(5))
    cache.wrote(told(8, status={"x": 1}))
    cache.put(told(6))
    cache.wrote(told(7))
    result = cache.of(KEY)
    assert result is not None
    assert (result["metadata"]["resourceVersion"], result["status"]) == ("8", {"x": 1})
    assert "managedFields" not in json.dumps(result)


def test_an_answer_brings_nothing_back() -> None:
    """Of a pipeline that is gone, or of one that had its name before."""
    cache = PipelineCache()
    cache.wrote(told(5))
    assert version(cache) is None
    cache.put(told(6, uid="new"))
    cache.wrote(told(9, uid="old"))
    assert version(cache) == 6
    cache.put(told(3, uid="newer"))
    assert version(cache) == 3, "the watch tells in order, whatever a restored etcd counts"
    cache.gone(KEY)
    cache.wrote(told(10, uid="newer"))
    assert version(cache) is None


def test_a_list_ends_what_is_old_or_gone() -> None:
    """The watch may have died without a word."""
    cache = PipelineCache()
    cache.put(told(5))
    cache.listed({KEY: 5})
    assert version(cache) == 5
    cache.listed({KEY: 6})
    assert version(cache) is None
    cache.put(told(7))
    cache.listed({Key("serving", "other"): 1})
    assert version(cache) is None
    cache.put(told(8))
    cache.clear()
    assert version(cache) is None


@asynccontextmanager
async def informed() -> AsyncIterator[tuple[Bench, PipelineCache]]:
    """A reconciler that was told of the pipeline as it is on the server."""
    async with watching() as bench:
        cache = PipelineCache()
        bench.know(cache)
        cache.put(bench.server.one(PIPELINES.kind, "llama"))
        yield bench, cache


def test_creation_and_rest_ask_nothing() -> None:
    """What the watches told is enough, our own status writes are known at once."""

    async def case(_: ApiServer) -> None:
        async with informed() as (bench, _cache):
            outcome, asked = await bench.reconcile()
            assert outcome.writes == 7
            assert {path for method, path in of_serving(asked) if method == "GET"} <= {ROUTES.path("serving")}
            assert (await bench.reconcile())[0].writes == 0
            await bench.settle()
            written = len(bench.server.writes)
            outcome, asked = await bench.reconcile()
            assert (outcome, of_serving(asked)) == (Outcome(), [])
            assert len(bench.server.writes) == written

    run(case)


def test_what_changes_something_is_asked_for() -> None:
    """The spec that was told is old: the look that would write by it reads the new one first."""

    async def case(_: ApiServer) -> None:
        async with informed() as (bench, _cache):
            await bench.settle()
            name = bench.server.names("Deployment")[0]
            live = bench.server.one("Deployment", name)
            bench.server.put({**live, "spec": {**live["spec"], "replicas": 7}})
            new = body({**SMALLEST, "frontend": {"replicas": 3}})
            new["metadata"]["generation"] = 2
            bench.server.put({**new, "status": bench.server.one(PIPELINES.kind, "llama")["status"]})
            await bench.seen()
            outcome, asked = await bench.reconcile()
            assert ASKED in asked
            assert outcome.writes >= 1
            assert bench.server.one("Deployment", name)["spec"]["replicas"] == 3

    run(case)


def test_after_a_failed_look_the_server_is_asked() -> None:
    """The pipeline was made anew: the status of the old one is refused, and the next reconcile is of the new one."""

    async def case(_: ApiServer) -> None:
        async with informed() as (bench, cache):
            bench.server.fault = lambda m, path: refusal(409, "uid differs") if path.endswith("/status") else None
            assert (await bench.reconcile())[0].failed
            assert cache.of(KEY) is None
            bench.server.fault = lambda m, path: None
            assert ASKED in (await bench.reconcile())[1]

    run(case)


def test_a_deleted_pipeline_is_asked_for_once() -> None:
    """Its event ends what was told; the server says that it is gone."""

    async def case(_: ApiServer) -> None:
        async with informed() as (bench, cache):
            cache.gone(KEY)
            bench.server.remove(PIPELINES.kind, "llama")
            outcome, asked = await bench.reconcile()
            assert (outcome, of_serving(asked)) == (Outcome(gone=True), [ASKED])

    run(case)


def test_nothing_is_made_anew_for_a_pipeline_whose_end_is_not_yet_told() -> None:
    """Its children's deletions are told first: who would believe that it is there would make them again."""

    async def case(_: ApiServer) -> None:
        async with informed() as (bench, _cache):
            await bench.settle()
            for kind, namespace, name in list(bench.server.objects):
                bench.server.remove(kind, name, namespace)
            await until(lambda: bench.store.size() == 0)
            outcome, asked = await bench.reconcile()
            assert (outcome, of_serving(asked)[-1]) == (Outcome(gone=True), ASKED)
            assert not bench.server.objects

    run(case)


def test_what_is_found_out_of_an_old_pipeline_is_not_told_of_the_new_one() -> None:
    """The edit's event is late, and a pod ends: the status of the edited pipeline doesn't go back to the old one's."""

    async def case(_: ApiServer) -> None:
        async with informed() as (bench, cache):
            await bench.settle()
            live = bench.server.one(PIPELINES.kind, "llama")
            metadata = {**live["metadata"], "generation": 2}
            new = bench.server.put(
                {**live, "metadata": metadata, "status": {**live["status"], "observedGeneration": 2}}
            )
            bench.server.remove("Pod", bench.server.names("Pod")[0])
            await bench.seen()
            assert (await bench.reconcile())[0].failed
            assert bench.server.one(PIPELINES.kind, "llama") == new
            assert cache.of(KEY) is None
            await bench.reconcile()
            (ready,) = (
                c for c in bench.server.one(PIPELINES.kind, "llama")["status"]["conditions"] if c["type"] == "Ready"
            )
            assert (ready["status"], ready["observedGeneration"]) == ("False", 2)

    run(case)
