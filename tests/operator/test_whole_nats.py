"""The operator as a whole, where each namespace has a NATS of its own: every pipeline hears what becomes of it."""

from __future__ import annotations

import dataclasses

import pytest
from tests.operator.apiserver import ApiServer, Object
from tests.operator.pipelines import SMALLEST, body
from tests.operator.reconcile.test_reconciler import SETTINGS
from tests.operator.test_leadership import run, until
from tests.operator.test_whole import HANG, operating, ready

from dynamo.operator.controller import Controller
from dynamo.operator.kube.resources import Key
from dynamo.operator.manifests import nats
from dynamo.operator.manifests.nats import NatsServer
from dynamo.operator.metrics import Metrics

POD = {"spec": {"containers": [{"name": "nats", "image": "nats:1"}]}}
EACH = dataclasses.replace(
    SETTINGS,
    cluster=dataclasses.replace(SETTINGS.cluster, nats_sign_in=True),
    nats_server=NatsServer("max_payload: 1048576\n", POD),
)


def image(server: ApiServer) -> str:
    live: Object = server.objects.get(("Deployment", "serving", nats.NAME), {})
    containers = live.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [{}])
    return str(containers[0].get("image"))


@pytest.mark.parametrize("how", ["deleted", "edited", "without labels"])
def test_a_tenants_hand_is_undone_at_once(how: str) -> None:
    """By a watch: nobody waits for a resync of ten minutes."""

    async def case(server: ApiServer) -> None:
        server.put(body(SMALLEST))
        async with operating(server, settings=EACH):
            await until(lambda: ready(server), HANG)
            live = server.one("Deployment", nats.NAME)
            if how == "deleted":
                server.remove("Deployment", nats.NAME)
            else:
                labels = {} if how == "without labels" else live["metadata"]["labels"]
                server.put({**live, "metadata": {**live["metadata"], "labels": labels}, "spec": {"replicas": 0}})
            assert image(server) != "nats:1"
            await until(lambda: image(server) == "nats:1", HANG)
            await until(lambda: server.one("Deployment", nats.NAME)["metadata"]["labels"] == nats.labels(), HANG)

    run(case)


def test_all_pipelines_of_the_namespace_hear_of_it() -> None:
    """Since all of them sign in there, and none of another namespace."""

    work = Controller(Metrics(), clock=lambda: 1.0)
    for key in (Key("serving", "a"), Key("serving", "b"), Key("research", "c")):
        work.queue.mark(key, 0.0)
        assert work.queue.take(0.0) == key
        work.queue.succeeded(key, 0.0, 0.0, 600.0)
    work.mark_owner(Key("serving", nats.GROUP))
    assert {work.queue.take(9.0), work.queue.take(9.0), work.queue.take(9.0)} == {
        Key("serving", "a"),
        Key("serving", "b"),
        None,
    }
    work.mark_owner(Key("research", "c"))
    assert work.queue.take(9.0) == Key("research", "c")
