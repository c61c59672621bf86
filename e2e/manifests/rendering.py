"""From a pipeline that a server has to what the operator would write for it: `rendered`."""

from __future__ import annotations

from typing import Any

from dynamo.engine_catalog import CATALOG
from dynamo.operator.api.body import read
from dynamo.operator.api.v1alpha1 import API_VERSION, KIND
from dynamo.operator.manifests.context import ClusterSettings, Manifest
from dynamo.operator.manifests.render import manifests, with_images
from dynamo.operator.plan.plan import Environment, plan

_WORKER = "registry.example.org/dynamo/worker:1.0.0"
IMAGES = {"default": _WORKER} | {engine: _WORKER for engine, traits in CATALOG.items() if traits.extra}
CLUSTER_SETTINGS = ClusterSettings(
    "registry.example.org/dynamo/frontend:1.0.0",
    IMAGES,
    etcd_sign_in=True,
    nats_sign_in=True,
)
PLAIN = ClusterSettings("registry.example.org/dynamo/frontend:1.0.0", IMAGES)
OPENSHIFT = ClusterSettings(PLAIN.frontend_image, PLAIN.worker_images, pull_secrets=("registry",), fs_group=None)


def pipeline(namespace: str, spec: dict[str, Any], name: str = "llama") -> Manifest:
    """As a user writes it."""
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def rendered(live: Manifest, cluster: ClusterSettings = CLUSTER_SETTINGS) -> list[Manifest]:
    """Out of the object as the server gives it back."""
    found, problems = read(live)
    assert found is not None, problems
    where = Environment(("http://etcd:2379",), "nats://nats:4222", kubernetes_namespace=live["metadata"]["namespace"])
    return manifests(found, with_images(plan(found, where), found, cluster), cluster)


def templates(found: list[Manifest]) -> list[Manifest]:
    """The pod templates among them."""
    return [m["spec"]["template"] for m in found if m["kind"] in ("Deployment", "StatefulSet")]
