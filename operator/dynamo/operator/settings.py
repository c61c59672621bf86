"""Settings that the chart writes, in one YAML file: `Settings.of(text, environment)`. Pure; `main` reads the file.

The file's form is the chart's (`templates/_config.tpl`); where the process itself runs, the
downward API says in variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError
from pydantic.alias_generators import to_camel

from dynamo.operator.api.bounds import PODS
from dynamo.operator.intervals import Intervals
from dynamo.operator.kube.leader_election import Installation
from dynamo.operator.manifests import nats
from dynamo.operator.manifests.context import DENIED_ANNOTATIONS, ClusterSettings, PodTemplatePolicy, Tracing
from dynamo.operator.manifests.nats import NatsServer
from dynamo.operator.plan.plan import GRACE_SECONDS, Environment


class SettingsError(Exception):
    """A setting that is missing or unusable; the message names it."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class _Images(_Part):
    frontend: str
    workers: dict[str, str]
    pull_policy: str = "IfNotPresent"
    pull_secrets: list[str | dict[str, str]] = []


class _Pods(_Part):
    fs_group: int | None = 1000
    network_policies: bool = True
    graceful_shutdown_timeout_seconds: int = GRACE_SECONDS
    max_pods: PositiveInt = PODS
    pod_template_policy: PodTemplatePolicy = PodTemplatePolicy.BASELINE
    service_accounts: list[str] = []
    http_routes: bool = True
    denied_ingress_annotations: list[str] = list(DENIED_ANNOTATIONS)
    metrics_from: list[str] = []
    restrict_egress: bool = False
    egress_ports: list[int] = []


class SignIn(_Part):
    """Authentication of the platform's etcd or NATS; Secrets are in the operator's own namespace."""

    secret: str = ""
    """With what users are made; empty: nobody signs in."""
    make_secret: bool = False
    """Make it where it is missing."""
    tls_secret: str = ""
    """`ca.crt`; and, where the server isn't our own, a client's `tls.crt` and `tls.key`."""
    own_server: bool = False
    """The chart installed the server, so that it is ours to set up."""

    def __bool__(self) -> bool:
        return bool(self.secret or self.tls_secret)

    def sign_in(self) -> SignIn:
        """Return this part of it alone."""
        return SignIn.model_validate(self.model_dump(include=set(SignIn.model_fields)))


class _Peers(_Part):
    secret: str
    hosts: list[str]


class _Etcd(SignIn):
    endpoints: list[str]
    peers: _Peers | None = None
    """Where the chart installs several members: what they show each other, and their host names."""


class _NatsServer(_Part):
    """NATS of each namespace that has pipelines: what the chart would install once."""

    config: str
    template: dict[str, Any]
    tls_secret: str = ""
    network_policy: bool = True
    replicas: PositiveInt = 1


class _Nats(SignIn):
    url: str
    per_namespace: _NatsServer | None = None

    @property
    def urls(self) -> list[str]:
        """Return the URLs; any namespace's stands for all."""
        return self.url.split(",") if self.per_namespace is None else [f"nats://{nats.NAME}:{nats.PORT}"]


class _Election(_Part):
    enabled: bool = True
    lease: str = "dynamo-operator"


class _Tracing(_Part):
    endpoint: str = ""
    protocol: Literal["grpc", "http/protobuf"] = "grpc"
    ratio: float = Field(default=1.0, ge=0, le=1)


class _Intervals(_Part):
    """Intervals that the chart leaves as they are; tests don't wait for minutes."""

    sweep_seconds: PositiveFloat = Intervals.sweep
    resync_seconds: PositiveFloat = Intervals.resync
    takeover_seconds: PositiveFloat = Intervals.takeover


class _FrontendProbing(_Part):
    enabled: bool = False


class _File(_Part):
    images: _Images
    etcd: _Etcd
    nats: _Nats
    namespaces: list[str] = []
    frontend_probing: _FrontendProbing = _FrontendProbing()
    pods: _Pods = _Pods()
    share_dynamo_namespaces: bool = False
    leader_election: _Election = _Election()
    tracing: _Tracing = _Tracing()
    intervals: _Intervals = _Intervals()


@dataclass(frozen=True)
class EtcdPeers:
    """Several etcd members of the chart's."""

    secret: str
    """With the certificate that they share; in the operator's own namespace."""
    hosts: tuple[str, ...]
    """DNS names of the members."""


@dataclass(frozen=True)
class Settings:
    """Settings of the operator and of what it gives to pipelines."""

    etcd: tuple[str, ...]
    nats: str
    cluster: ClusterSettings
    namespaces: tuple[str, ...] = ()
    """Those that are watched; all when empty."""
    grace_seconds: int = GRACE_SECONDS
    own_namespace: str = "default"
    identity: str = "dynamo-operator"
    lease: str | None = "dynamo-operator"
    """None: a single replica that asks nobody."""
    name: str = "dynamo-operator"
    """Of the installation in its namespace; the lease's, held or not."""
    etcd_sign_in: SignIn = field(default_factory=SignIn)
    nats_sign_in: SignIn = field(default_factory=SignIn)
    etcd_peers: EtcdPeers | None = None
    """Where our own etcd has several members."""
    nats_server: NatsServer | None = None
    """Each namespace with pipelines gets its own, like this; `nats` is unused then."""
    intervals: Intervals = field(default_factory=Intervals)
    max_pods: int = PODS
    """Of one pipeline."""
    frontend_probing: bool = False
    """Ask frontends which workers they can reach; needs a network in which pods' addresses can be."""
    share_namespaces: bool = False
    """Pipelines may name any Dynamo namespace, those of other Kubernetes namespaces too."""

    @property
    def installation(self) -> Installation:
        """Return what distinguishes it from others in the same cluster."""
        return Installation(self.own_namespace, self.name, elects=self.lease is not None)

    @property
    def platform(self) -> str:
        """Return what distinguishes this installation from others on the same etcd."""
        return f"{self.own_namespace}.{self.lease or 'dynamo-operator'}"

    def environment(self, kubernetes_namespace: str) -> Environment:
        """Return the environment for the plan of a pipeline."""
        url = self.nats_server.url(kubernetes_namespace) if self.nats_server else self.nats
        return Environment(self.etcd, url, kubernetes_namespace=kubernetes_namespace, grace_seconds=self.grace_seconds)

    @classmethod
    def of(cls, text: str, environment: Mapping[str, str]) -> Settings:
        """Read the settings from the chart's file; raises `SettingsError`."""
        file = _parsed(text)
        return cls(
            etcd=tuple(file.etcd.endpoints),
            nats=file.nats.url,
            cluster=_cluster_settings(file, environment.get("POD_NAMESPACE") or "default"),
            namespaces=tuple(file.namespaces),
            grace_seconds=file.pods.graceful_shutdown_timeout_seconds,
            own_namespace=environment.get("POD_NAMESPACE") or "default",
            identity=environment.get("POD_NAME") or "dynamo-operator",
            lease=file.leader_election.lease if file.leader_election.enabled else None,
            name=file.leader_election.lease,
            etcd_sign_in=file.etcd.sign_in(),
            nats_sign_in=file.nats.sign_in(),
            etcd_peers=EtcdPeers(file.etcd.peers.secret, tuple(file.etcd.peers.hosts)) if file.etcd.peers else None,
            nats_server=NatsServer(**dict(file.nats.per_namespace)) if file.nats.per_namespace else None,
            intervals=_intervals(file.intervals),
            frontend_probing=file.frontend_probing.enabled,
            share_namespaces=file.share_dynamo_namespaces,
            max_pods=file.pods.max_pods,
        )


def _tracing(file: _Tracing) -> Tracing:
    return Tracing(file.endpoint, file.protocol, file.ratio)


def _intervals(file: _Intervals) -> Intervals:
    return Intervals(file.sweep_seconds, file.resync_seconds, file.takeover_seconds)


def _cluster_settings(file: _File, own_namespace: str) -> ClusterSettings:
    names = [s if isinstance(s, str) else s.get("name", "") for s in file.images.pull_secrets]
    pods = file.pods
    return ClusterSettings(
        frontend_image=file.images.frontend,
        worker_images=file.images.workers,
        pull_policy=file.images.pull_policy,
        pull_secrets=tuple(name for name in names if name),
        fs_group=file.pods.fs_group,
        network_policies=file.pods.network_policies,
        etcd_sign_in=bool(file.etcd),
        nats_sign_in=bool(file.nats) or file.nats.per_namespace is not None,
        pod_template_policy=pods.pod_template_policy,
        service_accounts=tuple(pods.service_accounts),
        http_routes=pods.http_routes,
        denied_annotations=tuple(pods.denied_ingress_annotations),
        # The operator asks frontends on the same port.
        metrics_from=(*pods.metrics_from, own_namespace) if pods.metrics_from else (),
        egress_ports=tuple(pods.egress_ports) if pods.restrict_egress else None,
        connections=(*file.etcd.endpoints, *file.nats.urls, *filter(None, [file.tracing.endpoint])),
        tracing=_tracing(file.tracing) if file.tracing.endpoint else None,
    )


def _parsed(text: str) -> _File:
    try:
        data: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"the operator's configuration is no YAML: {error}") from None
    try:
        return _File.model_validate(data if data is not None else {})
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"])) or "the file"
        raise SettingsError(f"the operator's configuration: {path}: {first['msg']}") from None
