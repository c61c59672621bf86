"""Fields of a component that say where and when its pods run: images, nodes, devices, queues.

They are spelled as in core/v1 PodSpec, since users know them from there. None of them reaches beyond the pod: what
they become is laid under the user's podTemplate and held to the same policy. All of them default to None, so that a
pipeline without them keeps its revision.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from dynamo.operator.api.fields import Fields

LabelKey = Annotated[
    str,
    StringConstraints(
        max_length=317, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
    ),
]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]
DnsLabel = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
DnsName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
]
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""A name that becomes a label's value."""
Image = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/:@]*$")]
"""Whether a registry has it, only the pull shows."""


class Toleration(Fields):
    """A taint that does not keep the pods off a node."""

    key: LabelKey | None = Field(default=None, description="Key of the taint; left out, with operator Exists: any.")
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="How value is compared.")
    value: LabelValue | None = Field(default=None, description="Value of the taint, with operator Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; any if left out."
    )
    toleration_seconds: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="Seconds that a pod stays, with effect NoExecute; for ever if "
        "left out."
    )  # fmt: skip


class ResourceClaim(Fields):
    """Devices by dynamic resource allocation (resource.k8s.io/v1, Kubernetes 1.34)."""

    name: DnsLabel = Field(description="Name of the claim within the pod.")
    resource_claim_name: DnsName | None = Field(
        default=None, description="ResourceClaim in the pipeline's namespace, which all pods share."
    )
    resource_claim_template_name: DnsName | None = Field(
        default=None, description="ResourceClaimTemplate in the pipeline's namespace: a claim for each pod."
    )
    request: DnsLabel | None = Field(
        default=None, description="Request within the claim that the worker gets; all if left out."
    )


class Placement(Fields):
    """Where and when pods run."""

    image: Image | None = Field(
        default=None,
        description="Image of the workers; default: the platform's for the engine. With engine openai the image of the "
        "server beside each worker, for example vllm/vllm-openai.",
    )
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=32)] | None = Field(
        default=None, description="Labels that a node must have."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] | None = Field(
        default=None, description="Taints of nodes that don't keep the pods off."
    )
    affinity: dict[str, Any] | None = Field(default=None, max_length=3, description="As core/v1 Affinity.")
    topology_spread_constraints: Annotated[tuple[dict[str, Any], ...], Field(max_length=8)] | None = Field(
        default=None,
        description="As core/v1 TopologySpreadConstraint, in the place of an even spread over nodes; without a "
        "labelSelector it counts the component's pods.",
    )
    runtime_class_name: DnsName | None = Field(
        default=None, description="RuntimeClass of the pods, for example nvidia."
    )
    priority_class_name: DnsName | None = Field(default=None, description="PriorityClass of the pods.")
    scheduler_name: DnsName | None = Field(
        default=None, description="Scheduler of the pods, for example volcano; the cluster's own if left out."
    )
    queue_name: LabelName | None = Field(
        default=None, description="Kueue's LocalQueue: the label kueue.x-k8s.io/queue-name of sets and pods."
    )
    gang_scheduling: bool | None = Field(
        default=None,
        description="Ask Volcano to start the pods of a worker together (scheduling.volcano.sh/group-min-member is "
        "nodes). With a queueName, Kueue does so by itself.",
    )
    resource_claims: Annotated[tuple[ResourceClaim, ...], Field(max_length=16)] | None = Field(
        default=None,
        description="Devices by dynamic resource allocation; with them no device is asked of a device plugin unless "
        "accelerator is set.",
    )
    startup_timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=86400,
        description="Seconds until a worker's process must answer, default 600: large images import for minutes. "
        "Loading the model comes after that and has no limit.",
    )


FIELDS = frozenset(Placement.model_fields)
"""Names of the fields, for what compares pods."""
