"""Collects what `dynamo doctor` knows of nodes, their devices, the cluster's DNS and policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dynamo.cli.cluster.client import Live
from dynamo.cli.cluster.look import Look, amount
from dynamo.cli.diagnosis.devices import NVIDIA, NodeDevices
from dynamo.operator.kube.resources import Resource
from dynamo.operator.manifests import naming

_NODES: Final = Resource("v1", "Node", "nodes")
_SLICES: Final = Resource("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
_POLICIES: Final = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
_LABELS: Final = {
    NVIDIA: ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present"),
    "amd.com/gpu": ("feature.node.kubernetes.io/pci-1002.present", "feature.node.kubernetes.io/amd-gpu"),
}
"""By which a node says that it has devices, though none offers them."""


def nodes_of(look: Look) -> list[Live] | None:
    """Return the nodes; None where they may not be seen."""
    return look.items(_NODES, None)


def is_ready(node: Live) -> bool:
    """Tell whether a node takes pods."""
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and not (node.get("spec") or {}).get("unschedulable")


def node_devices(nodes: Sequence[Live], wanted: Iterable[str]) -> tuple[NodeDevices, ...]:
    """Return what nodes have of each kind that is wanted, and of NVIDIA's in any case."""
    return tuple(_devices(nodes, resource) for resource in dict.fromkeys([NVIDIA, *wanted]))


def _devices(nodes: Sequence[Live], resource: str) -> NodeDevices:
    offers = [_offer(node, resource) for node in nodes]
    labelled = sum(bool(offer) or _says_so(node, resource) for node, offer in zip(nodes, offers, strict=True))
    return NodeDevices(resource, labelled, sum(offers), max(offers, default=0))


def _offer(node: Live, resource: str) -> int:
    return int(amount(str(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0"))))


def _says_so(node: Live, resource: str) -> bool:
    labels = node["metadata"].get("labels") or {}
    return any(labels.get(label) == "true" for label in _LABELS.get(resource, ()))


def dns_answers(look: Look) -> bool | None:
    """Tell whether a pod of the cluster's DNS is ready; None where it is called otherwise, or may not be seen."""
    slices = look.items(_SLICES, "kube-system", labelSelector="kubernetes.io/service-name=kube-dns")
    endpoints = [endpoint for live in slices or () for endpoint in live.get("endpoints") or ()]
    if not slices:
        return None
    return any((endpoint.get("conditions") or {}).get("ready", True) for endpoint in endpoints)


def egress_denied_by(look: Look, namespace: str) -> str:
    """Return the policy that denies all pods to send, where no policy of the operator's allows ours to."""
    policies = look.items(_POLICIES, namespace) or []
    ours = {"app.kubernetes.io/managed-by": naming.MANAGER}.items()
    if any(ours <= (live["metadata"].get("labels") or {}).items() and _of_egress(live) for live in policies):
        return ""
    return next((live["metadata"]["name"] for live in policies if _denies_all(live)), "")


def _of_egress(live: Live) -> bool:
    return "Egress" in ((live.get("spec") or {}).get("policyTypes") or [])


def _denies_all(live: Live) -> bool:
    spec = live.get("spec") or {}
    return _of_egress(live) and not spec.get("podSelector") and not spec.get("egress")
