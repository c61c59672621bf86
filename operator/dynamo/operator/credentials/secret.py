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

from dynamo.operator.credentials import etcd_users, nats_keys, rights
from dynamo.operator.credentials.etcd_auth import EtcdAdmin
from dynamo.operator.credentials.etcd_users import Owner
from dynamo.operator.credentials.nats_keys import Draw, NatsIssuer
from dynamo.operator.resources import naming
from dynamo.operator.resources.credentials import given, secret_key
from dynamo.operator.resources.render import digest
from dynamo.operator.resources.site import Manifest, Scene

_USER: Final = secret_key("etcd", "username")
_PASSWORD: Final = secret_key("etcd", "password")
_CREDENTIALS: Final = secret_key("nats", "user.creds")

Data = dict[str, bytes]


@dataclass(frozen=True)
class Material:
    """What the platform's Secrets hold; `etcd_files` and `nats_files` go to every pipeline as they are, by file."""

    etcd_admin: EtcdAdmin | None = None
    nats_issuer: NatsIssuer | None = None
    etcd_files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    nats_files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


class Place(NamedTuple):
    """For whom: the installation, the pipeline, its Dynamo namespace, and the servers that sign it in."""

    platform: str
    owner: Owner
    dynamo_namespace: str
    servers: frozenset[str]

    @classmethod
    def of(cls, platform: str, scene: Scene) -> Place:
        owner = Owner(scene.kubernetes_namespace, scene.pipeline.name)
        return cls(platform, owner, scene.plan.namespace, given(scene.pipeline, scene.site))


class EtcdUser(NamedTuple):
    """As it has to be in etcd."""

    name: str
    password: str
    ranges: tuple[rights.Keys, ...]


def limited(material: Material, place: Place) -> bool:
    """Whether rights are given out for a Dynamo namespace, so that it matters whose that is."""
    etcd = "etcd" in place.servers and material.etcd_admin is not None
    return etcd or ("nats" in place.servers and material.nats_issuer is not None)


def data_of(material: Material, place: Place, live: Mapping[str, bytes], draw: Draw, now: int) -> Data:
    """The Secret's data; of `live`, what still holds is kept."""
    found: Data = {}
    if "etcd" in place.servers:
        found |= {secret_key("etcd", file): content for file, content in material.etcd_files.items()}
        found |= _etcd_login(place, live, draw) if material.etcd_admin else {}
    if "nats" in place.servers:
        found |= {secret_key("nats", file): content for file, content in material.nats_files.items()}
        found |= _nats_login(material.nats_issuer, place, live, draw, now) if material.nats_issuer else {}
    return found


def etcd_user(data: Mapping[str, bytes], place: Place) -> EtcdUser | None:
    """Who signs in to etcd with this data, if it is a user that we made for this place."""
    name, password = (data.get(key, b"").decode("utf-8", "replace") for key in (_USER, _PASSWORD))
    ranges = rights.keys(place.dynamo_namespace)
    if not password or name != etcd_users.user_name(place.platform, place.owner, password, ranges):
        return None
    return EtcdUser(name, password, ranges)


def manifest(scene: Scene, data: Mapping[str, bytes]) -> Manifest:
    """The Secret; the digest is of the keys that it has, so that a dropped one is noticed, and of nothing secret."""
    name = scene.pipeline.name
    labels, intent = naming.pipeline_labels(name), {naming.INTENT: digest(sorted(data))[:16]}
    head = naming.child(scene, "v1", "Secret", naming.credentials_name(name), labels, intent)
    texts = {key: base64.b64encode(value).decode() for key, value in sorted(data.items())}
    return {**head, "type": "Opaque", "data": texts}


def data_in(secret: Mapping[str, Any]) -> Data:
    """Of a live Secret; what is no base64 counts as missing."""
    found: Data = {}
    for key, text in (secret.get("data") or {}).items():
        try:
            found[key] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError, TypeError):
            continue
    return found


def _etcd_login(place: Place, live: Mapping[str, bytes], draw: Draw) -> Data:
    if etcd_user(live, place) is not None:
        return {key: live[key] for key in (_USER, _PASSWORD)}
    password = base64.urlsafe_b64encode(draw()).decode().rstrip("=")
    name = etcd_users.user_name(place.platform, place.owner, password, rights.keys(place.dynamo_namespace))
    return {_USER: name.encode(), _PASSWORD: password.encode()}


def _nats_login(issuer: NatsIssuer, place: Place, live: Mapping[str, bytes], draw: Draw, now: int) -> Data:
    subjects, before = rights.subjects(place.dynamo_namespace), live.get(_CREDENTIALS, b"")
    if nats_keys.is_user_of(before, issuer, subjects):
        return {_CREDENTIALS: before}
    name = f"{place.owner.namespace}/{place.owner.name}"
    return {_CREDENTIALS: nats_keys.new_user(issuer, name, subjects, draw, now)}
