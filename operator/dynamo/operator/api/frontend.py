"""The frontend's part of `DynamoPipeline`: routing, the ways in, the pods."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from dynamo.operator.api.fields import Annotations, Fields, HostName, ObjectName, ResourceSpec


class RouterMode(StrEnum):
    """Ways in which a frontend picks a worker."""

    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    KV = "kv"
    LEAST_LOADED = "least-loaded"
    POWER_OF_TWO = "power-of-two"


class RouterSpec(Fields):
    """How requests find their worker."""

    mode: RouterMode = Field(default=RouterMode.ROUND_ROBIN, description="How a frontend picks a worker.")
    prefill_load_scale: float = Field(
        default=2.0,
        ge=0,
        description="Mode kv: how strongly workers that cache the prompt are preferred over less loaded ones; "
        "0 ignores caches.",
    )
    temperature: float = Field(
        default=0.0, ge=0, description="Mode kv: softmax temperature of the choice; 0 always takes the cheapest worker."
    )
    use_kv_events: bool = Field(
        default=True,
        description="Mode kv: learn what workers cache from their events; false predicts it from routed requests.",
    )
    busy_threshold: float | None = Field(
        default=None, ge=0, le=1, description="Share of used KV blocks from which a worker gets no new requests."
    )


class ServiceSpec(Fields):
    """The Kubernetes Service in front of the frontends."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="Type of the Service."
    )
    annotations: Annotations = Field(default={}, description="Annotations of the Service.")


OPENAI = "/v1"
Path = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^/[-._~/a-zA-Z0-9]*$")]
Paths = tuple[Path, ...]


class IngressSpec(Fields):
    """An Ingress in front of the Service."""

    host: HostName | None = Field(
        default=None, description="Host name that clients use; left out, every host that reaches the controller."
    )
    class_name: ObjectName | None = Field(
        default=None, description="IngressClass of the controller; the cluster's default if left out."
    )
    tls_secret: ObjectName | None = Field(
        default=None, description="Secret in the pipeline's namespace with tls.crt and tls.key; left out: plain HTTP."
    )
    paths: Paths = Field(
        default=(OPENAI,),
        min_length=1,
        max_length=16,
        description="Path prefixes that are let in; / for all, metrics and health of the pipeline included.",
    )
    annotations: Annotations = Field(
        default={}, description="Annotations of the Ingress, for example the controller's time limit for streams."
    )


class GatewayRef(Fields):
    """A Gateway of the Gateway API."""

    name: ObjectName = Field(description="Name of the Gateway.")
    namespace: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = Field(
        default=None, description="Its namespace; the pipeline's if left out."
    )
    section_name: ObjectName | None = Field(default=None, description="Name of its listener; all of them if left out.")


Duration = Annotated[str, StringConstraints(max_length=32, pattern=r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")]


class HttpRouteSpec(Fields):
    """An HTTPRoute from a Gateway to the Service."""

    gateway: GatewayRef = Field(description="The Gateway that takes the requests.")
    hostnames: tuple[HostName, ...] = Field(
        default=(), max_length=16, description="Host names that clients use; the listener's if left out."
    )
    https: bool = Field(
        default=False, description="Whether the listener speaks TLS, so that status.url begins with https."
    )
    request_timeout: (
        Annotated[str, StringConstraints(max_length=32, pattern=r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")] | None
    ) = Field(
        default=None,
        description="How long a request may take, as the Gateway API writes it (10m); 0s for any time; "
        "the gateway's own limit if left out.",
    )
    paths: Paths = Field(
        default=(OPENAI,),
        min_length=1,
        max_length=16,
        description="Path prefixes that are let in; / for all, metrics and health of the pipeline included.",
    )
    annotations: Annotations = Field(default={}, description="Annotations of the HTTPRoute.")


class ApiKeys(Fields):
    """Keys without which no request is answered."""

    secret: ObjectName = Field(description="Name of the Secret in the pipeline's namespace.")
    key: str = Field(
        default="keys",
        min_length=1,
        max_length=253,
        pattern=r"^[-._a-zA-Z0-9]+$",
        description="Key in the Secret: a file with a key on each line (`KEY`, or `KEY tenant=NAME`), which is read "
        "again when it changes.",
    )


class FrontendSpec(Fields):
    """The OpenAI-compatible HTTP servers."""

    replicas: int = Field(default=1, ge=0, le=100, description="Number of frontend pods.")
    port: int = Field(default=8000, ge=1, le=65535, description="HTTP port.")
    workers: int = Field(default=1, ge=1, le=256, description="Processes per frontend, which share the port.")
    router: RouterSpec = Field(default=RouterSpec(), description="How requests find their worker.")
    migration_limit: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Times a request may move to another worker after its worker fails; 0 disables migration.",
    )
    worker_wait_timeout_seconds: float = Field(
        default=0,
        ge=0,
        le=3600,
        description="Seconds that a request waits when its model has no worker; 0 rejects it with 503.",
    )
    console: bool = Field(
        default=True, description="Whether frontends have the console, a page for browsers at /; false turns it off."
    )
    service: ServiceSpec = Field(default=ServiceSpec(), description="The Service in front of the frontends.")
    ingress: IngressSpec | None = Field(
        default=None, description="An Ingress that brings requests from outside the cluster to the Service."
    )
    http_route: HttpRouteSpec | None = Field(
        default=None, description="An HTTPRoute of the Gateway API instead of an Ingress."
    )
    api_keys: ApiKeys | None = Field(
        default=None, description="Keys that clients send as Authorization: Bearer; left out, everybody is answered."
    )
    resources: ResourceSpec | None = Field(default=None, description="Compute resources of the frontend container.")
    pod_template: dict[str, Any] | None = Field(
        default=None,
        max_length=4,
        description="Strategic-merge override of the pod template, as core/v1 PodTemplateSpec: metadata and spec.",
    )
