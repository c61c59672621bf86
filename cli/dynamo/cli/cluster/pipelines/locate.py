"""Asks a cluster, and then the network, where a pipeline answers from here."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final, NamedTuple

from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.pipelines.addresses import Address, addresses, inside, pending
from dynamo.operator.kube.resources import Resource, resource_of
from dynamo.operator.manifests import naming

INGRESSES: Final = Resource("networking.k8s.io/v1", "Ingress", "ingresses")
NODES: Final = Resource("v1", "Node", "nodes")
SERVICES: Final = resource_of("Service")
_CONNECT_SECONDS: Final = 2.0


class Location(NamedTuple):
    """Addresses of a pipeline, and which of them answers."""

    service: Live
    reachable: Address | None
    tried: tuple[Address, ...]
    pending: str | None

    @property
    def in_cluster(self) -> Address:
        """Return the address for pods."""
        return inside(self.service)


def locate(cluster: Cluster, name: str, namespace: str, said: str = "") -> Location | None:
    """Return where a pipeline is; None where it has no Service yet.

    `said` is the URL of its status: a name that an HTTPRoute gave it.
    """
    service = cluster.find(SERVICES.path(namespace, naming.part_name(name, naming.FRONTEND)))
    if service is None:
        return None
    ingresses = cluster.visible(INGRESSES, namespace)
    outside = service.get("spec", {}).get("type") != "ClusterIP"
    nodes = cluster.visible(NODES, None) if outside else []
    if cluster.inside:
        return Location(service, inside(service), (), None)
    candidates = [*named_outside(said), *addresses(service, ingresses, nodes)]
    return Location(service, _first_open(candidates), tuple(candidates), pending(service, ingresses))


def named_outside(said: str) -> list[Address]:
    """Return the status's URL, unless it is the Service's own."""
    address = Address(said.rstrip("/"), "status")
    host = address.host_and_port[0]
    return [address] if host and not host.endswith(".svc") else []


def _first_open(candidates: Iterable[Address]) -> Address | None:
    return next((address for address in candidates if _is_open(address)), None)


def _is_open(address: Address) -> bool:
    """Tell whether somebody listens there, as far as this machine can see."""
    try:
        with socket.create_connection(address.host_and_port, timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False
