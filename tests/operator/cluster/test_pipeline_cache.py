"""What the watch told of pipelines: order, deletion, our own writes; and what looks by it may not do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.operator.apiserver import ApiServer, refusal
from tests.operator.pipelines import SMALLEST, body
from tests.operator.test_mirroring import Sight, seeing
from tests.operator.test_reconcile import KEY
from tests.operator.test_run import run, until

from dynamo.operator.dirty import Key
from dynamo.operator.kinds import PIPELINES, ROUTES
from dynamo.operator.latest import Latest
from dynamo.operator.reconcile import Outcome

ASKED = ("GET", PIPELINES.path("serving", "llama"))


def of_serving(asked: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without the watches, which are of all namespaces."""
    return [one for one in asked if "/namespaces/" in one[1]]


def told(version: int, uid: str = "u", **more: Any) -> dict[str, Any]:
    metadata = {"namespace": "serving", "name": "llama", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata | {"managedFields": ["x"] * 9}, **more}


def version(latest: Latest) -> int | None:
    found = latest.of(KEY)
    return None if found is None else int(found["metadata"]["resourceVersion"])


def test_the_newest_stands_without_managed_fields() -> None:
    """An answer to a write may come before the events of what was before it."""
    latest = Latest()
    assert latest.of(KEY) is None
    latest.told(told(5))
    latest.wrote(told(8, status={"x": 1}))
    latest.told(told(6))
    latest.wrote(told(7))
    found = latest.of(KEY)
    assert found is not None
    assert (found["metadata"]["resourceVersion"], found["status"]) == ("8", {"x": 1})
    assert "managedFields" not in json.dumps(found)


def test_an_answer_brings_nothing_back() -> None:
    """Of a pipeline that is gone, or of one that had its name before."""
    latest = Latest()
    latest.wrote(told(5))
    assert version(latest) is None
    latest.told(told(6, uid="new"))
    latest.wrote(told(9, uid="old"))
    assert version(latest) == 6
    latest.told(told(3, uid="newer"))
    assert version(latest) == 3, "the watch tells in order, whatever a restored etcd counts"
    latest.gone(KEY)
    latest.wrote(told(10, uid="newer"))
    assert version(latest) is None


def test_a_list_ends_what_is_old_or_gone() -> None:
    """The watch may have died without a word."""
    latest = Latest()
    latest.told(told(5))
    latest.listed({KEY: 5})
    assert version(latest) == 5
    latest.listed({KEY: 6})
    assert version(latest) is None
    latest.told(told(7))
    latest.listed({Key("serving", "other"): 1})
    assert version(latest) is None
    latest.told(told(8))
    latest.clear()
    assert version(latest) is None


@asynccontextmanager
async def informed() -> AsyncIterator[tuple[Sight, Latest]]:
    """A reconciler that was told of the pipeline as it is on the server."""
    async with seeing() as sight:
        latest = Latest()
        sight.know(latest)
        latest.told(sight.server.one(PIPELINES.kind, "llama"))
        yield sight, latest


def test_creation_and_rest_ask_nothing() -> None:
    """What the watches told is enough, our own status writes are known at once."""

    async def case(_: ApiServer) -> None:
        async with informed() as (sight, _latest):
            outcome, asked = await sight.look()
            assert outcome.writes == 7
            assert {path for method, path in of_serving(asked) if method == "GET"} <= {ROUTES.path("serving")}
            assert (await sight.look())[0].writes == 0
            await sight.settle()
            written = len(sight.server.writes)
            outcome, asked = await sight.look()
            assert (outcome, of_serving(asked)) == (Outcome(), [])
            assert len(sight.server.writes) == written

    run(case)


def test_what_changes_something_is_asked_for() -> None:
    """The spec that was told is old: the look that would write by it reads the new one first."""

    async def case(_: ApiServer) -> None:
        async with informed() as (sight, _latest):
            await sight.settle()
            name = sight.server.names("Deployment")[0]
            found = sight.server.one("Deployment", name)
            sight.server.put({**found, "spec": {**found["spec"], "replicas": 7}})
            new = body({**SMALLEST, "frontend": {"replicas": 3}})
            new["metadata"]["generation"] = 2
            sight.server.put({**new, "status": sight.server.one(PIPELINES.kind, "llama")["status"]})
            await sight.seen()
            outcome, asked = await sight.look()
            assert ASKED in asked
            assert outcome.writes >= 1
            assert sight.server.one("Deployment", name)["spec"]["replicas"] == 3

    run(case)


def test_after_a_failed_look_the_server_is_asked() -> None:
    """The pipeline was made anew: the status of the old one is refused, and the next look is of the new one."""

    async def case(_: ApiServer) -> None:
        async with informed() as (sight, latest):
            sight.server.fault = lambda m, path: refusal(409, "uid differs") if path.endswith("/status") else None
            assert (await sight.look())[0].failed
            assert latest.of(KEY) is None
            sight.server.fault = lambda m, path: None
            assert ASKED in (await sight.look())[1]

    run(case)


def test_a_deleted_pipeline_is_asked_for_once() -> None:
    """Its event ends what was told; the server says that it is gone."""

    async def case(_: ApiServer) -> None:
        async with informed() as (sight, latest):
            latest.gone(KEY)
            sight.server.remove(PIPELINES.kind, "llama")
            outcome, asked = await sight.look()
            assert (outcome, of_serving(asked)) == (Outcome(gone=True), [ASKED])

    run(case)


def test_nothing_is_made_anew_for_a_pipeline_whose_end_is_not_yet_told() -> None:
    """Its children's deletions are told first: who would believe that it is there would make them again."""

    async def case(_: ApiServer) -> None:
        async with informed() as (sight, _latest):
            await sight.settle()
            for kind, namespace, name in list(sight.server.objects):
                sight.server.remove(kind, name, namespace)
            await until(lambda: sight.mirror.size() == 0)
            outcome, asked = await sight.look()
            assert (outcome, of_serving(asked)[-1]) == (Outcome(gone=True), ASKED)
            assert not sight.server.objects

    run(case)


def test_what_is_found_out_of_an_old_pipeline_is_not_told_of_the_new_one() -> None:
    """The edit's event is late, and a pod ends: the status of the edited pipeline doesn't go back to the old one's."""

    async def case(_: ApiServer) -> None:
        async with informed() as (sight, latest):
            await sight.settle()
            found = sight.server.one(PIPELINES.kind, "llama")
            metadata = {**found["metadata"], "generation": 2}
            new = sight.server.put(
                {**found, "metadata": metadata, "status": {**found["status"], "observedGeneration": 2}}
            )
            sight.server.remove("Pod", sight.server.names("Pod")[0])
            await sight.seen()
            assert (await sight.look())[0].failed
            assert sight.server.one(PIPELINES.kind, "llama") == new
            assert latest.of(KEY) is None
            await sight.look()
            (ready,) = (
                c for c in sight.server.one(PIPELINES.kind, "llama")["status"]["conditions"] if c["type"] == "Ready"
            )
            assert (ready["status"], ready["observedGeneration"]) == ("False", 2)

    run(case)
