"""A NATS for each namespace, through the reconciler and an API server in memory."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable

import pytest
from aiohttp import web
from tests.operator.apiserver import refusal
from tests.operator.credentials.nats_bench import KINDS, SERVER, Bench, run
from tests.operator.pipelines import SMALLEST

from dynamo.operator.credentials import nats_keys
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.resources import Key
from dynamo.operator.manifests import nats
from dynamo.operator.manifests.nats import NatsServer

SECURE = NatsServer(SERVER.config, SERVER.template, tls_secret="nats-tls")
FILES = {"ca.crt": "ca", "tls.crt": "one", "tls.key": "key"}


def test_a_namespace_gets_one_before_its_first_pipeline() -> None:
    """The Secret is the first of all; the pods find the server, and it knows their user."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        children = [path.rpartition("/")[2] for _, path in bench.server.writes if "dynamopipelines" not in path]
        kinds = [path.split("/")[-2] for _, path in bench.server.writes if "dynamopipelines" not in path]
        assert children[:5] == [nats.NAME] * 4 + ["llama-credentials"]
        assert (kinds[0], kinds[3]) == ("secrets", "deployments")
        assert set(kinds[1:3]) == {"services", "networkpolicies"}
        frontend = bench.server.one("Deployment", "llama-frontend")["spec"]["template"]["spec"]["containers"][0]
        env = {variable["name"]: variable.get("value") for variable in frontend["env"]}
        assert env["NATS_SERVER"] == "nats://dynamo-nats.serving.svc:4222"
        assert bench.is_let_in()
        assert bench.data()[nats.CONFIG] == SERVER.config.encode()

    run(case)


def test_pipelines_share_their_namespaces_and_no_other() -> None:
    """Each is an owner; the keys of another namespace are others."""

    async def case(bench: Bench) -> None:
        bench.ask("other")
        bench.ask(namespace="research")
        for place in (("llama", "serving"), ("other", "serving"), ("llama", "research")):
            await bench.reconcile(*place)
        before = bench.data()
        await bench.reconcile("other")
        assert bench.data() == before
        assert [bench.owners(kind) for kind in KINDS] == [{"llama", "other"}] * 4
        assert bench.is_let_in()
        assert bench.is_let_in("other")
        assert bench.is_let_in(namespace="research", by="research")
        assert not bench.is_let_in(namespace="research", by="serving")
        assert not bench.is_let_in(namespace="serving", by="research")

    run(case)


def test_at_rest_nothing_is_written() -> None:
    """Also by an operator that has just started."""

    async def case(bench: Bench) -> None:
        for _ in range(4):
            await bench.reconcile()
        written = len(bench.server.writes)
        for _ in range(5):
            assert (await bench.reconcile()).writes == 0
        bench.start(SERVER)
        for _ in range(5):
            assert (await bench.reconcile()).writes == 0
        assert len(bench.server.writes) == written
        assert bench.condition("Ready")[0] == "True"

    run(case)


def test_it_goes_with_the_last_pipeline() -> None:
    """Kubernetes' garbage collector does it: nothing of the operator's is needed."""

    async def case(bench: Bench) -> None:
        bench.ask("other")
        await bench.reconcile()
        await bench.reconcile("other")
        bench.server.remove("DynamoPipeline", "llama")
        bench.server.play()
        assert bench.one("Deployment")
        bench.server.remove("DynamoPipeline", "other")
        bench.server.play()
        assert [key for key in bench.server.objects if key[2] == nats.NAME] == []

    run(case)


def test_a_pipeline_that_comes_as_the_last_one_goes_gets_it() -> None:
    """Whether the collector was there first or not."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        bench.ask("other")
        bench.server.remove("DynamoPipeline", "llama")
        await bench.reconcile("other")
        assert [bench.owners(kind) for kind in KINDS] == [{"llama", "other"}] * 4
        assert bench.is_let_in("other")
        for kind in KINDS:
            bench.server.remove(kind, nats.NAME)
        await bench.reconcile("other")
        assert [bench.owners(kind) for kind in KINDS] == [{"other"}] * 4
        assert bench.is_let_in("other")

    run(case)


def test_two_looks_at_once_make_one() -> None:
    """Neither has to begin anew."""

    async def case(bench: Bench) -> None:
        bench.ask("other")
        results = await asyncio.gather(bench.reconcile(), bench.reconcile("other"))
        assert [outcome.failed for outcome in results] == [False, False]
        made = [path for _, path in bench.server.writes if path.endswith(f"secrets/{nats.NAME}")]
        assert len(made) == 1
        assert [bench.owners(kind) for kind in KINDS] == [{"llama", "other"}] * 4
        assert bench.is_let_in()
        assert bench.is_let_in("other")

    run(case)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_what_a_tenant_deletes_or_edits_is_put_right(kind: str) -> None:
    """The keys stay, so nobody has to sign in anew."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        before, keys = bench.fingerprint(), bench.data()
        bench.server.remove(kind, nats.NAME)
        await bench.reconcile()
        assert bench.fingerprint() == before
        live = bench.one(kind)
        bench.server.put({**live, "metadata": {**live["metadata"], "labels": {"a": "b"}}, "spec": {}})
        await bench.reconcile()
        assert bench.fingerprint() == before
        assert bench.one(kind)["spec"] != {}
        assert bench.data() == keys

    run(case)


@pytest.mark.parametrize("how", ["deleted", "broken"])
def test_a_lost_secret_is_another_trust(how: str) -> None:
    """Server and users of all pipelines get it."""

    async def case(bench: Bench) -> None:
        bench.ask("other")
        await bench.reconcile()
        await bench.reconcile("other")
        before, pod = bench.data(), bench.one("Deployment")["spec"]["template"]["metadata"]["annotations"]
        if how == "deleted":
            bench.server.remove("Secret", nats.NAME)
        else:
            bench.server.put({**bench.one("Secret"), "data": {"signing.nk": "AA=="}})
        await bench.reconcile()
        await bench.reconcile("other")
        assert before[nats_keys.ACCOUNT] != bench.data()[nats_keys.ACCOUNT]
        assert pod != bench.one("Deployment")["spec"]["template"]["metadata"]["annotations"]
        assert bench.is_let_in()
        assert bench.is_let_in("other")
        assert [bench.owners(kind) for kind in KINDS] == [{"llama", "other"}] * 4
        assert (await bench.reconcile()).writes == 0

    run(case)


@pytest.mark.parametrize("code", [403, 500, 503])
def test_a_secret_that_cannot_be_read_is_not_made_anew(code: int) -> None:
    """What isn't known isn't gone: new keys would cut everybody off."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        before, written = bench.data(), len(bench.server.writes)

        def fault(method: str, path: str) -> web.Response | None:
            hit = method == "GET" and path.endswith(f"/secrets/{nats.NAME}")
            return refusal(code, "not now") if hit else None

        bench.server.fault = fault
        with contextlib.suppress(ApiError):
            await bench.reconcile()
        since = [path for _, path in bench.server.writes[written:]]
        assert [path for path in since if "dynamopipelines" not in path and not path.endswith("/events")] == []
        assert bench.data() == before

    run(case)


@pytest.mark.parametrize("kind", KINDS)
def test_somebodys_object_of_that_name_is_left_alone(kind: str) -> None:
    """The condition says what to remove; nothing that would need it is made, and nothing is tried again and again."""

    async def case(bench: Bench) -> None:
        theirs = {"apiVersion": "v1", "kind": kind, "metadata": {"name": nats.NAME}, "spec": {"replicas": 0}}
        bench.server.put(theirs)
        version = bench.one(kind)["metadata"]["resourceVersion"]
        for _ in range(2):
            await bench.reconcile()
        status, reason, message = bench.condition("Stalled")
        assert (status, reason) == ("True", "NameConflict")
        assert message.startswith(
            f"{kind} {nats.NAME} already exists and is not owned by this pipeline: delete it, because the NATS"
        )
        assert bench.server.names("StatefulSet") == []
        written = len(bench.server.writes)
        assert (await bench.reconcile()).writes == 0
        assert len(bench.server.writes) == written
        assert kind == "Deployment" or bench.one(kind)["metadata"]["resourceVersion"] == version
        bench.server.remove(kind, nats.NAME)
        await bench.reconcile()
        assert bench.is_let_in()

    run(case)


def test_a_pipeline_with_a_nats_of_its_own_needs_none() -> None:
    """Nothing is made for it, and it owns nothing."""

    async def case(bench: Bench) -> None:
        bench.ask(spec={**SMALLEST, "runtime": {"nats": {"url": "nats://mine:4222"}}})
        await bench.reconcile()
        assert [key for key in bench.server.objects if key[2] == nats.NAME] == []
        assert bench.server.names("StatefulSet")

    run(case)


def test_switched_on_and_off_every_pod_moves() -> None:
    """As any other rollout, once the namespace's NATS serves; what was made stays until its pipelines go."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        before = bench.server.names("StatefulSet")
        bench.start(SERVER)
        await bench.reconcile()
        assert bench.one("Deployment")["status"]["availableReplicas"] == 1
        assert bench.server.names("StatefulSet") == before
        await bench.reconcile()
        moved = bench.server.names("StatefulSet")
        assert set(moved) - set(before)
        bench.start(None)
        for _ in range(4):
            await bench.reconcile()
        assert bench.server.names("StatefulSet") == before
        assert bench.one("Deployment")

    run(case, None)


def test_a_rollout_that_waits_for_nats_says_so() -> None:
    """Ready, but not for long: Kubernetes doesn't call it available. Nothing is written, and little is asked."""

    async def case(bench: Bench) -> None:
        for _ in range(3):
            await bench.reconcile()
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        bench.server.put({"kind": "Pod", "metadata": {"name": "nats-1", "labels": nats.labels()}, "status": ready})
        live = bench.one("Deployment")
        bench.server.put({**live, "status": {**live["status"], "availableReplicas": 0}})
        before = bench.server.names("StatefulSet")
        bench.ask(spec={"components": [{"engine": "mocker", "kvCacheBlockSize": 32}]})
        await bench.reconciler.reconcile(Key("serving", "llama"))
        assert bench.server.names("StatefulSet") == before
        assert bench.condition("Ready")[0] == "False"
        assert "pod of dynamo-nats is replaced, or has just come back; rollouts wait" in bench.condition("Ready")[2]
        await bench.reconcile()  # in which it becomes available
        await bench.reconcile()
        assert bench.server.names("StatefulSet") != before

    run(case)


def test_what_was_judged_by_an_old_view_stays_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """NATS comes back within a reconcile: what was read before isn't written over; the next one reads anew."""

    async def case(bench: Bench) -> None:
        for _ in range(3):
            await bench.reconcile()
        live, before = bench.one("Deployment"), bench.server.names("StatefulSet")
        bench.server.put({**live, "status": {**live["status"], "availableReplicas": 0}})
        bench.ask(spec={"components": [{"engine": "mocker", "kvCacheBlockSize": 32}]})
        servers = bench.reconciler.access.servers
        look, looks = servers.live, 0

        async def looking(*given: object) -> object:
            nonlocal looks
            looks += 1
            if looks == 2:
                bench.server.play()
            return await look(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(servers, "live", looking)
        await bench.reconciler.reconcile(Key("serving", "llama"))
        assert looks > 2
        assert bench.one("Deployment")["status"]["availableReplicas"] == 1
        assert bench.server.names("StatefulSet") == before
        await bench.reconcile()
        assert bench.server.names("StatefulSet") != before

    run(case)


def test_certificates_lie_in_the_namespace() -> None:
    """One key for all would be every tenant's to read. A renewed one is another pod; clients get the authority's."""

    async def case(bench: Bench) -> None:
        assert (await bench.reconcile()).failed
        said = "Secret serving/nats-tls lacks ca.crt, tls.crt, tls.key: create it with a certificate for "
        assert bench.condition("Ready")[1:] == ("CredentialsUnavailable", f"{said}dynamo-nats.serving.svc")
        assert [key for key in bench.server.objects if key[2] == nats.NAME] == []
        certificate(bench, "one")
        await bench.reconcile()
        assert bench.data("llama-credentials")["nats.ca.crt"] == b"ca"
        assert "nats.tls.key" not in bench.data("llama-credentials")
        frontend = bench.server.one("Deployment", "llama-frontend")["spec"]["template"]["spec"]["containers"][0]
        assert "tls://dynamo-nats.serving.svc:4222" in [variable.get("value") for variable in frontend["env"]]
        before = bench.one("Deployment")["spec"]["template"]
        certificate(bench, "another")
        await bench.reconcile()
        assert bench.one("Deployment")["spec"]["template"] != before

    run(case, SECURE)


def certificate(bench: Bench, content: str) -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in {**FILES, "tls.crt": content}.items()}
    bench.server.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "nats-tls"}, "data": data})


def test_killed_after_every_write_the_end_is_the_same() -> None:
    """Another operator goes on from there, with the keys that were made."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        whole = bench.fingerprint()
        for after in range(6):
            for key in [k for k in bench.server.objects if k[0] != "DynamoPipeline"]:
                bench.server.objects.pop(key)
            bench.start(SERVER)
            bench.server.fault = refusing_after(after)
            with contextlib.suppress(ApiError):
                await bench.reconcile()
            made = bench.data() if ("Secret", "serving", nats.NAME) in bench.server.objects else None
            bench.server.fault = lambda method, path: None
            bench.start(SERVER)
            for _ in range(3):
                await bench.reconcile()
            assert bench.fingerprint() == whole
            assert made in (None, bench.data())
            assert bench.is_let_in()

    run(case)


def refusing_after(count: int) -> Callable[[str, str], web.Response | None]:
    left = [count]

    def fault(method: str, path: str) -> web.Response | None:
        if method == "GET" or path.endswith("/status"):
            return None
        left[0] -= 1
        return refusal(500, "killed") if left[0] < 0 else None

    return fault


def test_a_pipeline_says_that_its_nats_is_away() -> None:
    """With Kubernetes' words, in the place of what its own pods say meanwhile."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        status = {"containerStatuses": [{"name": "nats", "state": state}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dynamo-nats-1", "labels": nats.labels()}}
        bench.server.put({**pod, "status": status})
        worker = next(o for k, o in bench.server.objects.items() if k[0] == "Pod" and k[2].startswith("llama"))
        worker["status"] = {}
        await bench.reconcile()
        _, reason, message = bench.condition("Ready")
        assert reason == "ImagePullBackOff"
        said = "the NATS of this namespace is not ready: pod dynamo-nats-1 ImagePullBackOff: no such image; worker: 0"
        assert message.startswith(said)
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        bench.server.put({**pod, "status": ready})
        await bench.reconcile()
        assert bench.condition("Ready")[2].startswith("worker: 0 of 1 ready")

    run(case)
