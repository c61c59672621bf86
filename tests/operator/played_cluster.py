"""A cluster in memory for the pure parts: keeps objects, plays Kubernetes' controllers, can be stopped half-way."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from tests.operator.rendered import IMAGES

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.cluster.changes import changes
from dynamo.operator.cluster.observe import Observed, observe
from dynamo.operator.cluster.writes import Apply, Change, Delete, Resize
from dynamo.operator.manifests.context import ClusterSettings, Manifest
from dynamo.operator.manifests.render import with_images
from dynamo.operator.plan.plan import Environment, plan
from dynamo.operator.plan.workload import Plan

NOW = datetime(2026, 11, 21, tzinfo=UTC)
CLUSTER = Environment(("http://etcd:2379",), "nats://nats:4222", kubernetes_namespace="serving")
CLUSTER_SETTINGS = ClusterSettings("dynamo/frontend:1", IMAGES)


def planned(pipeline: DynamoPipeline, cluster: ClusterSettings = CLUSTER_SETTINGS) -> Plan:
    """What the reconciler would carry out."""
    return with_images(plan(pipeline, CLUSTER), pipeline, cluster)


class Cluster:
    """`broken` images never become ready."""

    def __init__(self, broken: Iterable[str] = ()) -> None:
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.broken = set(broken)
        self.writes = 0
        self._uids = itertools.count(1)

    def live(self) -> list[Manifest]:
        return [copy.deepcopy(o) for o in self.objects.values()]

    def observed(self, lost: Collection[str] = ()) -> Observed:
        return observe(self.live(), NOW, lost)

    def wanted_changes(self, pipeline: DynamoPipeline, cluster: ClusterSettings = CLUSTER_SETTINGS) -> list[Change]:
        return changes(pipeline, planned(pipeline, cluster), cluster, self.live(), self.observed().sets)

    def reconcile(
        self, pipeline: DynamoPipeline, cluster: ClusterSettings = CLUSTER_SETTINGS, stop_after: int | None = None
    ) -> int:
        """One pass, killed after some writes if told so; how many there were."""
        changes = self.wanted_changes(pipeline, cluster)[:stop_after]
        for change in changes:
            self.write(change)
        return len(changes)

    def settle(self, pipeline: DynamoPipeline, cluster: ClusterSettings = CLUSTER_SETTINGS, passes: int = 60) -> None:
        """Reconcile and let the controllers work until nothing is written any more."""
        for _ in range(passes):
            if not self.reconcile(pipeline, cluster) and not self.step():
                return
        raise AssertionError(f"no rest: {self.wanted_changes(pipeline, cluster)}")

    def write(self, change: Change) -> None:
        self.writes += 1
        if isinstance(change, Apply):
            self._apply(change)
        elif isinstance(change, Resize):
            value = self.objects[change.target.kind, change.target.name]
            assert value["metadata"]["uid"] == change.target.uid
            value["spec"]["replicas"] = change.replicas
        elif isinstance(change, Delete):
            assert self.objects.pop((change.target.kind, change.target.name))["metadata"]["uid"] == change.target.uid
        else:
            raise TypeError(change)

    def _apply(self, change: Apply) -> None:
        manifest = copy.deepcopy(change.manifest)
        key = manifest["kind"], manifest["metadata"]["name"]
        before = self.objects.get(key)
        assert (before["metadata"]["uid"] if before else None) == change.uid
        manifest["metadata"]["uid"] = change.uid or f"uid-{next(self._uids)}"
        if before and "status" in before:
            manifest["status"] = before["status"]
        self.objects[key] = manifest

    def step(self) -> bool:
        """One round of Kubernetes' own controllers; false if they had nothing to do."""
        before = copy.deepcopy(self.objects)
        self._collect_pods()
        for entry in list(self.objects.values()):
            if entry["kind"] == "StatefulSet":
                self._pods_of(entry)
            elif entry["kind"] == "Deployment":
                self._deploy(entry)
        return self.objects != before

    def _collect_pods(self) -> None:
        for key, pod in list(self.objects.items()):
            if pod["kind"] == "Pod":
                owner = self.objects.get(("StatefulSet", pod["metadata"]["annotations"]["set"]))
                number = int(key[1].rpartition("-")[2])
                if owner is None or number >= owner["spec"].get("replicas", 1):
                    del self.objects[key]

    def _pods_of(self, manifest: Manifest) -> None:
        image = manifest["spec"]["template"]["spec"]["containers"][0]["image"]
        for number in range(manifest["spec"].get("replicas", 1)):
            name = f"{manifest['metadata']['name']}-{number}"
            existing = self.objects.get(("Pod", name))
            if existing is None:
                labels = dict(manifest["spec"]["template"]["metadata"]["labels"])
                metadata = {"name": name, "labels": labels, "annotations": {"set": manifest["metadata"]["name"]}}
                self.objects["Pod", name] = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "status": {}}
            elif image not in self.broken:
                existing["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}

    def _deploy(self, manifest: Manifest) -> None:
        number = manifest["spec"]["replicas"]
        manifest["status"] = {"readyReplicas": number, "updatedReplicas": number, "replicas": number}

    def ready_workers(self, component: str) -> int:
        """Workers that serve."""
        return sum(len(s.ready) for s in self.observed().sets if s.component == component)

    def revisions(self, component: str) -> dict[str, int]:
        """Workers that are told to be there, by revision."""
        return {s.revision: s.replicas for s in self.observed().sets if s.component == component}

    def names(self, kind: str) -> Iterator[str]:
        return (name for k, name in self.objects if k == kind)

    def fingerprint(self) -> dict[Any, Any]:
        """Everything but the uids, which differ from run to run."""
        live = self.live()
        for entry in live:
            entry["metadata"].pop("uid", None)
        return {(o["kind"], o["metadata"]["name"]): o for o in live}
