"""What the chart tells the operator, in one YAML file: `Settings.of(text, environment)`. Pure; `main` reads the file.

The file's form is the chart's (`templates/_config.tpl`); where the process itself runs, the
downward API says in variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, PositiveFloat, ValidationError
from pydantic.alias_generators import to_camel

from dynamo.operator.claims import Installation
from dynamo.operator.intervals import Intervals
from dynamo.operator.plan import GRACE_SECONDS, Environment
from dynamo.operator.resources.site import Site


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
    grace_seconds: int = GRACE_SECONDS


class SignIn(_Part):
    """How the platform's etcd or NATS knows who comes; Secrets are in the operator's own namespace."""

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
        """This part of it alone."""
        return SignIn.model_validate(self.model_dump(include=set(SignIn.model_fields)))


class _Etcd(SignIn):
    endpoints: list[str]


class _Nats(SignIn):
    url: str


class _Election(_Part):
    enabled: bool = True
    lease: str = "dynamo-operator"


class _Intervals(_Part):
    """The chart leaves them as they are; tests don't wait for minutes."""

    sweep_seconds: PositiveFloat = Intervals.sweep
    resync_seconds: PositiveFloat = Intervals.resync
    rival_seconds: PositiveFloat = Intervals.rival


class _File(_Part):
    images: _Images
    etcd: _Etcd
    nats: _Nats
    namespaces: list[str] = []
    ask_frontends: bool = False
    pods: _Pods = _Pods()
    leader_election: _Election = _Election()
    intervals: _Intervals = _Intervals()


@dataclass(frozen=True)
class Settings:
    """Where the operator runs and what it gives to pipelines."""

    etcd: tuple[str, ...]
    nats: str
    site: Site
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
    intervals: Intervals = field(default_factory=Intervals)
    ask_frontends: bool = False
    """Ask them whom they can reach; needs a network in which pods' addresses can be."""

    @property
    def installation(self) -> Installation:
        """What tells it from others in the same cluster."""
        return Installation(self.own_namespace, self.name, elects=self.lease is not None)

    @property
    def platform(self) -> str:
        """What tells this installation from others on the same etcd."""
        return f"{self.own_namespace}.{self.lease or 'dynamo-operator'}"

    def environment(self, kubernetes_namespace: str) -> Environment:
        """For the plan of a pipeline."""
        return Environment(
            self.etcd, self.nats, kubernetes_namespace=kubernetes_namespace, grace_seconds=self.grace_seconds
        )

    @classmethod
    def of(cls, text: str, environment: Mapping[str, str]) -> Settings:
        """Raises `SettingsError`."""
        found = _parsed(text)
        return cls(
            etcd=tuple(found.etcd.endpoints),
            nats=found.nats.url,
            site=_site(found),
            namespaces=tuple(found.namespaces),
            grace_seconds=found.pods.grace_seconds,
            own_namespace=environment.get("POD_NAMESPACE") or "default",
            identity=environment.get("POD_NAME") or "dynamo-operator",
            lease=found.leader_election.lease if found.leader_election.enabled else None,
            name=found.leader_election.lease,
            etcd_sign_in=found.etcd.sign_in(),
            nats_sign_in=found.nats.sign_in(),
            intervals=_intervals(found.intervals),
            ask_frontends=found.ask_frontends,
        )


def _intervals(found: _Intervals) -> Intervals:
    return Intervals(found.sweep_seconds, found.resync_seconds, found.rival_seconds)


def _site(found: _File) -> Site:
    names = [s if isinstance(s, str) else s.get("name", "") for s in found.images.pull_secrets]
    return Site(
        frontend_image=found.images.frontend,
        worker_images=found.images.workers,
        pull_policy=found.images.pull_policy,
        pull_secrets=tuple(name for name in names if name),
        fs_group=found.pods.fs_group,
        network_policies=found.pods.network_policies,
        etcd_sign_in=bool(found.etcd),
        nats_sign_in=bool(found.nats),
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
