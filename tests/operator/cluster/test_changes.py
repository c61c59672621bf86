"""From any state to the wanted one: rest, rollouts, scale, removal, crashes between writes, names that are taken."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.pipelines import FULL, SMALLEST, pipeline, valid_pipelines
from tests.operator.played_cluster import NOW, Cluster, planned

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.cluster.observe import observe
from dynamo.operator.cluster.writes import Apply, Conflict, Delete, Resize
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import ClusterSettings


def mocker(**component: Any) -> DynamoPipeline:
    return pipeline({"components": [{"engine": "mocker", **component}]})


def groups(**component: Any) -> DynamoPipeline:
    two = {"engine": "vllm", "nodes": 2, "tensorParallelSize": 2, **component}
    return pipeline({"components": [two], "model": {"source": "/m"}})


@settings(max_examples=40, deadline=None)
@given(valid_pipelines)
def test_every_pipeline_comes_to_rest(found: DynamoPipeline) -> None:
    """And at rest, nothing is written."""
    cluster = Cluster()
    cluster.settle(found)
    before = cluster.writes
    assert cluster.wanted_changes(found) == []
    assert cluster.writes == before


def test_a_rollout_keeps_enough_workers() -> None:
    """Four workers, one may be missing: never fewer than three serve, and in the end the old revision is gone."""
    cluster = Cluster()
    cluster.settle(mocker(replicas=4))
    (old,) = cluster.revisions("worker")
    new = mocker(replicas=4, kvCacheBlockSize=32)
    for _ in range(40):
        cluster.reconcile(new)
        cluster.step()
        assert cluster.ready_workers("worker") >= 3
    cluster.settle(new)
    assert list(cluster.revisions("worker").values()) == [4]
    assert old not in cluster.revisions("worker")
    assert not [name for name in cluster.names("StatefulSet") if old in name]


def test_an_old_revision_is_resized_and_not_applied() -> None:
    """What it was made from is gone, so an apply would change its pods."""
    cluster = Cluster()
    cluster.settle(mocker(replicas=4))
    (old,) = cluster.revisions("worker")
    new, kinds = mocker(replicas=4, kvCacheBlockSize=32), set()
    for _ in range(20):
        for change in cluster.wanted_changes(new):
            if isinstance(change, Apply):
                assert old not in change.manifest["metadata"]["name"]
            kinds.add(type(change))
        cluster.reconcile(new)
        cluster.step()
    assert kinds == {Apply, Resize, Delete}


def test_a_broken_image_is_escaped() -> None:
    """The old workers serve on while the new ones never start, and the next revision replaces both."""
    cluster = Cluster(broken=["dynamo/worker:bad"])
    found = mocker(replicas=3)
    cluster.settle(found)
    bad, good = (ClusterSettings("dynamo/frontend:1", {"default": f"dynamo/worker:{tag}"}) for tag in ("bad", "good"))
    for _ in range(20):
        cluster.reconcile(found, bad)
        cluster.step()
    assert cluster.ready_workers("worker") == 2
    cluster.settle(found, good)
    assert list(cluster.revisions("worker").values()) == [3]
    assert cluster.ready_workers("worker") == 3


def test_back_to_the_old_revision() -> None:
    """A rollback in the middle of a rollout finds the old revision's StatefulSet and grows it again."""
    cluster = Cluster()
    first, second = mocker(replicas=3), mocker(replicas=3, kvCacheBlockSize=32)
    cluster.settle(first)
    (revision,) = cluster.revisions("worker")
    for _ in range(3):
        cluster.reconcile(second)
        cluster.step()
    cluster.settle(first)
    assert cluster.revisions("worker") == {revision: 3}


def test_scaling_is_one_write() -> None:
    """Up and down: the StatefulSet alone changes, and its pods' template doesn't."""
    cluster = Cluster()
    cluster.settle(mocker(replicas=2))
    for number in (5, 3):
        (change,) = cluster.wanted_changes(mocker(replicas=number))
        assert isinstance(change, Apply)
        assert change.manifest["spec"]["replicas"] == number
        assert change.because == ("spec.replicas",)
        cluster.settle(mocker(replicas=number))


def test_a_budget_is_for_several() -> None:
    """It comes with the second pod and goes with it: for a single one it would allow everything."""
    cluster = Cluster()
    cluster.settle(mocker(replicas=1))
    budgets = {
        number: [c for c in cluster.wanted_changes(mocker(replicas=number)) if isinstance(c, Apply | Delete)]
        for number in (1, 2)
    }
    assert budgets[1] == []
    assert [c.manifest["kind"] for c in budgets[2] if isinstance(c, Apply)] == ["PodDisruptionBudget", "StatefulSet"]
    cluster.settle(mocker(replicas=2))
    gone = [c.target.kind for c in cluster.wanted_changes(mocker(replicas=1)) if isinstance(c, Delete)]
    assert gone == ["PodDisruptionBudget"]


def test_groups_come_and_go_whole() -> None:
    """Each group is a StatefulSet and a Service of its own."""
    cluster = Cluster()
    cluster.settle(groups(replicas=3))
    assert len(list(cluster.names("StatefulSet"))) == 3
    cluster.settle(groups(replicas=1))
    assert [n.rpartition("-")[2] for n in cluster.names("StatefulSet")] == ["0"]
    new = groups(replicas=1, kvCacheBlockSize=32)
    cluster.settle(new)
    (name,) = cluster.names("StatefulSet")
    assert planned(new).workers[0].revision in name
    assert len([n for n in cluster.names("Service") if n != "llama-frontend"]) == 1


def test_removed_parts_leave_nothing() -> None:
    """A component's Service, budget and pods go with it; the model cache stays."""
    cached = {"model": {"source": "/m", "cache": {"size": "1Gi"}}}
    two = pipeline({"components": [{"engine": "mocker"}, {"name": "b", "engine": "mocker", "engineArgs": {"a": 1}}],
                    **cached})  # fmt: skip
    one = pipeline({"components": [{"engine": "mocker"}], "model": {"source": "/m"}})
    cluster = Cluster()
    cluster.settle(two)
    cluster.settle(one)
    left = [name for kind, name in cluster.objects if "llama-b" in name]
    assert left == []
    assert list(cluster.names("PersistentVolumeClaim")) == ["llama-model-cache"]


def test_what_is_edited_or_deleted_by_hand_comes_back() -> None:
    """An edited image, a removed label's annotation, a deleted Service."""
    cluster, found = Cluster(), mocker(replicas=2)
    cluster.settle(found)
    before = cluster.fingerprint()
    deployment = cluster.objects["Deployment", "llama-frontend"]
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "mine"
    deployment["metadata"]["annotations"].clear()
    del cluster.objects["Service", "llama-frontend"]
    cluster.settle(found)
    assert cluster.fingerprint() == before


def test_foreign_objects_are_never_touched() -> None:
    """A Service of that name which somebody else made is a conflict, with or without our labels."""
    cluster, found = Cluster(), mocker()
    owner = {"kind": "Shop", "name": "llama", "uid": "shop", "controller": True}
    labels = naming.pipeline_labels("llama")
    metadata = {"name": "llama-frontend", "uid": "theirs", "labels": labels, "ownerReferences": [owner]}
    cluster.objects["Service", "llama-frontend"] = {"kind": "Service", "apiVersion": "v1", "metadata": metadata}
    conflicts = [c for c in cluster.wanted_changes(found) if isinstance(c, Conflict)]
    assert conflicts == [Conflict("Service", "llama-frontend")]
    assert not [c for c in cluster.wanted_changes(found) if isinstance(c, Delete)]
    metadata |= {"labels": {}, "ownerReferences": []}
    assert conflicts == [c for c in cluster.wanted_changes(found) if isinstance(c, Conflict)]


def test_orphans_of_ours_are_taken_in() -> None:
    """Deleted with --cascade=orphan and made again: the same StatefulSet, with its owner, and no pod was touched."""
    cluster, found = Cluster(), mocker(replicas=2)
    cluster.settle(found)
    before = cluster.fingerprint()
    for one in cluster.objects.values():
        one["metadata"].pop("ownerReferences", None)
    assert all(isinstance(c, Apply) and c.uid for c in cluster.wanted_changes(found))
    cluster.settle(found)
    assert cluster.fingerprint() == before


def test_a_predecessors_children_are_waited_for() -> None:
    """Deleted and made again at once: what is about to be collected is no conflict, and isn't written to."""
    cluster, found = Cluster(), mocker()
    cluster.settle(found)
    for one in cluster.objects.values():
        for owner in one["metadata"].get("ownerReferences", []):
            owner["uid"] = "former"
    assert cluster.wanted_changes(found) == []
    cluster.objects.clear()
    cluster.settle(found)
    assert cluster.ready_workers("worker") == 1


def test_an_autoscaler_on_the_pipeline_is_followed() -> None:
    """It sets `spec.replicas`; the workers follow, and a number that somebody sets on the StatefulSet is undone."""
    cluster, component = Cluster(), {"engine": "mocker"}
    cluster.settle(pipeline({"replicas": 2, "components": [component]}))
    cluster.settle(pipeline({"replicas": 7, "components": [component]}))
    assert list(cluster.revisions("worker").values()) == [7]
    (name,) = cluster.names("StatefulSet")
    cluster.objects["StatefulSet", name]["spec"]["replicas"] = 3
    cluster.settle(pipeline({"replicas": 7, "components": [component]}))
    assert list(cluster.revisions("worker").values()) == [7]


SPECS = [
    mocker(),
    mocker(replicas=3),
    mocker(replicas=3, kvCacheBlockSize=32),
    mocker(replicas=2, engineArgs={"a": 1}, rollout={"strategy": "Recreate"}),
    mocker(replicas=0),
    groups(replicas=2),
    groups(replicas=3, engineArgs={"a": 1}),
    pipeline(FULL),
    pipeline(SMALLEST),
    pipeline({"components": [{"engine": "mocker", "name": "other", "replicas": 2}]}),
]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(SPECS), st.integers(0, 6), st.booleans()), min_size=1, max_size=8),
    st.sampled_from(SPECS),
)
def test_killed_anywhere_the_end_is_the_same(
    history: list[tuple[DynamoPipeline, int, bool]], last: DynamoPipeline
) -> None:
    """After any edits, and passes that stop after any number of writes, the end is as if all had been made afresh."""
    cluster = Cluster()
    for found, writes, controllers in history:
        cluster.reconcile(found, stop_after=writes)
        if controllers:
            cluster.step()
    cluster.settle(last)
    fresh = Cluster()
    fresh.settle(last)
    left = {k: v for k, v in cluster.fingerprint().items() if k[0] != "PersistentVolumeClaim"}
    assert left == {k: v for k, v in fresh.fingerprint().items() if k[0] != "PersistentVolumeClaim"}


@pytest.mark.parametrize("found", SPECS)
def test_few_writes_per_pipeline(found: DynamoPipeline) -> None:
    """Each object is created once; nothing is written twice on the way."""
    cluster = Cluster()
    cluster.settle(found)
    objects = [kind for kind, _ in cluster.objects if kind != "Pod"]
    assert cluster.writes == len(objects)


def test_observing_twice_is_the_same() -> None:
    """The order of the objects in a list doesn't matter."""
    cluster = Cluster()
    cluster.settle(pipeline(FULL))
    live = cluster.live()
    assert observe(live, NOW) == observe(live[::-1], NOW)


def test_old_groups_go_from_the_end() -> None:
    """One group may be missing: the last one goes, StatefulSet and Service, and the others serve on."""
    cluster = Cluster()
    cluster.settle(groups(replicas=3))
    found = cluster.wanted_changes(groups(replicas=3, kvCacheBlockSize=32))
    deleted = [c.target for c in found if isinstance(c, Delete)]
    assert {t.kind for t in deleted} == {"StatefulSet", "Service"}
    assert {t.name.rpartition("-")[2] for t in deleted} == {"2"}


def test_half_a_group_serves_nobody() -> None:
    """A group is ready when all of its pods are; one that is told to end is not."""
    cluster = Cluster()
    cluster.settle(groups(replicas=2))
    assert cluster.ready_workers("worker") == 2
    first, *_, last = sorted(cluster.names("Pod"))
    cluster.objects["Pod", first]["status"] = {}
    assert cluster.observed().sets[0].ready == {1}
    cluster.objects["Pod", last]["metadata"]["deletionTimestamp"] = "2026-11-21T00:10:00Z"
    assert cluster.observed().sets[0].ready == frozenset()


def test_the_budget_grows_once_others_are_told_to_come() -> None:
    """Not before: until then nobody takes the place of the one that is lost."""
    found = pipeline({"components": [{"engine": "mocker", "replicas": 2}]})
    cluster = Cluster()
    cluster.settle(found)
    name = min(cluster.names("Pod"))
    cluster.objects["Pod", name]["metadata"]["deletionTimestamp"] = "2026-11-20T23:50:00Z"
    seen = []
    for _ in range(2):
        cluster.reconcile(found)
        seen.append(cluster.objects["PodDisruptionBudget", "llama-worker"]["spec"]["maxUnavailable"])
    assert seen == [1, 2]
    cluster.settle(found)
