"""What a pipeline's Secret holds: `data_of(material, place, live)`. Pure; chance and time are arguments.

What the live Secret holds is kept as long as it still does, judged by what is public of it: the
claims of the NATS user, the name of the etcd user. So at rest nothing is written, and whoever
deletes the Secret gets new credentials.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dynamo.operator.credentials import etcd_users, nats_keys, permissions
from dynamo.operator.credentials.etcd_auth import EtcdAdmin
from dynamo.operator.credentials.etcd_users import Owner
from dynamo.operator.credentials.nats_keys import Draw, NatsIssuer
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import Manifest, RenderContext
from dynamo.operator.manifests.pod import given, secret_key
from dynamo.operator.manifests.render import digest

_USER: Final = secret_key("etcd", "username")
_PASSWORD: Final = secret_key("etcd", "password")
_CREDENTIALS: Final = secret_key("nats", "user.creds")

Data = dict[str, bytes]


@dataclass(frozen=True)
class Material:
    """Contents of the platform's Secrets; `etcd_files` and `nats_files` go to every pipeline as they are, by file."""

    etcd_admin: EtcdAdmin | None = None
    nats_issuer: NatsIssuer | None = None
    etcd_files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    nats_files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


class PipelineIdentity(NamedTuple):
    """A pipeline as credentials see it: installation, owner, Dynamo namespace, and the servers that it signs in to."""

    platform: str
    owner: Owner
    dynamo_namespace: str
    servers: frozenset[str]

    @classmethod
    def of(cls, platform: str, context: RenderContext) -> PipelineIdentity:
        owner = Owner(context.kubernetes_namespace, context.pipeline.name)
        return cls(platform, owner, context.plan.namespace, given(context.pipeline, context.cluster))


class EtcdUser(NamedTuple):
    """A user as it has to be in etcd."""

    name: str
    password: str
    ranges: tuple[permissions.Keys, ...]


def data_of(material: Material, identity: PipelineIdentity, live: Mapping[str, bytes], draw: Draw, now: int) -> Data:
    """Return the Secret's data; what still holds of `live` is kept."""
    data: Data = {}
    if "etcd" in identity.servers:
        data |= {secret_key("etcd", file): content for file, content in material.etcd_files.items()}
        data |= _etcd_login(identity, live, draw) if material.etcd_admin else {}
    if "nats" in identity.servers:
        data |= {secret_key("nats", file): content for file, content in material.nats_files.items()}
        data |= (
            _nats_login(material.nats_issuer, identity=identity, live=live, draw=draw, now=now)
            if material.nats_issuer
            else {}
        )
    return data


def etcd_user(data: Mapping[str, bytes], identity: PipelineIdentity) -> EtcdUser | None:
    """Return the etcd user of this data, if we made it for this pipeline."""
    name, password = (data.get(key, b"").decode("utf-8", "replace") for key in (_USER, _PASSWORD))
    ranges = permissions.keys(identity.dynamo_namespace)
    if not password or name != etcd_users.user_name(identity.platform, identity.owner, password, ranges):
        return None
    return EtcdUser(name, password, ranges)


def manifest(context: RenderContext, data: Mapping[str, bytes]) -> Manifest:
    """Return the Secret; its digest is of the keys alone, so that a dropped key is noticed and nothing secret shows."""
    name = context.pipeline.name
    labels, intent = naming.pipeline_labels(name), {naming.INTENT: digest(sorted(data))[:16]}
    head = naming.child(
        context, api_version="v1", kind="Secret", name=naming.credentials_name(name), labels=labels, annotations=intent
    )
    texts = {key: base64.b64encode(value).decode() for key, value in sorted(data.items())}
    return {**head, "type": "Opaque", "data": texts}


def data_in(secret: Mapping[str, Any]) -> Data:
    """Return the data of a live Secret; what is no base64 counts as missing."""
    data: Data = {}
    for key, text in (secret.get("data") or {}).items():
        try:
            data[key] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError, TypeError):
            continue
    return data


def _etcd_login(identity: PipelineIdentity, live: Mapping[str, bytes], draw: Draw) -> Data:
    if etcd_user(live, identity) is not None:
        return {key: live[key] for key in (_USER, _PASSWORD)}
    password = base64.urlsafe_b64encode(draw()).decode().rstrip("=")
    name = etcd_users.user_name(
        identity.platform, identity.owner, password, permissions.keys(identity.dynamo_namespace)
    )
    return {_USER: name.encode(), _PASSWORD: password.encode()}


def _nats_login(
    issuer: NatsIssuer, identity: PipelineIdentity, live: Mapping[str, bytes], draw: Draw, now: int
) -> Data:
    subjects, before = permissions.subjects(identity.dynamo_namespace), live.get(_CREDENTIALS, b"")
    if nats_keys.is_user_of(before, issuer, subjects):
        return {_CREDENTIALS: before}
    name = f"{identity.owner.namespace}/{identity.owner.name}"
    return {_CREDENTIALS: nats_keys.new_user(issuer, name=name, subjects=subjects, draw=draw, now=now)}
