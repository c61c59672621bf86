"""A namespace's own NATS, where the platform gives each one: `manifests(server, namespace, data)`.

NATS bounds what it keeps for one connection, and no account's sum: who opens many fills its memory. So those who
may do that share a server with nobody else. All of its objects have one name. Whose they are says
`credentials.nats_changes`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import Manifest
from dynamo.operator.manifests.render import digest

NAME: Final = "dynamo-nats"
GROUP: Final = "namespace_nats"
"""In the place of a pipeline's name, in the label that the operator watches by: no pipeline may be called so."""
COMPONENT: Final = "nats"
CONFIG: Final = "nats.conf"
PORT, MONITOR_PORT = 4222, 8222
CONFIG_DIGEST: Final = "dynamo.dev/config"
"""On the pod: another configuration, trust or certificate is another pod."""


@dataclass(frozen=True)
class NatsServer:
    """A namespace's NATS as the chart wants it."""

    config: str
    template: Mapping[str, Any] = field(default_factory=dict)
    """Of the pod; its volumes name the Secret `NAME`."""
    tls_secret: str = ""
    """In each namespace, with `ca.crt`, `tls.crt` and `tls.key` for `host(namespace)`; empty: no TLS."""
    network_policy: bool = True

    def url(self, namespace: str) -> str:
        """Return the URL that the pipelines of a namespace use."""
        return f"{'tls' if self.tls_secret else 'nats'}://{host(namespace)}:{PORT}"


def host(namespace: str) -> str:
    """Return the host name that its certificate must have."""
    return f"{NAME}.{namespace}.svc"


def labels() -> naming.Labels:
    """Return the labels of every object."""
    return {
        "app.kubernetes.io/name": NAME,
        "app.kubernetes.io/part-of": "dynamo",
        "app.kubernetes.io/managed-by": naming.MANAGER,
        "app.kubernetes.io/component": COMPONENT,
        **selector(),
    }


def selector() -> naming.Labels:
    """Return the selector of its pods; never to be changed."""
    return {naming.PIPELINE: GROUP, naming.COMPONENT: COMPONENT}


def manifests(
    server: NatsServer, namespace: str, data: Mapping[str, bytes], certificate: bytes = b""
) -> list[Manifest]:
    """Return everything but the owners, the Secret first, which holds `data`; `certificate` is the server's."""
    objects = [_secret(namespace, data), _service(namespace)]
    if server.network_policy:
        objects.append(_network_policy(namespace))
    return [_signed(manifest) for manifest in (*objects, _deployment(server, namespace, data, certificate))]


def _head(namespace: str, api_version: str, kind: str) -> Manifest:
    metadata = {"name": NAME, "namespace": namespace, "labels": labels()}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _signed(manifest: Manifest) -> Manifest:
    """Add a digest by which a dropped field is noticed; of a Secret, of its keys alone."""
    about = {**manifest, "data": sorted(manifest["data"])} if "data" in manifest else manifest
    metadata = {**manifest["metadata"], "annotations": {naming.INTENT: digest(about)[:16]}}
    return {**manifest, "metadata": metadata}


def _secret(namespace: str, data: Mapping[str, bytes]) -> Manifest:
    texts = {key: base64.b64encode(value).decode() for key, value in sorted(data.items())}
    return {**_head(namespace, "v1", "Secret"), "type": "Opaque", "data": texts}


def _service(namespace: str) -> Manifest:
    port = {"name": "client", "port": PORT, "targetPort": "client", "protocol": "TCP"}
    return {**_head(namespace, "v1", "Service"), "spec": {"type": "ClusterIP", "selector": selector(), "ports": [port]}}


def _network_policy(namespace: str) -> Manifest:
    """Let in pods of this namespace with the label of pipelines; its monitor answers this namespace alone."""
    clients = {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "dynamo"}}}
    rules = [
        {"from": [clients], "ports": [{"port": PORT, "protocol": "TCP"}]},
        {"from": [{"podSelector": {}}], "ports": [{"port": MONITOR_PORT, "protocol": "TCP"}]},
    ]
    spec = {"podSelector": {"matchLabels": selector()}, "policyTypes": ["Ingress"], "ingress": rules}
    return {**_head(namespace, "networking.k8s.io/v1", "NetworkPolicy"), "spec": spec}


def _deployment(server: NatsServer, namespace: str, data: Mapping[str, bytes], certificate: bytes) -> Manifest:
    """Return the Deployment with one pod at a time: clients of two servers would not meet."""
    given = server.template.get("metadata") or {}
    read = {key: data[key].decode("utf-8", "replace") for key in sorted(data) if key.endswith(".conf")}
    changes = digest([read, certificate.decode("utf-8", "replace")])[:16]
    metadata = {
        "labels": {**(given.get("labels") or {}), **labels()},
        "annotations": {**(given.get("annotations") or {}), CONFIG_DIGEST: changes},
    }
    spec = {
        "replicas": 1,
        "revisionHistoryLimit": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector()},
        "template": {"metadata": metadata, "spec": server.template.get("spec") or {}},
    }
    return {**_head(namespace, "apps/v1", "Deployment"), "spec": spec}
