"""What the types of `DynamoPipeline` are built from, and texts with a form that several of them use."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]{1,2}))?$"
)
"""The API server takes larger exponents, too, and computes until its time is over."""
QUANTITY_CHARACTERS = 32
Quantity = int | Annotated[str, StringConstraints(max_length=QUANTITY_CHARACTERS, pattern=QUANTITY)]
"""A Kubernetes quantity: `4`, `500m`, `40Gi`."""

Share = (
    Annotated[int, Field(ge=0, le=1000)]
    | Annotated[str, StringConstraints(max_length=4, pattern=r"^(100|[0-9]{1,2})%$")]
)
"""A number of replicas, or a percentage of them (`25%`)."""

ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253)]

HostName = Annotated[
    str,
    StringConstraints(
        max_length=253,
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]
"""A DNS name; `*.` in front stands for any first label."""

Annotation = Annotated[str, StringConstraints(max_length=8192)]
Annotations = Annotated[dict[str, Annotation], Field(max_length=64)]


class Fields(BaseModel):
    """Base of all types: YAML's names are camelCase, nothing is unknown, nothing is converted."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )


class ResourceSpec(Fields):
    """Compute resources of a container."""

    requests: dict[str, Quantity] = Field(default={}, max_length=16, description="Minimum amounts by resource name.")
    limits: dict[str, Quantity] = Field(default={}, max_length=16, description="Maximum amounts by resource name.")
