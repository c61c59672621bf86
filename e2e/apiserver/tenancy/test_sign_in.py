"""Credentials on a real API server, with an etcd that the operator sets up: written once, gone with the pipeline."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import Iterator

import aiohttp
import pytest
from e2e.apiserver.client import until
from e2e.apiserver.operators import CONFIG, HOME, SECRETS, Operator
from e2e.apiserver.plane import free_ports
from e2e.apiserver.world import World
from e2e.kind.binaries import PLATFORM_ETCD
from e2e.kind.places import Places

from dynamo.operator.credentials.etcd_auth import EtcdAdmin, EtcdAuth
from dynamo.operator.kube.client import MANAGER
from dynamo.operator.kube.resources import PIPELINES, resource_of

NAME = "llama-credentials"


@pytest.fixture
def etcd(world: World) -> Iterator[str]:
    """The platform's, not Kubernetes' own: its URL. The operator is told to have sign-in for it and for NATS."""
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    argv = [str(Places.of(os.environ).bin / PLATFORM_ETCD), f"--data-dir={world.plane.folder / world.namespace}"]
    argv += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"]
    argv += [f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}", "--bcrypt-cost=4"]
    sign_in = {"makeSecret": True, "ownServer": True}
    config = CONFIG | {
        "etcd": {"endpoints": [client], "secret": f"{world.namespace}-etcd", **sign_in},
        "nats": {"url": "nats://nats:4222", "secret": f"{world.namespace}-nats", **sign_in},
    }
    (world.plane.folder / "config.yaml").write_text(json.dumps(config))
    with subprocess.Popen([*argv, "--log-level=error", "--unsafe-no-fsync"]) as process:
        try:
            yield client
        finally:
            process.kill()


def users(world: World, server: str) -> set[str]:
    """In etcd, as its root sees them."""
    found = world.admin.get(SECRETS, HOME, f"{world.namespace}-etcd")
    assert found is not None
    admin = EtcdAdmin("root", base64.b64decode(found["data"]["password"]).decode())

    async def ask() -> set[str]:
        async with aiohttp.ClientSession() as session:
            return await EtcdAuth(session, [server], admin).names()

    return {name for name in asyncio.run(ask()) if name.split("/")[2:3] == [world.namespace]}


def nudged(world: World, operator: Operator) -> None:
    """The user annotates the pipeline, so that it is reconciled."""
    reconciles = operator.reconciles()
    world.admin.merge(
        PIPELINES, world.namespace, "llama", {"metadata": {"annotations": {"nudge": f"{operator.name} {reconciles}"}}}
    )
    until("it looked", lambda: operator.reconciles() > reconciles)


def test_credentials_are_written_once(world: World, etcd: str) -> None:
    """Before everything else, by server-side apply, owned by the pipeline; later nothing."""
    begun = world.plane.mark()
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    world.settle()
    writes = world.writes(begun)
    assert all(write.endswith((" 200", " 201")) for write in writes), writes
    parts = [write for write in writes if "dynamopipelines" not in write and f"{world.namespace}-" not in write]
    assert parts[0] == f"patch secrets/{NAME} 201"
    assert [write for write in writes if NAME in write] == parts[:1]
    assert world.managers(SECRETS, NAME) == [(MANAGER, "Apply", "")]
    assert world.get(SECRETS, NAME)["metadata"]["ownerReferences"][0]["kind"] == "DynamoPipeline"
    assert len(users(world, etcd)) == 1
    rest, before = world.plane.mark(), world.get(SECRETS, NAME)
    for _ in range(5):
        nudged(world, operator)
    assert operator.end() == 0
    operator = world.operators.start("again")
    until("it looked", lambda: operator.reconciles() >= 1)
    nudged(world, operator)
    assert world.writes(rest) == []
    assert world.get(SECRETS, NAME) == before


def test_a_secret_that_was_deleted_is_another_one(world: World, etcd: str) -> None:
    """At the next reconcile: nothing watches Secrets, since that would need the right to list them all."""
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    before = world.get(SECRETS, NAME)["data"]
    world.admin.delete(SECRETS, world.namespace, NAME)
    nudged(world, operator)
    until("there is another one", lambda: world.admin.get(SECRETS, world.namespace, NAME))
    after = world.get(SECRETS, NAME)["data"]
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())
    until("both users are there", lambda: len(users(world, etcd)) == 2)


@pytest.mark.parametrize("up", [True, False], ids=["operator up", "operator down"])
def test_a_deleted_pipeline_leaves_nothing(world: World, etcd: str, up: bool) -> None:
    """No Secret, and no user in etcd once its pods are gone."""
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    assert len(users(world, etcd)) == 1
    if not up:
        operator.end()
    world.plane.kubectl("delete", "dynamopipelines/llama", "-n", world.namespace)
    until("the Secret is gone", lambda: world.admin.get(SECRETS, world.namespace, NAME) is None)
    if not up:
        assert len(users(world, etcd)) == 1
        operator = world.operators.start("again")
    until("the user is gone", lambda: users(world, etcd) == set())
    assert "Traceback" not in operator.said()


def test_nothing_secret_is_said(world: World, etcd: str) -> None:
    """Not in the log, not in the pipeline, not in what else it made."""
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    hidden = [base64.b64decode(text).decode() for text in world.get(SECRETS, NAME)["data"].values()]
    for secret in (f"{world.namespace}-etcd", f"{world.namespace}-nats"):
        found = world.admin.get(SECRETS, HOME, secret)
        assert found is not None
        hidden += [base64.b64decode(text).decode() for key, text in found["data"].items() if key != "username"]
    shown = operator.said() + json.dumps(world.live())
    for kind, name in world.children():
        if kind != SECRETS.kind:
            shown += json.dumps(world.get(resource_of(kind), name))
    assert [text for text in hidden if text in shown and "/" not in text] == []
