"""The reconciler against an API server in memory: creation, rest, drift, pruning, refusals, kills between writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.apiserver import ApiServer, refusal
from tests.operator.pipelines import ROUTED, SMALLEST, Spec, body

from dynamo.operator.kube.client import Api, encoded
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.resources import Key
from dynamo.operator.manifests.context import ClusterSettings
from dynamo.operator.reconcile.reconciler import Outcome, Reconciler
from dynamo.operator.settings import Settings

NOW = datetime(2026, 11, 21, tzinfo=UTC)
SETTINGS = Settings(
    ("http://etcd:2379",), "nats://nats:4222", ClusterSettings("dynamo/frontend:1", {"default": "dynamo/worker:1"})
)
THEIRS = {"kind": "Chart", "name": "theirs", "uid": "another", "controller": True}
KEY = Key("serving", "llama")
TWO: Spec = {"components": [{"engine": "mocker", "replicas": 2}, {"name": "more", "engine": "mocker", "replicas": 1}]}


class Bench:
    """A server with one pipeline, and the reconciler in front of it."""

    def __init__(self, server: ApiServer, api: Api) -> None:
        self.server, self.api = server, api
        self.reconciler = Reconciler(api, SETTINGS, lambda: NOW)

    def ask(self, spec: Spec) -> None:
        """A user applies this."""
        old = self.server.objects.get(("DynamoPipeline", "serving", "llama"))
        new = body(spec)
        if old:
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
            new |= {"status": old["status"]} if "status" in old else {}
        self.server.put(new)

    async def reconcile(self) -> Outcome:
        return await self.reconciler.reconcile(KEY)

    async def settle(self) -> None:
        for _ in range(40):
            outcome = await self.reconcile()
            self.server.play()
            if not outcome.writes and not (await self.reconcile()).writes:
                return
        raise AssertionError(f"no rest: {self.server.writes[-5:]}")

    @property
    def status(self) -> dict[str, Any]:
        fields: dict[str, Any] = self.server.one("DynamoPipeline", "llama").get("status", {})
        return fields

    def condition(self, kind: str) -> dict[str, Any] | None:
        return next((c for c in self.status.get("conditions", []) if c["type"] == kind), None)

    def fingerprint(self) -> dict[Any, Any]:
        """What there is, without what differs from run to run."""
        return {key: _stable(entry) for key, entry in self.server.objects.items()}


def _stable(document: Any) -> Any:
    if isinstance(document, dict):
        return {k: _stable(v) for k, v in document.items() if k not in ("uid", "resourceVersion", "generation")
                and k != "observedGeneration"}  # fmt: skip
    return [_stable(item) for item in document] if isinstance(document, list) else document


@asynccontextmanager
async def opened(spec: Spec = SMALLEST) -> Any:
    async with ApiServer() as server, aiohttp.ClientSession() as session:
        bench = Bench(server, Api(session, server.url))
        bench.ask(spec)
        yield bench


def run(case: Callable[[Bench], Awaitable[None]], spec: Spec = SMALLEST) -> None:
    """The case on a fresh bench."""

    async def main() -> None:
        async with opened(spec) as bench:
            await case(bench)

    asyncio.run(main())


def test_created_and_ready_with_few_writes() -> None:
    """Each child is written once, the status three times at most, and it ends as Ready."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        ready = bench.condition("Ready")
        assert ready is not None
        assert (ready["status"], ready["reason"]) == ("True", "Serving")
        statuses = [path for _, path in bench.server.writes if path.endswith("/status")]
        assert len(statuses) <= 3
        assert len(bench.server.writes) - len(statuses) <= 10
        assert bench.server.names("Deployment") == ["llama-frontend"]

    run(case)


def test_ten_resyncs_write_nothing() -> None:
    """At rest there are only reads."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        written, asked = len(bench.server.writes), len(bench.server.requests)
        for _ in range(10):
            assert await bench.reconcile() == Outcome()
        assert len(bench.server.writes) == written
        assert {method for method, _ in bench.server.requests[asked:]} == {"GET"}

    run(case, TWO)


def test_the_first_write_is_the_status() -> None:
    """Before any child exists, whoever waits for Ready can see that it is not done."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        assert bench.server.writes[0][1].endswith("/llama/status")
        assert bench.condition("Reconciling")

    run(case)


def test_an_edit_rolls_and_a_removed_component_is_pruned() -> None:
    """The new revision replaces the old one, and nothing of the removed component is left."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        (old,) = [n for n in bench.server.names("StatefulSet") if "more" not in n]
        bench.ask({"components": [{"engine": "mocker", "replicas": 3, "kvCacheBlockSize": 32}]})
        await bench.settle()
        (new,) = bench.server.names("StatefulSet")
        assert new != old
        assert not [name for _, _, name in bench.server.objects if "more" in name]
        assert bench.status["workers"] == "3/3"

    run(case, TWO)


def test_drift_is_undone() -> None:
    """An image edited by hand and a deleted Service come back; a label that somebody added stays."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        before = bench.fingerprint()
        deployment = bench.server.one("Deployment", "llama-frontend")
        deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "mine"
        del bench.server.objects["Service", "serving", "llama-frontend"]
        await bench.settle()
        assert bench.fingerprint() == before
        bench.server.one("Service", "llama-frontend")["metadata"]["labels"]["team"] = "a"
        assert (await bench.reconcile()).writes == 0

    run(case)


def test_deletion_is_left_to_the_garbage_collector() -> None:
    """A pipeline that goes gets no writes; one that is gone is forgotten."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        written = len(bench.server.writes)
        bench.server.one("DynamoPipeline", "llama")["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
        assert await bench.reconcile() == Outcome()
        del bench.server.objects["DynamoPipeline", "serving", "llama"]
        assert (await bench.reconcile()).gone
        assert len(bench.server.writes) == written
        for _ in range(3):
            bench.server.play()
        assert bench.server.objects == {}

    run(case)


@pytest.mark.parametrize("labels", [{}, {"dynamo.dev/pipeline": "llama"}])
def test_a_foreign_object_is_never_taken_over(labels: dict[str, str]) -> None:
    """It stays as it is, the pipeline says whose name is in the way, and goes on once it is gone."""

    async def case(bench: Bench) -> None:
        del bench.server.objects["DynamoPipeline", "serving", "llama"]
        bench.ask(SMALLEST)
        metadata = {"name": "llama-frontend", "labels": labels}
        theirs = bench.server.put({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"a": 1}})
        before = dict(theirs)
        assert (await bench.reconcile()).failed
        assert bench.server.one("Service", "llama-frontend") == before
        stalled = bench.condition("Stalled")
        assert stalled is not None
        assert stalled["reason"] == "NameConflict"
        assert "Service llama-frontend" in stalled["message"]
        del bench.server.objects["Service", "serving", "llama-frontend"]
        await bench.settle()
        assert bench.condition("Stalled") is None

    run(case)


REFUSALS: list[tuple[int, str, str, str]] = [
    (422, "StatefulSet is invalid: spec.serviceName: field is immutable", "Stalled", "AdmissionRejected"),
    (500, "failed to create typed patch object: field not declared in schema", "Stalled", "AdmissionRejected"),
    (403, "exceeded quota: gpus, requested: 1", "Reconciling", "QuotaExceeded"),
    (403, "statefulsets.apps is forbidden: cannot patch", "Reconciling", "Forbidden"),
]


@pytest.mark.parametrize(("code", "message", "kind", "reason"), REFUSALS)
def test_a_refusal_is_told_and_the_rest_is_written(code: int, message: str, kind: str, reason: str) -> None:
    """The condition has the server's sentence; the frontend exists all the same; a second look changes nothing."""

    async def case(bench: Bench) -> None:
        bench.server.fault = on("PATCH", "/statefulsets/", lambda: refusal(code, message))
        assert (await bench.reconcile()).failed
        condition = bench.condition(kind)
        assert condition is not None
        assert condition["reason"] == reason
        assert message in condition["message"]
        assert bench.server.names("Deployment") == ["llama-frontend"]
        bench.server.play()
        await bench.reconcile()
        before = len(bench.server.writes)
        await bench.reconcile()
        assert len(bench.server.writes) == before
        bench.server.fault = lambda method, path: None
        await bench.settle()
        assert bench.status["workers"] == "1/1"

    run(case)


@pytest.mark.parametrize("code", [429, 500, 503, 504])
def test_what_passes_is_raised_and_tried_again(code: int) -> None:
    """The loop waits as long as the server asked; afterwards the same state is reached."""

    async def case(bench: Bench) -> None:
        bench.server.fault = on("PATCH", "/deployments/", lambda: refusal(code, "busy", **{"Retry-After": "7"}))
        with pytest.raises(ApiError) as caught:
            await bench.reconcile()
        assert caught.value.retry_after == 7
        bench.server.fault = lambda method, path: None
        await bench.settle()
        assert bench.condition("Stalled") is None

    run(case)


def test_a_namesake_that_came_meanwhile_is_not_written_over() -> None:
    """The uid that was seen goes with the apply: a namesake is refused with 409, and looked at anew."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        bench.server.one("Deployment", "llama-frontend")["spec"]["replicas"] = 5

        def swapped(method: str, path: str) -> web.Response | None:
            if method == "PATCH" and "/deployments/" in path:
                bench.server.one("Deployment", "llama-frontend")["metadata"]["uid"] = "theirs"
                bench.server.one("Deployment", "llama-frontend")["metadata"]["ownerReferences"] = [THEIRS]
            return None

        bench.server.fault = swapped
        assert (await bench.reconcile()).failed
        assert bench.server.one("Deployment", "llama-frontend")["spec"]["replicas"] == 5
        await bench.reconcile()
        stalled = bench.condition("Stalled")
        assert stalled is not None
        assert stalled["reason"] == "NameConflict"

    run(case)


def test_a_list_whose_token_expired_begins_anew() -> None:
    """410 on a later page: the whole list again, once."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        answers = iter([refusal(410, "token too old", "Expired")])

        def expired(method: str, path: str) -> web.Response | None:
            return next(answers, None) if path.endswith("/pods") else None

        bench.server.fault = expired
        assert await bench.reconcile() == Outcome()

    run(case)


def test_a_spec_that_the_types_refuse_is_told() -> None:
    """An object that came in before a rule: Stalled with field and remedy, and nothing is written to children."""

    async def case(bench: Bench) -> None:
        bench.ask({"components": [{"engine": "mocker", "replicas": -1}]})
        assert (await bench.reconcile()).failed
        stalled = bench.condition("Stalled")
        assert stalled is not None
        assert stalled["reason"] == "InvalidSpec"
        assert "spec.components[0].replicas" in stalled["message"]
        assert [path.rpartition("/")[2] for _, path in bench.server.writes] == ["status", "events"]
        bench.ask(SMALLEST)
        await bench.settle()
        assert bench.condition("Stalled") is None

    run(case)


async def test_killed_after_every_write_the_end_is_the_same() -> None:
    """Creation, then a rollout that removes a component: cut off after each single write, started anew every time."""

    async def whole(bench: Bench, cut: bool) -> dict[Any, Any]:
        for spec in (TWO, {"components": [{"engine": "mocker", "replicas": 3, "kvCacheBlockSize": 32}]}):
            bench.ask(spec)
            for _ in range(60 if cut else 0):
                bench.server.fault = after_one_write()
                await one_write(bench)
                bench.server.play()
            bench.server.fault = lambda method, path: None
            await bench.settle()
        return bench.fingerprint()

    async def one_write(bench: Bench) -> None:
        try:
            await Reconciler(bench.api, SETTINGS, lambda: NOW).reconcile(KEY)
        except ApiError:
            return

    async with opened() as smooth, opened() as cut:
        assert await whole(cut, True) == await whole(smooth, False)


def test_status_and_annotations_are_no_memory() -> None:
    """Stripped of its whole status, a pipeline gets the same one again, and no child changes."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        before, written = bench.fingerprint(), len(bench.server.writes)
        del bench.server.one("DynamoPipeline", "llama")["status"]
        await bench.settle()
        assert bench.fingerprint() == before
        assert all(path.endswith("/status") for _, path in bench.server.writes[written:])

    run(case, TWO)


def test_pages_are_read_to_the_end() -> None:
    """A list of several pages is one list."""

    async def case(bench: Bench) -> None:
        await bench.settle()
        bench.server.page = 1
        assert await bench.reconcile() == Outcome()

    run(case, TWO)


def on(method: str, part: str, answer: Callable[[], web.Response]) -> Callable[[str, str], web.Response | None]:
    """Refuses some requests."""
    return lambda m, path: answer() if m == method and part in path else None


def after_one_write() -> Callable[[str, str], web.Response | None]:
    """Lets one write through; then it is as if the process had been killed."""

    def numbers() -> Iterator[int]:
        yield 0
        while True:
            yield 1

    counted = numbers()

    def fault(method: str, path: str) -> web.Response | None:
        return refusal(503, "killed") if method != "GET" and next(counted) else None

    return fault


def test_without_the_gateway_api_the_rest_is_made_and_the_status_says_so() -> None:
    """The kind may come later, and go again: nothing ends, nothing is left over."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        stalled = bench.condition("Stalled")
        assert stalled is not None
        assert "install the Gateway API, or use spec.frontend.ingress" in stalled["message"]
        assert bench.server.names("Deployment") == ["llama-frontend"]
        bench.server.gateway_api = True
        bench.reconciler = Reconciler(bench.api, SETTINGS, lambda: NOW)
        await bench.settle()
        assert bench.server.names("HTTPRoute") == ["llama-frontend"]
        assert bench.status["url"] == "https://llama.example.org"
        assert bench.condition("Stalled") is None
        bench.ask(SMALLEST)
        await bench.settle()
        assert bench.server.names("HTTPRoute") == []
        assert bench.status["url"] == "http://llama-frontend.serving.svc:8000"

    run(case, ROUTED)


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.sampled_from('\x7f\x85\u2028\n\t\\"😀')))
def test_what_is_sent_means_the_same_as_json_and_as_yaml(text: str) -> None:
    """An apply is read as YAML: an emoji in a chat template must not be refused, nor a line separator folded."""
    sent = encoded({"text": text}).decode()
    assert json.loads(sent) == {"text": text}
    assert yaml.safe_load(sent) == {"text": text}
