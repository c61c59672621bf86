"""What the builders must know of the cluster they build for, as the chart and the reconciler tell them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dynamo.operator.api.v1alpha1 import Component, DynamoPipeline
from dynamo.operator.workload import Plan, Workload

Manifest = dict[str, Any]


class RenderError(Exception):
    """A pipeline that can't become manifests: `path` names the field, the message the remedy."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path, self.message = path, message


@dataclass(frozen=True)
class Site:
    """One cluster and the installation in it."""

    frontend_image: str
    worker_images: Mapping[str, str]
    """By engine; `default` for the engines without an entry."""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    fs_group: int | None = 1000
    """Group of mounted volumes; None where the platform assigns one (OpenShift)."""
    network_policies: bool = True
    etcd_sign_in: bool = False
    """Pipelines get credentials for the platform's etcd in a Secret of their own."""
    nats_sign_in: bool = False

    def worker_image(self, engine: str) -> str:
        """The image that runs an engine."""
        image = self.worker_images.get(engine) or self.worker_images.get("default")
        if not image:
            raise RenderError("spec.components", f"no image is configured for engine {engine}: add it to the chart")
        return image


@dataclass(frozen=True)
class Scene:
    """Everything that the builders read."""

    pipeline: DynamoPipeline
    plan: Plan
    site: Site
    uid: str = field(default="")

    @classmethod
    def of(cls, pipeline: DynamoPipeline, plan: Plan, site: Site) -> Scene:
        """With the owner's uid out of the object's metadata; refused without, since nothing would clean up."""
        uid = (pipeline.metadata.model_extra or {}).get("uid")
        if not isinstance(uid, str) or not uid:
            raise RenderError("metadata.uid", "is missing: only an object that the API server has can own others")
        return cls(pipeline, plan, site, uid)

    @property
    def kubernetes_namespace(self) -> str:
        """Where everything goes: beside the pipeline."""
        return self.pipeline.metadata.namespace or "default"

    def component(self, workload: Workload) -> Component:
        """The spec of a worker's component."""
        return next(c for c in self.pipeline.spec.components if c.name == workload.component)

    def with_plan(self, plan: Plan) -> Scene:
        """The same scene with another plan."""
        return replace(self, plan=plan)
