"""Manifests of a pipeline for the tests: `render`, and ways to look at what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.operator.pipelines import Spec, pipeline

from dynamo.engine_catalog import CATALOG
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.manifests.context import ClusterSettings, Manifest
from dynamo.operator.manifests.render import manifests, with_images
from dynamo.operator.plan.plan import Environment, plan

CLUSTER = Environment(("http://etcd:2379",), "nats://nats:4222", kubernetes_namespace="serving", grace_seconds=600)
IMAGES = {"default": "dynamo/worker:1"} | {e: f"dynamo/worker-{e}:1" for e, t in CATALOG.items() if t.extra}
CLUSTER_SETTINGS = ClusterSettings("dynamo/frontend:1", IMAGES)
SECURED = ClusterSettings(
    "dynamo/frontend:1",
    IMAGES,
    pull_secrets=("registry",),
    fs_group=None,
    network_policies=False,
    etcd_sign_in=True,
    nats_sign_in=True,
)


def render(
    pipeline: DynamoPipeline, cluster: ClusterSettings = CLUSTER_SETTINGS, replicas: dict[str, int] | None = None
) -> list[Manifest]:
    return manifests(pipeline, with_images(plan(pipeline, CLUSTER), pipeline, cluster), cluster, replicas)


def of_kind(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    return next(m for m in manifests if m["kind"] == kind and m["metadata"]["name"].startswith(name))


def pod_templates(manifests: list[Manifest]) -> Iterator[Manifest]:
    return (m["spec"]["template"] for m in manifests if m["kind"] in ("Deployment", "StatefulSet"))


def main_container(manifest: Manifest) -> Manifest:
    container: Manifest = manifest["spec"]["template"]["spec"]["containers"][0]
    return container


def env_of(container: Manifest) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container["env"]}


def worker(spec: Spec | None = None, cluster: ClusterSettings = CLUSTER_SETTINGS, **component: Any) -> Manifest:
    example = pipeline({**(spec or {}), "components": [{"engine": "mocker", **component}]})
    return main_container(of_kind(render(example, cluster), "StatefulSet"))
