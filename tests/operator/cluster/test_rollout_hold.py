"""While the NATS of a namespace is away nothing that serves, or will again, is taken away."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.cluster.test_changes import groups, mocker
from tests.operator.pipelines import pipeline
from tests.operator.played_cluster import CLUSTER_SETTINGS, Cluster, planned
from tests.operator.rendered import IMAGES

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.cluster.rollout_hold import due as due_now
from dynamo.operator.cluster.rollout_hold import nats_serves
from dynamo.operator.cluster.writes import Apply, Change
from dynamo.operator.manifests.context import ClusterSettings

NEXT = ClusterSettings("dynamo/frontend:2", {engine: f"{image}-next" for engine, image in IMAGES.items()})


def due(cluster: Cluster, wanted: DynamoPipeline, settings: ClusterSettings = CLUSTER_SETTINGS) -> list[Change]:
    """What would be written now, with NATS away."""
    todo, plan = cluster.wanted_changes(wanted, settings), planned(wanted, settings)
    return due_now(todo, plan, cluster.live(), cluster.observed().sets, [])


def without_ready(cluster: Cluster) -> None:
    """NATS is away: nobody is Ready."""
    for item in cluster.objects.values():
        if item["kind"] == "Pod":
            item["status"] = {}


@pytest.mark.parametrize("kind", [mocker, groups])
def test_another_release_waits(kind: Any) -> None:
    """Old workers, new ones that were begun and frontends stay as they are, and go on when NATS is back."""
    before = kind(replicas=2)
    cluster = Cluster()
    cluster.settle(before)
    old = cluster.fingerprint()
    without_ready(cluster)
    assert cluster.wanted_changes(before, NEXT)
    for change in due(cluster, before, NEXT):
        cluster.write(change)
    after = cluster.fingerprint()
    for place, item in old.items():
        if place[0] in ("Deployment", "StatefulSet", "Pod"):
            assert after[place].get("spec") == item.get("spec")
    cluster.settle(before, NEXT)
    assert list(cluster.revisions("worker").values()) == [2]


def test_a_rollout_that_has_begun_stands_still() -> None:
    """Neither more new workers nor fewer old ones."""
    before, after = mocker(replicas=4), mocker(replicas=4, kvCacheBlockSize=32)
    cluster = Cluster()
    cluster.settle(before)
    for _ in range(2):
        cluster.reconcile(after)
        cluster.step()
    begun = cluster.revisions("worker")
    assert len(begun) == 2
    without_ready(cluster)
    assert cluster.wanted_changes(after)
    assert due(cluster, after) == []
    assert cluster.revisions("worker") == begun


def test_what_replaces_nothing_is_written() -> None:
    """A new pipeline, other numbers of workers and frontends, a component that is no longer wanted."""
    cluster = Cluster()
    assert due(cluster, mocker()) == cluster.wanted_changes(mocker())
    cluster.settle(mocker(replicas=2))
    without_ready(cluster)
    for wanted in (
        mocker(replicas=5),
        mocker(replicas=0),
        pipeline({"components": [{"engine": "mocker", "replicas": 2}], "frontend": {"replicas": 3}}),
        pipeline({"components": [{"name": "other", "engine": "mocker"}]}),
    ):
        assert due(cluster, wanted) == cluster.wanted_changes(wanted) != []


@pytest.mark.parametrize("kind", [mocker, groups])
@pytest.mark.parametrize("replicas", [0, 1])
def test_whoever_wants_less_gets_it(kind: Any, replicas: int) -> None:
    """In the middle of a rollout, too: a NATS that lacks room waits for it."""
    cluster = Cluster()
    cluster.settle(kind(replicas=4))
    for _ in range(2):
        cluster.reconcile(kind(replicas=4), NEXT)
        cluster.step()
    without_ready(cluster)
    for _ in range(5):
        for change in due(cluster, kind(replicas=replicas), NEXT):
            cluster.write(change)
    assert sum(cluster.revisions("worker").values()) <= replicas + 1


def test_an_idle_release_goes_to_zero() -> None:
    """Another one is wanted, and nobody of it."""
    cluster = Cluster()
    cluster.settle(mocker(replicas=2))
    without_ready(cluster)
    for change in due(cluster, mocker(replicas=0), NEXT):
        cluster.write(change)
    assert sum(cluster.revisions("worker").values()) == 0


def test_what_leads_to_the_pods_of_before_stays() -> None:
    """Another port is the Service's and the policies' only when it is the pods'."""
    before, after = (pipeline({"components": [{"engine": "mocker"}], "frontend": {"port": port}}) for port in (80, 90))
    cluster = Cluster()
    cluster.settle(before)
    kinds = {change.manifest["kind"] for change in cluster.wanted_changes(after) if isinstance(change, Apply)}
    assert kinds >= {"Service", "Deployment"}
    assert due(cluster, after) == []


def deployment(generation: int = 2, replicas: int = 1, **status: Any) -> dict[str, Any]:
    return {
        "kind": "Deployment",
        "metadata": {"name": status.pop("name", "dynamo-nats"), "generation": generation},
        "spec": {"replicas": replicas, "paused": status.pop("paused", False)},
        "status": status,
    }


STUCK = [{"type": "Progressing", "status": "False"}]


@pytest.mark.parametrize(
    ("live", "serves"),
    [
        ([], False),
        ([deployment()], False),
        ([deployment(observedGeneration=1, updatedReplicas=1, availableReplicas=1)], False),
        ([deployment(observedGeneration=2, updatedReplicas=1)], False),
        ([deployment(observedGeneration=2, availableReplicas=1)], False),
        ([deployment(observedGeneration=2, availableReplicas=1, paused=True)], True),
        ([deployment(observedGeneration=2, updatedReplicas=1, availableReplicas=1)], True),
        ([deployment(observedGeneration=2, conditions=STUCK)], True),
        ([deployment(observedGeneration=1, conditions=STUCK)], False),
        ([deployment(replicas=3, observedGeneration=2, updatedReplicas=1, availableReplicas=1)], False),
        ([deployment(replicas=3, observedGeneration=2, updatedReplicas=1, availableReplicas=2)], True),
        ([deployment(name="aaa"), deployment(observedGeneration=2, updatedReplicas=1, availableReplicas=1)], True),
        ([deployment(name="aaa", observedGeneration=2, updatedReplicas=1, availableReplicas=1)], False),
    ],
)
def test_when_nats_serves(live: list[dict[str, Any]], serves: bool) -> None:
    """It is the one that was asked for, and has been Ready for a while, or will not come; of three one may be lost."""
    assert nats_serves(live) is serves
