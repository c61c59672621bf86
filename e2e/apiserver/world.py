"""What a test acts on: `World`, one namespace on the control plane with its pipelines and operators."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from e2e.apiserver.client import Object, until
from e2e.apiserver.operators import ACCOUNT, HOME, NAMESPACES, REPOSITORY, USER, Operators
from e2e.apiserver.plane import CRDS, Plane

from dynamo.operator.kube.resources import CHILDREN, LEASES, PIPELINES, Resource
from dynamo.operator.manifests import naming

Note = Callable[[str, object], None]
"""Keeps a figure in the test's report."""
SPEC: Object = {"components": [{"engine": "mocker", "replicas": 2}]}


class World:
    """The namespace is the test's own."""

    def __init__(self, plane: Plane, operators: Operators, namespace: str) -> None:
        self.plane, self.operators, self.namespace = plane, operators, namespace
        self.admin = plane.admin

    def install_crd(self) -> None:
        """Until pipelines are served."""
        self.admin.apply(CRDS, yaml.safe_load((REPOSITORY / "crds/dynamo.dev_dynamopipelines.yaml").read_text()))
        until("pipelines are served", lambda: self.admin.items(PIPELINES) is not None)

    def pipeline(self, name: str = "llama", spec: Object = SPEC) -> Object:
        """Applied as a user does."""
        metadata = {"name": name, "namespace": self.namespace}
        body = {"apiVersion": PIPELINES.api_version, "kind": PIPELINES.kind, "metadata": metadata, "spec": spec}
        return self.admin.apply(PIPELINES, body)

    def live(self, name: str = "llama") -> Object:
        """The pipeline as it stands."""
        found = self.admin.get(PIPELINES, self.namespace, name)
        assert found is not None
        return found

    def condition(self, kind: str = "Ready", name: str = "llama") -> Object:
        """Of the pipeline; empty where it has none."""
        conditions: list[Object] = self.live(name).get("status", {}).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def children(self, name: str = "llama") -> list[tuple[str, str]]:
        """Kind and name of everything that bears the pipeline's label."""
        return sorted(
            (resource.kind, item["metadata"]["name"])
            for resource in CHILDREN
            for item in self.items(resource)
            if item["metadata"].get("labels", {}).get(naming.PIPELINE) == name
        )

    def items(self, resource: Resource) -> list[Object]:
        """Of the namespace; none where the cluster doesn't know the kind."""
        if self.admin.code("GET", resource.path(self.namespace)) == 404:
            return []
        return self.admin.items(resource, self.namespace)

    def ready(self, name: str = "llama") -> bool:
        """Whether the pipeline says so for its generation, with kubelets played."""
        self.admin.play(self.namespace)
        found, generation = self.condition("Ready", name), self.live(name)["metadata"]["generation"]
        return found.get("status") == "True" and found.get("observedGeneration") == generation

    def get(self, resource: Resource, name: str) -> Object:
        """One that must be there."""
        found = self.admin.get(resource, self.namespace, name)
        assert found is not None, (resource.kind, name)
        return found

    def uid(self, resource: Resource, name: str) -> str:
        """Of a child that may be away."""
        found = self.admin.get(resource, self.namespace, name)
        return str(found["metadata"]["uid"]) if found else ""

    def managers(self, resource: Resource, name: str) -> list[tuple[str, str, str]]:
        """Manager, operation and subresource of each entry."""
        fields = self.get(resource, name)["metadata"]["managedFields"]
        return [(field["manager"], field["operation"], field.get("subresource", "")) for field in fields]

    def settle(self) -> None:
        """Until the operators haven't written anything for two seconds."""
        written = -1
        while len(self.writes(0)) != written:
            written = len(self.writes(0))
            time.sleep(2)

    def remove_crd(self) -> None:
        """And all pipelines with it; until the kind isn't served any more."""
        self.admin.delete(CRDS, None, f"{PIPELINES.plural}.{PIPELINES.group}")
        until("pipelines aren't served", lambda: self.admin.code("GET", PIPELINES.path()) == 404)

    def until_ready(self, name: str = "llama") -> None:
        """Waits for it."""
        until(f"{name} is ready", lambda: self.ready(name))

    def writes(self, since: int) -> list[str]:
        """What the operators wrote, as `verb resource/name code`."""
        found = []
        for write in self.plane.writes(USER, since):
            what: dict[str, Any] = write.get("objectRef", {})
            parts = [what.get("resource"), what.get("subresource"), what.get("name")]
            where = "/".join(part for part in parts if part)
            found.append(f"{write['verb']} {where} {write.get('responseStatus', {}).get('code')}")
        return found

    def clear(self) -> None:
        """Nothing is left for the next test."""
        if self.admin.code("GET", PIPELINES.path()) == 200:
            for item in self.admin.items(PIPELINES):
                self.admin.delete(PIPELINES, item["metadata"]["namespace"], item["metadata"]["name"])
        self.admin.code("DELETE", LEASES.path(HOME, ACCOUNT))
        self.admin.code("DELETE", f"/api/v1/namespaces/{self.namespace}")


def namespace_of(item: pytest.Item) -> str:
    """Named after the test; a second attempt has another, because the first one's may still be terminating."""
    attempt: int = getattr(item, "execution_count", 1)  # counted by pytest-rerunfailures
    name = re.sub("[^a-z0-9]+", "-", item.name.lower())[:50].strip("-")
    return name if attempt == 1 else f"{name}-{attempt}"


@contextmanager
def new_world(plane: Plane, name: str) -> Iterator[World]:
    """For tests that share one; it is gone afterwards."""
    operators = Operators(plane, name)
    operators.allow()
    found = World(plane, operators, name)
    found.install_crd()
    plane.admin.apply(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": found.namespace}})
    try:
        yield found
    finally:
        operators.end()
        found.clear()
