"""Deletion, with the operator up and down, and who leads after a crash."""

from __future__ import annotations

import time

import pytest
from e2e.apiserver.client import until
from e2e.apiserver.world import Note, World

from dynamo.operator.kube.resources import PIPELINES, resource_of

FAILOVER_SECONDS = 20.0


@pytest.mark.parametrize("running", [True, False])
def test_a_deleted_pipeline_leaves_nothing(world: World, running: bool) -> None:
    """Nothing of ours holds it: it goes at once, and the garbage collector takes the rest, operator or not."""
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    if not running:
        assert operator.end() == 0
    world.admin.delete(PIPELINES, world.namespace, "llama")
    assert world.admin.get(PIPELINES, world.namespace, "llama") is None
    until("the children are collected", lambda: not world.children())
    if running:
        until("it is forgotten", lambda: operator.metric("dynamo_operator_pipelines") == 0)


def test_a_new_pipeline_of_the_same_name(world: World) -> None:
    """Made while the old one's children are still being collected: it ends up with its own."""
    world.operators.start()
    uids = set()
    for _ in range(3):
        uid = world.pipeline()["metadata"]["uid"]
        world.until_ready()
        uids.add(uid)
        for kind, name in world.children():
            owners = world.get(resource_of(kind), name)["metadata"]["ownerReferences"]
            assert [owner["uid"] for owner in owners] == [uid], (kind, name)
        world.admin.delete(PIPELINES, world.namespace, "llama")
    assert len(uids) == 3


def test_another_replica_follows_a_crash(world: World, note: Note) -> None:
    """Killed with -9: within 20 s the other one serves; the first comes back and waits."""
    first = world.operators.start("first")
    second = world.operators.start("second", leads=False)
    world.pipeline()
    world.until_ready()
    assert (first.metric("leader_election_master_status"), second.reconciles()) == (1, 0)
    until("the other one is well", lambda: second.probe("/readyz")[0] == 200)
    begun = time.monotonic()
    first.kill()
    world.pipeline(spec={"components": [{"engine": "mocker", "replicas": 3}]})
    until("the other one leads", lambda: world.operators.holder() == "second")
    took = time.monotonic() - begun
    until("it serves", lambda: [s["spec"]["replicas"] for s in world.items(resource_of("StatefulSet"))] == [3])
    note("seconds from SIGKILL to another leader", round(took, 1))
    note("seconds from SIGKILL to a served edit", round(time.monotonic() - begun, 1))
    assert took <= FAILOVER_SECONDS
    third = world.operators.start("first", leads=False)
    until("it answers", lambda: third.probe()[0] == 200)
    begun = time.monotonic()
    assert second.end() == 0
    until("the first one leads again", lambda: world.operators.holder() == "first")
    note("seconds from SIGTERM to another leader", round(time.monotonic() - begun, 1))
