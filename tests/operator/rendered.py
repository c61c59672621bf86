"""Manifests of a pipeline for the tests: `render`, and ways to look at what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.operator.pipelines import Spec, pipeline

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.plan import Environment, plan
from dynamo.operator.resources.render import manifests, with_images
from dynamo.operator.resources.site import Manifest, Site

CLUSTER = Environment(("http://etcd:2379",), "nats://nats:4222", kubernetes_namespace="serving", grace_seconds=600)
SITE = Site("dynamo/frontend:1", {"default": "dynamo/worker:1", "vllm": "dynamo/worker-vllm:1"})
SECURED = Site(
    "dynamo/frontend:1",
    {"default": "dynamo/worker:1"},
    pull_secrets=("registry",),
    fs_group=None,
    network_policies=False,
    etcd_sign_in=True,
    nats_sign_in=True,
)


def render(found: DynamoPipeline, site: Site = SITE, replicas: dict[str, int] | None = None) -> list[Manifest]:
    return manifests(found, with_images(plan(found, CLUSTER), found, site), site, replicas)


def of_kind(found: list[Manifest], kind: str, name: str = "") -> Manifest:
    return next(m for m in found if m["kind"] == kind and m["metadata"]["name"].startswith(name))


def pod_templates(found: list[Manifest]) -> Iterator[Manifest]:
    return (m["spec"]["template"] for m in found if m["kind"] in ("Deployment", "StatefulSet"))


def main_container(manifest: Manifest) -> Manifest:
    container: Manifest = manifest["spec"]["template"]["spec"]["containers"][0]
    return container


def env_of(container: Manifest) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container["env"]}


def worker(spec: Spec | None = None, site: Site = SITE, **component: Any) -> Manifest:
    found = pipeline({**(spec or {}), "components": [{"engine": "mocker", **component}]})
    return main_container(of_kind(render(found, site), "StatefulSet"))
