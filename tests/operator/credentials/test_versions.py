"""Which etcd is good enough to keep tenants apart, and that a worse one gets nobody's sign-in."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml
from aiohttp import web
from tests.fixtures_etcd import EtcdServer
from tests.operator.credentials.bench import Bench, run

from dynamo.operator.credentials import etcd_versions
from dynamo.operator.credentials.etcd_auth import EtcdAdmin, EtcdAuth, EtcdError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("version", ["3.6.14", "3.6.16", "v3.6.16", "3.7.1", "3.7.20", "3.8.0", "4.0.0", "3.6.16+x.1"])
def test_good_versions(version: str) -> None:
    """Those that have every repair."""
    assert etcd_versions.refused(version) is None


@pytest.mark.parametrize(
    "version",
    ["", "3.6.13", "3.6.5", "3.7.0", "3.5.1", "3.5.35", "3.5.99", "2.3.8", "3.6.14-rc.0", "3.6", "three", "3.6.14\n",
     "9" * 5000, "3.6.16 or not", "٣.٦.١٦"],
)  # fmt: skip
def test_bad_versions(version: str) -> None:
    """Those that lack one, and what is no release: the sentence names what is needed, and is bounded."""
    said = etcd_versions.refused(version)
    assert said is not None
    assert "3.6.14 or 3.7.1" in said
    assert len(said) < 300


def test_the_chart_has_a_good_one() -> None:
    """The version that the chart names is the one that `make e2e` builds."""
    values = yaml.safe_load((ROOT / "charts/dynamo-platform/values.yaml").read_text())
    required = re.search(r"go\.etcd\.io/etcd/server/v3 (v\S+)", (ROOT / "e2e/kind/go/etcd/go.mod").read_text())
    assert required is not None
    assert values["etcd"]["image"]["tag"] == required[1]
    assert etcd_versions.refused(required[1]) is None


@pytest.mark.servers
def test_an_old_etcd_holds_up_new_pipelines(old_etcd: EtcdServer) -> None:
    """PyPI's: the condition has its version and what to do, again and again; nobody is set up, nothing is made."""

    async def case(bench: Bench) -> None:
        for _ in range(3):
            assert (await bench.reconcile()).failed
            status, reason, message = bench.condition("Ready")
            assert (status, reason) == ("False", "CredentialsUnavailable")
            assert "runs version '3.5.1'" in message
            assert "only from 3.6.14 or 3.7.1 on: upgrade etcd" in message
        assert bench.server.names("Deployment") == []
        assert bench.server.names("Secret") == ["p-etcd", "p-nats"]
        with pytest.raises(EtcdError, match=r"3\.5\.1"):
            await bench.round()
        async with aiohttp.ClientSession() as session, session.post(f"{old_etcd.url}/v3/auth/status", json={}) as said:
            assert not (await said.json()).get("enabled")

    run(old_etcd, case)


@pytest.mark.servers
def test_a_pipeline_that_runs_outlives_an_older_etcd(old_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has its Secret is reconciled as ever, so that a downgrade stops nobody; what is new waits."""

    async def case(bench: Bench) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(etcd_versions, "refused", lambda version: None)
            for _ in range(3):
                await bench.reconcile()
        bench.start()
        outcome = await bench.reconcile()
        assert (outcome.failed, outcome.writes) == (False, 0)
        assert bench.condition("Ready")[0] == "True"
        with pytest.raises(EtcdError, match=r"3\.5\.1"):
            await bench.round()
        bench.server.remove("Secret", "llama-credentials")
        assert (await bench.reconcile()).failed
        assert bench.condition("Ready")[1] == "CredentialsUnavailable"

    run(old_etcd, case)


@asynccontextmanager
async def answering(body: str, status: int = 200) -> AsyncIterator[str]:
    """A server that says so at /version, and signs in whoever comes."""

    async def version(request: web.Request) -> web.Response:
        return web.Response(text=body, status=status)

    async def token(request: web.Request) -> web.Response:
        return web.json_response({"token": "t", "roles": []})

    app = web.Application()
    app.router.add_get("/version", version)
    app.router.add_post("/v3/{path:.*}", token)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def said(version: str) -> str:
    return json.dumps({"etcdserver": version, "etcdcluster": "3.6.0"})


@pytest.mark.parametrize(
    "body",
    ["", "null", "[]", "{}", "not JSON", '{"etcdserver": 3}', '{"etcdserver": null}', "[" * 5000, "x" * 9_000_000,
     said("3.6.13"), '{"etcdcluster": "3.6.16"}'],
    ids=lambda body: body[:20],
)  # fmt: skip
def test_what_is_no_version_is_refused(body: str) -> None:
    """Who doesn't say a good one gets neither the password nor a user; the sentence is bounded."""

    async def main() -> None:
        async with answering(body) as url, aiohttp.ClientSession() as session:
            auth = EtcdAuth(session, [url], EtcdAdmin("root", "hunter2"))
            for call in (auth.asks_for_sign_in(), auth.set_up("e"), auth.ensure("u", "p", ())):
                with pytest.raises(EtcdError, match=r"3\.6\.14 or 3\.7\.1") as caught:
                    await call
                assert len(str(caught.value)) < 400
                assert "hunter2" not in str(caught.value)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_every_member_counts() -> None:
    """One old member among good ones is named; one that is away is not asked."""

    async def main() -> None:
        async with (
            answering(said("3.6.16")) as good,
            answering(said("3.5.9")) as old,
            aiohttp.ClientSession() as session,
        ):
            both = EtcdAuth(session, [good, "http://127.0.0.1:1", old], EtcdAdmin("root", "x"))
            with pytest.raises(
                EtcdError, match=re.escape(f"etcd at {old.removeprefix('http://')} runs version '3.5.9'")
            ):
                await both.asks_for_sign_in()
            assert await EtcdAuth(session, [good, "http://127.0.0.1:1"], EtcdAdmin("root", "x")).asks_for_sign_in()

    asyncio.run(asyncio.wait_for(main(), 30))
