"""What the fault proxy decides, what it then does to requests and watches, and when two clusters count as alike."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from e2e.apiserver.alike import normal, unlike
from e2e.apiserver.faults import REFUSALS, Fate, Faults, Request, Script, Snapshot, Told, selects
from e2e.apiserver.proxy import serving
from tests.operator.apiserver import ApiServer
from tests.operator.pipelines import SMALLEST, body, pipeline
from tests.operator.played_cluster import Cluster

from dynamo.operator.kube.client import MERGE, Api
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.resources import PIPELINES, resource_of

SERVICES = resource_of("Service")
PATCH = Request("PATCH", "services", "serving", "llama-frontend")
GET = Request("GET", "services", "serving", "llama-frontend")


@pytest.mark.parametrize(
    ("path", "query", "said", "kind"),
    [
        ("/apis/apps/v1/namespaces/a/deployments/b", {}, "GET deployments/b", ""),
        ("/api/v1/namespaces/a/pods", {"limit": "1"}, "GET pods", "list"),
        ("/api/v1/pods", {"watch": "true"}, "GET pods", "watch"),
        ("/apis/dynamo.dev/v1alpha1/namespaces/a/dynamopipelines/b/status", {}, "GET dynamopipelines/b/status", ""),
        ("/api/v1/namespaces/a", {}, "GET namespaces/a", ""),
        ("/apis", {}, "GET ", ""),
        ("/version", {}, "GET ", ""),
    ],
)
def test_a_request_is_taken_apart(path: str, query: dict[str, str], said: str, kind: str) -> None:
    """Which resource it asks for, and in which form."""
    result = Request.of("GET", path, query)
    assert (str(result), result.is_list, result.is_watch) == (said, kind == "list", kind == "watch")
    assert not result.is_write
    assert Request.of("DELETE", path, query).is_write


def test_the_moment_of_a_crash() -> None:
    """The write is carried out, nobody hears of it, and nothing comes after it; then all is well again."""
    script = Script()
    assert script.asked(PATCH) is Fate.PASSES
    script.cut_at(2)
    fates = [script.asked(part) for part in (GET, PATCH, PATCH, GET, PATCH)]
    assert fates == [Fate.PASSES, Fate.PASSES, Fate.LOST, Fate.CUT, Fate.CUT]
    assert script.writes == ["PATCH services/llama-frontend"] * 3
    script.mend()
    assert [script.asked(part) for part in (GET, PATCH)] == [Fate.PASSES, Fate.PASSES]


def test_one_write_is_refused_or_not_answered() -> None:
    """The next ones are as ever."""
    script = Script(refuse=(2, REFUSALS[0]), lose=3)
    assert [script.asked(PATCH) for _ in range(4)] == [Fate.PASSES, REFUSALS[0], Fate.LOST, Fate.PASSES]


def test_a_write_to_what_is_not_there_is_known_as_one() -> None:
    """The last one like it, once; an answer that it found something says nothing."""
    faults = Faults()
    script = faults.script("serving")
    for status in (200, 404):
        faults.asked(PATCH)
        faults.answered(PATCH, status)
        faults.answered(GET, 404)
    assert (len(script.writes), script.missed) == (2, {1})


def test_every_write_of_a_kind_may_be_refused() -> None:
    """For good; its status, other kinds and reads pass."""
    script = Script(always={"services": REFUSALS[4]})
    asked = (PATCH, PATCH, GET, Request("PATCH", "services", "a", "b", "status"), Request("PATCH", "pods", "a", "b"))
    assert [script.asked(request) for request in asked] == [REFUSALS[4], REFUSALS[4], *[Fate.PASSES] * 3]


def test_one_event_is_dropped_or_late() -> None:
    """The second of its kind and type; bookmarks and other namespaces pass uncounted."""
    faults = Faults()
    script = faults.script("serving")
    script.drop, script.hold = Told("services", "ADDED", 2), (Told("pods", "ADDED", 1), 3.0)
    results = [faults.told(*entry) for entry in (
        ("services", event("ADDED")), ("services", event("MODIFIED")), ("services", event("BOOKMARK")),
        ("services", event("ADDED", "other")), ("services", event("ADDED")), ("services", event("ADDED")),
        ("pods", event("ADDED")),
    )]  # fmt: skip
    assert results == [0.0, 0.0, 0.0, 0.0, None, 0.0, 3.0]
    assert script.events[-1] == Told("pods", "ADDED", 1)


def event(kind: str, namespace: str = "serving") -> dict[str, Any]:
    """As a watch tells it."""
    return {"type": kind, "object": {"metadata": {"namespace": namespace}}}


def test_a_kind_that_is_shut() -> None:
    """Neither lists nor watches; single objects are still there."""
    faults = Faults()
    faults.shut["services"] = REFUSALS[3]
    assert faults.asked(Request("GET", "services")) == REFUSALS[3]
    assert faults.asked(Request("GET", "services", query={"watch": "true"})) == REFUSALS[3]
    assert faults.asked(GET) is Fate.PASSES


def test_a_list_of_some_time_ago() -> None:
    """By namespace and label, whole whatever page is wanted; everything else is as of now."""
    items = [
        {"metadata": {"name": n, "namespace": s, "labels": {"l": n}}} for n, s in (("a", "x"), ("b", "x"), ("a", "y"))
    ]
    old = Snapshot({"services": {"metadata": {"resourceVersion": "7", "continue": "more"}, "items": items}})
    answer = old.answer(Request("GET", "services", "x", query={"labelSelector": "l=a", "limit": "1"}))
    assert answer == {"metadata": {"resourceVersion": "7"}, "items": items[:1]}
    for other in (GET, Request("GET", "pods"), Request("GET", "services", query={"watch": "true"}), PATCH):
        assert old.answer(other) is None
    assert [selects(s, items[0]) for s in ("", "l", "l=a", "l=b", "m", "l,l=a", "l=a,m=b")] == [
        True, True, True, False, False, True, False,
    ]  # fmt: skip


async def test_what_the_proxy_does() -> None:
    """Answers pass unchanged; a lost one was carried out, a cut one was not, a refusal has the server's form."""
    async with ApiServer() as server, aiohttp.ClientSession() as session:
        with serving(server.url) as proxy:
            api = Api(session, proxy.url)
            script = proxy.faults.script("serving")
            made = server.put(body(SMALLEST))
            assert await api.get(PIPELINES, "serving", "llama") == made
            assert await api.get(PIPELINES, "serving", "other") is None
            script.refuse, script.lose, script.cut_after = (1, REFUSALS[3]), 2, 3
            for number, (code, carried_out) in enumerate(((429, 0), (0, 2), (0, 3), (0, 3)), 1):
                with pytest.raises(ApiError) as error:
                    await labelled(api, number)
                assert (error.value.code, label(server)) == (code, carried_out)
                assert error.value.retry_after == (1 if code == 429 else None)
            script.mend()
            await labelled(api, 5)
            assert label(server) == 5


async def labelled(api: Api, number: int) -> None:
    """Not by a method that the session would repeat by itself."""
    await api._send("PATCH", PIPELINES.path("serving", "llama"), None, {"metadata": {"labels": {"n": number}}}, MERGE)


def label(server: ApiServer) -> int:
    """The last one that was written."""
    return int(server.one(PIPELINES.kind, "llama")["metadata"].get("labels", {}).get("n", 0))


async def test_watches_through_the_proxy() -> None:
    """An event is left out, the next one comes; and a broken stream ends with the server's word."""
    async with ApiServer() as server, aiohttp.ClientSession() as session:
        with serving(server.url) as proxy:
            api, heard = Api(session, proxy.url), asyncio.Queue[str]()
            proxy.faults.script("serving").drop = Told("services", "ADDED", 2)

            async def follow() -> int:
                try:
                    async for change in api.watch(SERVICES, None, "", "0"):
                        heard.put_nowait(change["object"]["metadata"]["name"])
                except ApiError as error:
                    return error.code
                return 0

            task = asyncio.create_task(follow())
            for name in ("a", "b", "c"):
                server.put({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}})
            assert [await heard.get(), await heard.get()] == ["a", "c"]
            assert await asyncio.to_thread(proxy.break_watches, "pods", REFUSALS[1]) == 0
            assert await asyncio.to_thread(proxy.break_watches, "services", REFUSALS[1]) == 1
            assert await task == 410


def live(namespace: str, uid: str) -> list[dict[str, Any]]:
    """A settled pipeline's objects as a server of that namespace would have them."""
    cluster = Cluster()
    cluster.settle(pipeline(SMALLEST))
    text = json.dumps(cluster.live()).replace('"serving"', f'"{namespace}"')
    document: list[dict[str, Any]] = json.loads(text)
    for number, entry in enumerate(document):
        entry["metadata"] |= {"uid": f"{uid}{number}", "resourceVersion": f"{number}", "creationTimestamp": uid}
    return document


def test_two_runs_are_alike() -> None:
    """Whatever the server drew; and in another namespace."""
    assert unlike(normal(live("here", "x"), "here"), normal(live("elsewhere", "y"), "elsewhere")) == []


@pytest.mark.parametrize(
    ("what", "path"),
    [
        (lambda live: live.pop(), ""),
        (lambda live: by_kind(live, "Deployment")["spec"].update(replicas=9), "spec.replicas"),
        (lambda live: by_kind(live, "Service")["metadata"].update(labels={}), "metadata.labels"),
        (lambda live: by_kind(live, "Service")["metadata"].update(annotations={"theirs": "x"}), "annotations.theirs"),
        (lambda live: by_kind(live, "Service")["metadata"].update(ownerReferences=[]), "ownerReferences"),
        (lambda live: by_kind(live, "Pod").update(status={}), "pods"),
        (lambda live: by_kind(live, "Service").update(metadata=dict(by_kind(live, "Service")["metadata"],
                                                        managedFields=[{"manager": "x", "operation": "Update"}])),
         "managers"),
    ],
)  # fmt: skip
def test_what_differs_is_seen(what: Any, path: str) -> None:
    """One object less, a field, a label, an owner, a pod that isn't ready, another field owner."""
    changed = copy.deepcopy(live("here", "x"))
    what(changed)
    differences = unlike(normal(live("here", "x"), "here"), normal(changed, "here"))
    assert differences
    assert path in " ".join(differences)


def by_kind(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The first one."""
    return next(entry for entry in manifests if entry["kind"] == kind)
