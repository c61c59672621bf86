"""What keeps tenants apart through the reconciler: whose namespace it is, and an etcd that checks rights."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from tests.fixtures_etcd import EtcdServer
from tests.operator.credentials.bench import OURS_ETCD, Bench, plain, run, settings
from tests.operator.pipelines import SMALLEST

from dynamo.operator.credentials import pipeline_access as access_module
from dynamo.operator.credentials.etcd_auth import EtcdAdmin, EtcdAuth
from dynamo.operator.settings import SignIn

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("any_etcd_version")]


@pytest.mark.parametrize("sign_in", [True, False], ids=["sign-in", "no sign-in"])
@pytest.mark.parametrize("name", ["research_llama", "llama", "serving", "servin_g", "dynamo"])
def test_no_pipeline_gets_into_another_ones_namespace(own_etcd: EtcdServer, sign_in: bool, name: str) -> None:
    """The name would be the only thing in between, so it is refused, with what to do: with sign-in or without."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        status, reason, message = bench.condition("Stalled")
        assert (status, reason) == ("True", "InvalidSpec")
        assert message.startswith("spec.namespace: must begin with 'serving_'")
        assert bench.server.names("Secret") == []
        assert bench.server.names("Deployment") == []

    run(own_etcd, case, {**SMALLEST, "namespace": name}, settings(own_etcd) if sign_in else plain(own_etcd))


@pytest.mark.parametrize("name", ["research_llama", "_all", "shared"])
def test_who_wants_to_share_says_so(own_etcd: EtcdServer, name: str) -> None:
    """With the platform's setting any namespace will do, but the one that stands for all."""
    given = replace(plain(own_etcd), share_namespaces=True)

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        assert bench.server.names("Deployment") == ([] if name == "_all" else ["llama-frontend"])

    run(own_etcd, case, {**SMALLEST, "namespace": name}, given)


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "external"])
def test_an_etcd_that_was_full_is_looked_at_again_soon(
    own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ours: bool
) -> None:
    """Who fills it may do it again; an etcd that isn't the platform's is not emptied by it."""
    given = replace(settings(own_etcd), etcd_sign_in=replace_sign_in(OURS_ETCD, own_server=ours))
    asked: list[bool] = []

    async def made_room(self: EtcdAuth) -> str:
        asked.append(True)
        return "etcd was full"

    async def case(bench: Bench) -> None:
        await EtcdAuth(bench.session, [own_etcd.url], EtcdAdmin("root", "given")).set_up("epoch")
        login = {"username": base64.b64encode(b"root").decode(), "password": base64.b64encode(b"given").decode()}
        bench.server.put({"kind": "Secret", "metadata": {"name": "p-etcd"}, "data": login}, "dynamo")
        monkeypatch.setattr(EtcdAuth, "make_room", made_room)
        assert await bench.round() == (access_module.SOON_SECONDS if ours else access_module.ROUND_SECONDS)
        assert ("etcd was full" in caplog.text) == ours
        assert asked == [True] * ours

    run(own_etcd, case, given=given)


def test_an_external_etcd_that_lets_anybody_in_gets_no_pipelines(own_etcd: EtcdServer) -> None:
    """Its users would have rights that nobody checks: the condition says what to do, for as long as it is so."""
    given = replace(settings(own_etcd), etcd_sign_in=replace_sign_in(OURS_ETCD, own_server=False))

    async def case(bench: Bench) -> None:
        for _ in range(2):
            assert (await bench.reconcile()).failed
            _, reason, message = bench.condition("Ready")
            assert reason == "CredentialsUnavailable"
            assert (
                "etcd does not require authentication, although pipelines are configured to sign in: run etcdctl"
                in message
            )
        assert bench.server.names("Deployment") == []
        root = bench.secret("p-etcd", "dynamo")["password"].decode()
        await EtcdAuth(bench.session, [own_etcd.url], EtcdAdmin("root", root)).set_up("epoch")
        assert not (await bench.reconcile()).failed

    run(own_etcd, case, given=given)


def replace_sign_in(sign_in: SignIn, *, own_server: bool) -> SignIn:
    return SignIn.model_validate({**sign_in.model_dump(), "own_server": own_server})
