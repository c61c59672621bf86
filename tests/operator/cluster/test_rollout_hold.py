"""While the NATS of a namespace is away nothing that serves, or will again, is taken away."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.cluster.test_changes import groups, mocker
from tests.operator.pipelines import pipeline
from tests.operator.played_cluster import CLUSTER_SETTINGS, Cluster, planned
from tests.operator.rendered import IMAGES

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.cluster.rollout_hold import nats_serves, without_rollouts
from dynamo.operator.cluster.writes import Change
from dynamo.operator.manifests.context import ClusterSettings

NEXT = ClusterSettings("dynamo/frontend:2", {engine: f"{image}-next" for engine, image in IMAGES.items()})


def due(cluster: Cluster, wanted: DynamoPipeline, settings: ClusterSettings = CLUSTER_SETTINGS) -> list[Change]:
    """What would be written now, with NATS away."""
    return without_rollouts(cluster.wanted_changes(wanted, settings), planned(wanted, settings), cluster.live())


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


def deployment(generation: int = 2, replicas: int = 1, **status: int) -> dict[str, Any]:
    return {
        "kind": "Deployment",
        "metadata": {"name": "n", "generation": generation},
        "spec": {"replicas": replicas},
        "status": status,
    }


@pytest.mark.parametrize(
    ("live", "serves"),
    [
        ([], False),
        ([deployment()], False),
        ([deployment(observedGeneration=1, updatedReplicas=1, availableReplicas=1)], False),
        ([deployment(observedGeneration=2, updatedReplicas=1)], False),
        ([deployment(observedGeneration=2, updatedReplicas=1, availableReplicas=1)], True),
        ([deployment(replicas=3, observedGeneration=2, updatedReplicas=2, availableReplicas=2)], False),
        ([deployment(replicas=3, observedGeneration=2, updatedReplicas=3, availableReplicas=2)], True),
    ],
)
def test_when_nats_serves(live: list[dict[str, Any]], serves: bool) -> None:
    """It is the one that was asked for, and has been Ready for a while; of three one may be lost."""
    assert nats_serves(live) is serves
