"""Where a component's pods run and what they run: its typed fields in the pod, under the user's podTemplate. Pure.

Nothing here is trusted more than a podTemplate: `pod.pod_template` holds the whole of it to the platform's policy.
"""

from __future__ import annotations

from typing import Any, Final

from dynamo.engine_catalog import traits_of
from dynamo.operator.api.v1alpha1 import Component
from dynamo.operator.manifests.context import ClusterSettings, Manifest, MissingImageError
from dynamo.operator.plan.servers import has_sidecar

QUEUE: Final = "kueue.x-k8s.io/queue-name"
GANG: Final = "scheduling.volcano.sh/group-min-member"
_DEFAULT: Final = "default"
_NAMES: Final = ("nodeSelector", "affinity", "runtimeClassName", "priorityClassName", "schedulerName")


def worker_image(cluster: ClusterSettings, component: Component, path: str = "spec.components") -> str:
    """Return the image of a component's workers: its own, the platform's for the engine, or that of its podTemplate.

    The default image holds the engines that need no package. Any other engine would only crash in it.
    """
    engine = component.engine
    image = None if has_sidecar(component) else component.image
    image = image or cluster.worker_images.get(engine)
    if not image and not traits_of(engine).extra:
        image = cluster.worker_images.get(_DEFAULT)
    image = image or _of_template(component)
    if not image:
        raise MissingImageError(
            path,
            f"no image is configured for engine {engine}: set pipelines.images.workers.{engine} in the "
            "dynamo-platform chart, or image in the component",
        )
    return image


def _of_template(component: Component) -> str | None:
    """Return the image that a podTemplate gives the worker; malformed templates are refused where they are merged."""
    spec = (component.pod_template or {}).get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, dict) and container.get("name") == "worker":
            image = container.get("image")
            return image if isinstance(image, str) else None
    return None


def pod_fields(component: Component, selector: Manifest) -> Manifest:
    """Return the fields of the pod's spec; `selector` finds the component's pods."""
    given = component.model_dump(mode="json", by_alias=True, exclude_none=True, include=_INCLUDED)
    spec: Manifest = {name: given[name] for name in _NAMES if name in given}
    if component.tolerations:
        # Spelled out, as the defaults of a list in a CRD are not filled in.
        spec["tolerations"] = [_toleration(t) for t in given["tolerations"]]
    if component.topology_spread_constraints is not None:
        own = {"labelSelector": {"matchLabels": selector}}
        spec["topologySpreadConstraints"] = [own | t for t in given["topologySpreadConstraints"]]
    if component.resource_claims:
        spec["resourceClaims"] = [{k: v for k, v in c.items() if k != "request"} for c in given["resourceClaims"]]
    return spec


_INCLUDED: Final = {
    "node_selector", "affinity", "runtime_class_name", "priority_class_name", "scheduler_name", "tolerations",
    "topology_spread_constraints", "resource_claims",
}  # fmt: skip


def _toleration(given: dict[str, Any]) -> Manifest:
    return {k: v for k, v in given.items() if (k, v) != ("operator", "Equal")}


def container_claims(component: Component) -> list[Manifest]:
    """Return the claims that the worker's container gets, whole or one request of each."""
    return [
        {"name": claim.name, **({"request": claim.request} if claim.request else {})}
        for claim in component.resource_claims or ()
    ]


def queue_labels(component: Component) -> dict[str, str]:
    """Return the labels by which Kueue admits sets and their pods."""
    return {QUEUE: component.queue_name} if component.queue_name else {}


def gang_annotations(component: Component) -> dict[str, str]:
    """Return the annotations by which Volcano starts a worker's pods together."""
    return {GANG: str(component.nodes)} if component.gang_scheduling else {}
