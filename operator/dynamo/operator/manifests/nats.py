"""A namespace's own NATS, where the platform gives each one: `manifests(server, namespace, data)`.

NATS bounds what it keeps for one connection, and no account's sum: who opens many fills its memory. So those who
may do that share a server with nobody else. Where there are several servers, they hand messages on to each other
(routes), so that a client may use any. All objects but the Service of routes have one name. Whose they are says
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
ROUTES: Final = f"{NAME}-routes"
"""The Service without an address by which servers find each other."""
COMPONENT: Final = "nats"
CONFIG: Final = "nats.conf"
PORT, MONITOR_PORT, ROUTES_PORT = 4222, 8222, 6222
SETTLE_SECONDS: Final = 5
"""After a server is Ready and before the next one is replaced: clients and routes come back."""
ALONE_SECONDS: Final = 10
"""After a server that is alone is Ready and before rollouts go on: clients come back, and their pods say so."""
PROGRESS_SECONDS: Final = 120
"""In which a server has to be there; then rollouts wait for it no longer."""
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
    replicas: int = 1

    @property
    def clustered(self) -> bool:
        """Return whether there are several servers."""
        return self.replicas > 1

    def url(self, namespace: str) -> str:
        """Return the URL that the pipelines of a namespace use."""
        return f"{'tls' if self.tls_secret else 'nats'}://{host(namespace)}:{PORT}"


def host(namespace: str) -> str:
    """Return the host name that its certificate must have."""
    return f"{NAME}.{namespace}.svc"


def routes_host(namespace: str) -> str:
    """Return the host name that all servers have together, where there are several."""
    return f"{ROUTES}.{namespace}.svc"


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
        objects.append(_network_policy(server, namespace))
    if server.clustered:
        objects += [_routes_service(namespace), _disruption_budget(namespace)]
    return [_signed(manifest) for manifest in (*objects, _deployment(server, namespace, data, certificate))]


def _head(namespace: str, api_version: str, kind: str, name: str = NAME) -> Manifest:
    metadata = {"name": name, "namespace": namespace, "labels": labels()}
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


def _routes_service(namespace: str) -> Manifest:
    """Return the Service that names every server, Ready or not: none could become Ready by waiting for another."""
    port = {"name": "routes", "port": ROUTES_PORT, "targetPort": "routes", "protocol": "TCP"}
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector(), "ports": [port]}
    return {**_head(namespace, "v1", "Service", ROUTES), "spec": spec}


def _disruption_budget(namespace: str) -> Manifest:
    """Let drains take one server at a time."""
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector()},
    }
    return {**_head(namespace, "policy/v1", "PodDisruptionBudget"), "spec": spec}


def _network_policy(server: NatsServer, namespace: str) -> Manifest:
    """Let in pods of this namespace with the label of pipelines; its monitor answers this namespace alone.

    Other servers may use the routes; nobody else, since whoever does may send anything to anybody.
    """
    clients = {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "dynamo"}}}
    rules = [
        {"from": [clients], "ports": [{"port": PORT, "protocol": "TCP"}]},
        {"from": [{"podSelector": {}}], "ports": [{"port": MONITOR_PORT, "protocol": "TCP"}]},
    ]
    if server.clustered:
        servers = {"podSelector": {"matchLabels": selector()}}
        rules.append({"from": [servers], "ports": [{"port": ROUTES_PORT, "protocol": "TCP"}]})
    spec = {"podSelector": {"matchLabels": selector()}, "policyTypes": ["Ingress"], "ingress": rules}
    return {**_head(namespace, "networking.k8s.io/v1", "NetworkPolicy"), "spec": spec}


def _deployment(server: NatsServer, namespace: str, data: Mapping[str, bytes], certificate: bytes) -> Manifest:
    """Return the Deployment; a server that is alone goes before the next one comes: their clients would not meet.

    Not a StatefulSet: nobody takes the place of its pod on a node that is lost.
    """
    given = server.template.get("metadata") or {}
    read = {key: data[key].decode("utf-8", "replace") for key in sorted(data) if key.endswith((".conf", ".crt"))}
    changes = digest([read, certificate.decode("utf-8", "replace")])[:16]
    metadata = {
        "labels": {**(given.get("labels") or {}), **labels()},
        "annotations": {**(given.get("annotations") or {}), CONFIG_DIGEST: changes},
    }
    pod = dict(server.template.get("spec") or {})
    spec: Manifest = {
        "replicas": server.replicas,
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": PROGRESS_SECONDS,
        "minReadySeconds": SETTLE_SECONDS if server.clustered else ALONE_SECONDS,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector()},
    }
    if server.clustered:
        pod.setdefault("affinity", _apart())
        rolling = {"maxUnavailable": 1, "maxSurge": 0}
        spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": rolling}
    spec["template"] = {"metadata": metadata, "spec": pod}
    return {**_head(namespace, "apps/v1", "Deployment"), "spec": spec}


def _apart() -> Manifest:
    """Return an affinity by which servers prefer nodes of their own."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": selector()}}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
