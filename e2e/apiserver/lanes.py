"""Many namespaces side by side, each with the pipeline `llama` and faults of its own: `Lanes`.

What a test does to one it does to all; it waits for all, and compares what they end up with.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from e2e.apiserver.alike import normal, unlike
from e2e.apiserver.client import Object, until
from e2e.apiserver.faults import Faults, Script
from e2e.apiserver.operators import NAMESPACES
from e2e.apiserver.world import World

from dynamo.operator.kube.resources import CHILDREN, PIPELINES, PODS, Key, Resource
from dynamo.operator.manifests import naming

FIRST: Object = {
    "namespace": "llama",
    "components": [
        {"name": "worker", "engine": "mocker", "replicas": 2},
        {"name": "extra", "engine": "echo_core", "replicas": 1},
    ],
}
SECOND: Object = {
    "namespace": "llama",
    "frontend": {"replicas": 2},
    "components": [{"name": "worker", "engine": "mocker", "replicas": 3, "env": [{"name": "EDITED", "value": "yes"}]}],
}
"""Another revision of one component with more workers, one component less, another frontend."""
REST_SECONDS = 1.5
"""Nothing was written for so long: at rest."""
DONE_SECONDS = 180.0


class Lane:
    """One of them."""

    def __init__(self, namespace: str, script: Script) -> None:
        self.namespace, self.script = namespace, script
        self.key = Key(namespace, "llama")


class Lanes(Sequence[Lane]):
    """All of a test; `faults` is the proxy's."""

    def __init__(self, world: World, faults: Faults, names: Iterable[str]) -> None:
        self._world, self._admin = world, world.admin
        # 63 characters are what a namespace may have.
        self._lanes = [Lane(f"{world.namespace[: 62 - len(name)]}-{name}", Script()) for name in names]
        for lane in self._lanes:
            faults.scripts[lane.namespace] = lane.script
            metadata = {"name": lane.namespace}
            self._admin.apply(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def __len__(self) -> int:
        return len(self._lanes)

    def __getitem__(self, index: Any) -> Any:
        return self._lanes[index]

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    @property
    def namespaces(self) -> list[str]:
        """Theirs."""
        return [lane.namespace for lane in self._lanes]

    def apply(self, spec: Object) -> None:
        """The pipeline, as its user does."""
        for lane in self._lanes:
            World(self._world.plane, self._world.operators, lane.namespace).pipeline(spec=spec)

    def play(self) -> None:
        """The kubelets."""
        self._admin.play(None)

    def delete(self) -> None:
        """The pipeline."""
        for lane in self._lanes:
            self._admin.delete(PIPELINES, lane.namespace, "llama")

    def objects(self) -> dict[str, list[Object]]:
        """The pipeline, its children and its pods, by namespace."""
        found: dict[str, list[Object]] = {namespace: [] for namespace in self.namespaces}
        for kind in (PIPELINES, *CHILDREN, PODS):
            for item in self._items(kind):
                ours = kind is PIPELINES or item["metadata"].get("labels", {}).get(naming.PIPELINE) == "llama"
                if ours and item["metadata"]["namespace"] in found:
                    found[item["metadata"]["namespace"]].append(item)
        return found

    def normal(self) -> dict[str, dict[str, Any]]:
        """How each stands, comparable with the others, by namespace."""
        return {namespace: normal(objects, namespace) for namespace, objects in self.objects().items()}

    def is_like(self, lane: Lane, wanted: dict[str, Any]) -> bool:
        """Whether it stands so, after kubelets have done their part."""
        self.play()
        return unlike(self.normal()[lane.namespace], wanted) == []

    def until_ready(self, seconds: float = DONE_SECONDS) -> list[float]:
        """Each Ready for what is wanted of it, and nothing is written any more; the seconds that each took."""
        begun, took = time.monotonic(), dict.fromkeys(self.namespaces, 0.0)
        while unready := self.unready():
            self.play()
            now = time.monotonic() - begun
            took.update(dict.fromkeys(unready, now))
            assert now < seconds, f"after {seconds:.0f} s {len(unready)} of {len(self)} aren't ready: {unready}"
            time.sleep(0.1)
        self.until_rest()
        return list(took.values())

    def until_gone(self, seconds: float = DONE_SECONDS) -> None:
        """No pipeline, no child, no pod."""
        until("everything is gone", lambda: not any(self.objects().values()), seconds)

    def until_rest(self) -> None:
        """Nothing has been written for a while."""
        since, written = time.monotonic(), self.written()
        while time.monotonic() - since < REST_SECONDS:
            time.sleep(0.1)
            if self.written() != written:
                since, written = time.monotonic(), self.written()

    def written(self) -> list[int]:
        """How many writes each has seen tried."""
        return [len(lane.script.writes) for lane in self._lanes]

    def since(self, written: Sequence[int]) -> list[str]:
        """What was written after so many writes of each; a write to what isn't there any more is none."""
        return [
            f"{lane.namespace}: {one}"
            for lane, count in zip(self._lanes, written, strict=True)
            for at, one in enumerate(lane.script.writes)
            if at >= count and at not in lane.script.missed
        ]

    def unready(self) -> dict[str, str]:
        """What each that isn't ready says of itself."""
        wanted = set(self.namespaces)
        found = [item for item in self._items(PIPELINES) if item["metadata"]["namespace"] in wanted]
        return {one["metadata"]["namespace"]: said for one in found if (said := _unready(one))}

    def _items(self, kind: Resource) -> list[Object]:
        return [{**item, "apiVersion": kind.api_version, "kind": kind.kind} for item in self._admin.items(kind)]


def _unready(pipeline: Object) -> str:
    conditions = pipeline.get("status", {}).get("conditions", [])
    ready = next((condition for condition in conditions if condition["type"] == "Ready"), None)
    if ready is None:
        return "no status"
    if ready["observedGeneration"] != pipeline["metadata"]["generation"]:
        return "an old generation's status"
    return "" if ready["status"] == "True" else f"{ready['reason']}: {ready['message']}"
