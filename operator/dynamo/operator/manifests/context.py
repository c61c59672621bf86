"""What the builders read: `ClusterSettings` from the chart, `RenderContext` from the reconciler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from dynamo.operator.api.shown import shown_message, shown_path
from dynamo.operator.api.v1alpha1 import Component, DynamoPipeline
from dynamo.operator.plan.workload import Plan, Workload

Manifest = dict[str, Any]


DENIED_ANNOTATIONS: Final = ("*-snippet", "*/snippet", "*-snippets", "*/auth-tls-secret", "*/proxy-ssl-secret")
"""They put text into a proxy that many share, or have it read Secrets of other namespaces."""


class PodTemplatePolicy(StrEnum):
    """Levels of what a pod template may not ask for."""

    UNRESTRICTED = "unrestricted"
    BASELINE = "baseline"
    RESTRICTED = "restricted"


class RenderError(Exception):
    """A pipeline that can't become manifests: `path` names the field, the message the remedy."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(shown_message(f"{shown_path(path)}: {message}"))
        self.path, self.message = path, message


class MissingImageError(RenderError):
    """A pipeline with an engine that the platform has no image for."""


@dataclass(frozen=True)
class Tracing:
    """Where pipelines' processes send traces."""

    endpoint: str
    """URL of an OTLP receiver."""
    protocol: str
    ratio: float
    """Share of requests that are traced; a client's traceparent decides for its own."""

    def environment(self, namespace: str, pipeline: str) -> dict[str, str]:
        """Return the variables that OpenTelemetry and `dynamo.runtime` read; spans bear the pipeline's name."""
        return {
            "OTEL_EXPORT_ENABLED": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": self.protocol,
            "OTEL_RESOURCE_ATTRIBUTES": f"k8s.namespace.name={namespace},dynamo.pipeline={pipeline}",
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": f"{self.ratio:g}",
        }


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of a cluster and of the installation in it."""

    frontend_image: str
    worker_images: Mapping[str, str]
    """By engine; `default` for the engines without an entry that need no package: `placement.worker_image`."""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    fs_group: int | None = 1000
    """Group of mounted volumes; None where the platform assigns one (OpenShift)."""
    network_policies: bool = True
    etcd_sign_in: bool = False
    """Pipelines get credentials for the platform's etcd in a Secret of their own."""
    nats_sign_in: bool = False
    pod_template_policy: PodTemplatePolicy = PodTemplatePolicy.BASELINE
    service_accounts: tuple[str, ...] = ()
    """That a podTemplate may name beside the pipeline's own."""
    http_routes: bool = True
    """Whether pipelines may ask for one: host names on a Gateway that many share."""
    denied_annotations: tuple[str, ...] = DENIED_ANNOTATIONS
    """Patterns of keys that no Ingress of a pipeline may have."""
    metrics_from: tuple[str, ...] = ()
    """Namespaces that may read metrics; all where none is named."""
    egress_ports: tuple[int, ...] | None = None
    """What pods may reach beside DNS, etcd, NATS and each other; None: anything."""
    connections: tuple[str, ...] = ()
    """URLs of what every pipeline's pods must reach: the platform's etcd and NATS, and who takes traces."""
    tracing: Tracing | None = None
    """None: nothing is traced."""


@dataclass(frozen=True)
class RenderContext:
    """Everything that the builders of manifests read."""

    pipeline: DynamoPipeline
    plan: Plan
    cluster: ClusterSettings
    uid: str = field(default="")

    @classmethod
    def of(cls, pipeline: DynamoPipeline, plan: Plan, cluster: ClusterSettings) -> RenderContext:
        """Return the context with the owner's uid; refused without, since nothing would clean up."""
        uid = (pipeline.metadata.model_extra or {}).get("uid")
        if not isinstance(uid, str) or not uid:
            raise RenderError("metadata.uid", "is missing: only an object that the API server has can own others")
        return cls(pipeline, plan, cluster, uid)

    @property
    def kubernetes_namespace(self) -> str:
        """Return the namespace of all manifests: the pipeline's."""
        return self.pipeline.metadata.namespace or "default"

    def component(self, workload: Workload) -> Component:
        """Return the spec of a worker's component."""
        return next(c for c in self.pipeline.spec.components if c.name == workload.component)
