"""Credentials of pipelines through the reconciler: an API server in memory, a real etcd, a real NATS."""

from __future__ import annotations

import asyncio
import base64
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.operator.credentials.bench import LLAMA, Bench, plain, run, settings

from dynamo.operator.credentials import nats_keys
from dynamo.operator.credentials import pipeline_access as access_module
from dynamo.operator.credentials.etcd_auth import EtcdAdmin, EtcdAuth
from dynamo.operator.credentials.etcd_users import REPLACED_SECONDS
from dynamo.operator.credentials.platform import FRESH_SECONDS
from dynamo.operator.settings import SignIn
from dynamo.runtime.config import NatsConfig
from dynamo.runtime.discovery.etcd import EtcdStore
from dynamo.runtime.errors import CannotConnect, InvalidArgument
from dynamo.runtime.transport.nats import NatsBus

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("any_etcd_version")]


async def reaches_etcd(bench: Bench, folder: Path, namespace: str = "serving_llama") -> None:
    store = EtcdStore(bench.etcd.config(folder=str(folder / "etcd"), start_limit=3.0))
    try:
        await store.connect()
        await store.put(f"dynamo/instances/{namespace}/a/b/1", b"x")
    finally:
        await store.close()


def test_a_new_pipeline_can_sign_in(own_etcd: EtcdServer, tmp_path: Path) -> None:
    """Its Secret is the first child; what is mounted of it lets the runtime in, and into its own namespace only."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        children = [path for method, path in bench.server.writes if "/status" not in path and "/serving/" in path]
        assert children[0].endswith("/secrets/llama-credentials")
        owner = bench.server.one("Secret", "llama-credentials")["metadata"]["ownerReferences"][0]
        assert owner["controller"]
        folder = bench.mounted(tmp_path)
        await reaches_etcd(bench, folder)
        with pytest.raises(InvalidArgument, match="does not let user"):
            await reaches_etcd(bench, folder, "serving_other")
        server_folder = tmp_path / "server"
        server_folder.mkdir()
        conf = bench.secret("p-nats", "dynamo")[nats_keys.SERVER_CONF]
        nats = await asyncio.to_thread(started, server_folder, conf)
        bus = NatsBus(NatsConfig(servers=(nats.url,), folder=str(folder / "nats"), start_limit=5))
        try:
            await bus.connect()
            await bus.subscribe("dyn.serving_llama.in.1.s", lambda message: None, lambda: None)
            with pytest.raises(CannotConnect, match="Permissions Violation"):
                await bus.subscribe("dyn.serving_other.in.1.s", lambda message: None, lambda: None)
        finally:
            await bus.close()
            nats.kill()

    run(own_etcd, case)


def started(folder: Path, conf: bytes) -> NatsServer:
    (folder / "server.conf").write_bytes(conf)
    return NatsServer(folder, "include ./server.conf")


def test_at_rest_nothing_is_written_and_etcd_is_not_asked(
    own_etcd: EtcdServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One read of the Secret per reconcile; a new operator process writes nothing either."""

    async def case(bench: Bench) -> None:
        for _ in range(4):
            await bench.reconcile()
        before, users = bench.secret(), await bench.users()
        written = len(bench.server.writes)
        calls: list[str] = []
        post = EtcdAuth._post

        async def counted(self: EtcdAuth, url: str, body: Any, token: str) -> Any:
            calls.append(url)
            return await post(self, url, body, token)

        monkeypatch.setattr(EtcdAuth, "_post", counted)
        for _ in range(10):
            assert (await bench.reconcile()).writes == 0
        assert calls == []
        bench.start()
        assert (await bench.reconcile()).writes == 0
        bench.time += FRESH_SECONDS
        assert await bench.round() == access_module.ROUND_SECONDS
        assert (bench.secret(), await bench.users()) == (before, users)
        assert (len(bench.server.writes), bench.marked) == (written, [])
        assert not [url for url in calls if "/add" in url or "/delete" in url or "/grant" in url]

    run(own_etcd, case)


def test_whoever_deletes_the_secret_gets_another_one(own_etcd: EtcdServer, tmp_path: Path) -> None:
    """The user before stays until every pod has had time to read its new files."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        old = bench.mounted(tmp_path / "old")
        bench.server.remove("Secret", "llama-credentials")
        await bench.reconcile()
        new = bench.mounted(tmp_path / "new")
        await bench.round()
        for folder in (old, new):
            await reaches_etcd(bench, folder)
        bench.time += REPLACED_SECONDS
        await bench.round()
        await reaches_etcd(bench, new)
        with pytest.raises(InvalidArgument, match="refuses user"):
            await reaches_etcd(bench, old)
        assert len(await bench.users()) == 1

    run(own_etcd, case)


def test_new_keys_of_the_platform_reach_every_pipeline(own_etcd: EtcdServer) -> None:
    """NATS users are made anew; what etcd asks for has not changed, so it stays."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        await bench.round()
        before = bench.secret()
        keys = nats_keys.renewed_platform(bench.secret("p-nats", "dynamo"), lambda: b"n" * 32, 1)
        one = bench.server.one("Secret", "p-nats", "dynamo")
        bench.server.put({**one, "data": {k: base64.b64encode(v).decode() for k, v in keys.items()}}, "dynamo")
        await bench.round()
        assert bench.marked == []
        bench.time += FRESH_SECONDS
        await bench.round()
        assert bench.marked == [LLAMA]
        await bench.reconcile()
        after = bench.secret()
        assert {k for k in after if after[k] != before[k]} == {"nats.user.creds"}
        assert (await bench.reconcile()).writes == 0

    run(own_etcd, case)


@pytest.mark.parametrize("up", [True, False], ids=["operator up", "operator down"])
def test_a_deleted_pipelines_user_goes_when_its_pods_have(own_etcd: EtcdServer, up: bool) -> None:
    """Also where the deletion happened while no operator ran; other users are left alone."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        data = bench.secret("p-etcd", "dynamo")
        async with aiohttp.ClientSession() as session:
            auth = EtcdAuth(session, [bench.etcd.url], EtcdAdmin("root", data["password"].decode()))
            await auth.ensure("dynamo/other.op/serving/llama/1", "x", ())
        assert len(await bench.users()) == 2
        bench.server.remove("DynamoPipeline", "llama")
        if up:
            assert (await bench.reconcile()).gone
            assert bench.access._woken.is_set()
        else:
            bench.start()
            bench.server.play()
        pod = {"kind": "Pod", "metadata": {"name": "p", "labels": {"dynamo.dev/pipeline": "llama"}}}
        bench.server.put(pod)
        assert await bench.round() == access_module.SOON_SECONDS
        assert len(await bench.users()) == 2
        bench.server.remove("Pod", "p")
        await bench.round()
        assert await bench.users() == {"other.op/serving/llama/1"}

    run(own_etcd, case)


def test_an_etcd_that_came_back_empty_gets_its_users_again(own_etcd: EtcdServer, tmp_path: Path) -> None:
    """It asks for sign-in again, and the same files let the pipeline in."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        folder, before = bench.mounted(tmp_path), bench.secret()
        await asyncio.to_thread(emptied, bench.etcd)
        await bench.round()
        with pytest.raises(InvalidArgument, match="refuses user"):
            await reaches_etcd(bench, folder)
        assert bench.marked == [LLAMA]
        await bench.reconcile()
        await reaches_etcd(bench, folder)
        assert bench.secret() == before

    run(own_etcd, case)


def emptied(server: EtcdServer) -> None:
    server.kill()
    server.start(empty=True)
    server.wait()


@pytest.mark.parametrize("whose", ["somebody's", "a predecessor's"])
def test_a_foreign_secret_is_not_touched(own_etcd: EtcdServer, whose: str) -> None:
    """Somebody's: the name is taken. A deleted pipeline's of this name: it has yet to go."""

    async def case(bench: Bench) -> None:
        kind = "DynamoPipeline" if whose == "a predecessor's" else "Chart"
        owner = {"kind": kind, "name": "llama", "uid": "another", "controller": True}
        theirs = {"kind": "Secret", "metadata": {"name": "llama-credentials", "ownerReferences": [owner]}, "data": {}}
        bench.server.put({"kind": kind, "metadata": {"name": "alive", "uid": "another"}})
        bench.server.put(theirs)
        if kind == "Chart":
            await bench.reconcile()
            assert bench.condition("Stalled")[1] == "NameConflict"
        else:
            with pytest.raises(Exception, match="of a deleted pipeline to be removed"):
                await bench.reconcile()
        assert bench.secret() == {}
        assert await bench.users() == set()

    async def prepared(bench: Bench) -> None:
        await bench.round()
        await case(bench)

    run(own_etcd, prepared)


def test_a_platform_without_its_secret_holds_up_only_new_pipelines(own_etcd: EtcdServer) -> None:
    """The condition names the Secret that somebody has to make; what runs is left alone."""
    given = settings(own_etcd, SignIn(secret="theirs"))

    async def case(bench: Bench) -> None:
        assert (await bench.reconcile()).failed
        assert bench.condition("Ready")[1:] == (
            "CredentialsUnavailable",
            "Secret dynamo/theirs is missing: create it (see charts/dynamo-platform/README.md)",
        )
        bench.server.put({"kind": "Secret", "metadata": {"name": "theirs"}, "data": {}}, "dynamo")
        assert (await bench.reconcile()).failed
        login = {"username": base64.b64encode(b"u").decode(), "password": base64.b64encode(b"p").decode()}
        bench.server.put({"kind": "Secret", "metadata": {"name": "theirs"}, "data": login}, "dynamo")
        for _ in range(3):
            assert not (await bench.reconcile()).failed
        assert bench.secret()["nats.password"] == b"p"
        bench.server.remove("Secret", "theirs", "dynamo")
        bench.time += FRESH_SECONDS
        outcome = await bench.reconcile()
        assert (outcome.failed, outcome.writes) == (False, 0)

    run(own_etcd, case, given=given)


def test_an_etcd_that_is_away_holds_up_only_new_pipelines(own_etcd: EtcdServer) -> None:
    """A running one stays Ready, whether this operator has seen its user or has just started."""

    async def case(bench: Bench) -> None:
        for _ in range(3):
            await bench.reconcile()
        bench.etcd.kill()
        bench.start()
        outcome = await bench.reconcile()
        assert (outcome.failed, outcome.writes) == (False, 0)
        assert bench.condition("Ready")[0] == "True"
        bench.server.remove("Secret", "llama-credentials")
        assert (await bench.reconcile()).failed
        status, reason, message = bench.condition("Ready")
        assert (status, reason) == ("False", "CredentialsUnavailable")
        assert "does not answer" in message
        await asyncio.to_thread(again, bench.etcd)
        for _ in range(2):
            assert not (await bench.reconcile()).failed
        assert bench.condition("Ready")[0] == "True"

    run(own_etcd, case)


def again(server: EtcdServer) -> None:
    server.start()
    server.wait()


def test_nothing_secret_leaves_the_secrets(own_etcd: EtcdServer, caplog: pytest.LogCaptureFixture) -> None:
    """Not in a log, a status, a ConfigMap, an argv or an annotation, whatever goes wrong."""
    caplog.set_level(logging.DEBUG)

    async def case(bench: Bench) -> None:
        for _ in range(3):
            await bench.reconcile()
            await bench.round()
        bench.etcd.kill()
        bench.server.remove("Secret", "llama-credentials")
        await bench.reconcile()
        hidden = [*bench.secret().values(), *bench.secret("p-etcd", "dynamo").values()]
        hidden += [bench.secret("p-nats", "dynamo")[k] for k in (nats_keys.SIGNING, nats_keys.ACCOUNT_SEED)]
        others = repr([o for (kind, _, _), o in bench.server.objects.items() if kind != "Secret"])
        heads = repr([o["metadata"] for (kind, _, _), o in bench.server.objects.items() if kind == "Secret"])
        texts = [v.decode() for v in hidden if v != b"root"] + [base64.b64encode(v).decode() for v in hidden]
        users = {bench.secret()["etcd.username"].decode()}
        for text in set(texts) - users:
            assert text not in others + heads + caplog.text

    run(own_etcd, case)


def test_without_sign_in_nothing_is_read_or_written(own_etcd: EtcdServer) -> None:
    """As before: no Secret is asked for, in no namespace."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        await asyncio.wait_for(bench.access.keep(bench.marked.append), 5)
        assert not [path for _, path in bench.server.requests if "secrets" in path]
        assert bench.server.names("Deployment") == ["llama-frontend"]

    run(own_etcd, case, given=plain(own_etcd))
