"""The kinds that the reconciler reads and writes, and their addresses on the API server. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from dynamo.operator.api.v1alpha1 import API_VERSION, KIND


@dataclass(frozen=True)
class Resource:
    """A kind of object, and what it is called in a URL."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        """Return the API group; empty for the core kinds."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of the collection (everywhere or in a namespace), of an object, or of a part of it."""
        parts = ["/apis" if self.group else "/api", self.api_version]
        parts += ["namespaces", namespace] if namespace else []
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


PIPELINES: Final = Resource(API_VERSION, KIND, "dynamopipelines")
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")
EVENTS: Final = Resource("v1", "Event", "events")
PODS: Final = Resource("v1", "Pod", "pods")
CHILDREN: Final = (
    Resource("v1", "ServiceAccount", "serviceaccounts"),
    Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    Resource("v1", "ConfigMap", "configmaps"),
    Resource("v1", "Service", "services"),
    Resource("networking.k8s.io/v1", "Ingress", "ingresses"),
    Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Resource("apps/v1", "StatefulSet", "statefulsets"),
    Resource("apps/v1", "Deployment", "deployments"),
)
"""What `render.manifests` makes in every cluster; what is listed, watched and pruned."""
ROUTES: Final = Resource("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
"""Made, listed and pruned where the cluster has the Gateway API; not watched, since its CRD may go at any time."""

SECRETS: Final = Resource("v1", "Secret", "secrets")
"""One per pipeline where the platform asks for sign-in; read by name, since there is no right to list them."""


def resource_of(kind: str) -> Resource:
    """Return the child kind of this name."""
    return next(r for r in (*CHILDREN, ROUTES, SECRETS) if r.kind == kind)


class Key(NamedTuple):
    """A pipeline's name in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
