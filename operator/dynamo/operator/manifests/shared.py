"""What the parts of a pipeline share, and what guards them: account, model cache, budgets, network policies."""

from __future__ import annotations

from urllib.parse import urlsplit

from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import Manifest, RenderContext
from dynamo.operator.manifests.frontend import frontend_ports
from dynamo.operator.plan.workload import Workload

_WORLD = {"0.0.0.0/0": ("169.254.0.0/16",), "::/0": ("fe80::/10", "fd00:ec2::254/128")}
_PORTS = {"http": 2379, "https": 2379, "nats": 4222, "tls": 4222}
"""Of etcd and NATS, where an URL names none."""


def service_account(context: RenderContext) -> Manifest:
    """Return an identity without rights, so that pods don't run as the namespace's default one."""
    name = context.pipeline.name
    head = naming.child(
        context,
        api_version="v1",
        kind="ServiceAccount",
        name=naming.account_name(name),
        labels=naming.pipeline_labels(name),
    )
    return {**head, "automountServiceAccountToken": False}


def model_cache(context: RenderContext) -> list[Manifest]:
    """Return the claim that the workers share; most clusters' default class can't do more than ReadWriteOnce."""
    cache, name = context.pipeline.spec.model.cache, context.pipeline.name
    if cache is None:
        return []
    head = naming.child(
        context,
        api_version="v1",
        kind="PersistentVolumeClaim",
        name=naming.cache_name(name),
        labels=naming.pipeline_labels(name),
    )
    spec: Manifest = {
        "accessModes": [cache.access_mode or "ReadWriteOnce"],
        "resources": {"requests": {"storage": str(cache.size)}},
    }
    if cache.storage_class_name:
        spec["storageClassName"] = cache.storage_class_name
    return [{**head, "spec": spec}]


def disruption_budget(context: RenderContext, workload: Workload, lost: int = 0) -> list[Manifest]:
    """Let one pod of a component go at a time, over all revisions; broken or lost pods don't block a drain.

    For a single pod it would allow everything, and Kubernetes writes its status at each of the pod's changes.
    """
    if workload.replicas * workload.nodes < 2:
        return []
    name, component = context.pipeline.name, workload.component
    head = naming.child(
        context,
        api_version="policy/v1",
        kind="PodDisruptionBudget",
        name=naming.part_name(name, component),
        labels=naming.part_labels(name, component),
    )
    spec = {
        "maxUnavailable": 1 + lost,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": naming.part_selector(name, component)},
    }
    return [{**head, "spec": spec}]


def network_policies(context: RenderContext) -> list[Manifest]:
    """Return policies: frontends take requests from anyone, workers from their pipeline alone.

    Metrics are readable from the platform's namespaces for that, or by anyone where none is named.
    """
    if not context.cluster.network_policies:
        return []
    ports = frontend_ports(context)
    pipeline = {"podSelector": {"matchLabels": {naming.PIPELINE: context.pipeline.name}}}
    readers = _readers(context.cluster.metrics_from)
    frontend = [{"ports": [_port(ports["http"])]}, {**readers, "ports": [_port(ports["system"])]}]
    system = sorted({port.preferred for workload in context.plan.workers for port in workload.ports})
    workers = [{"from": [pipeline]}, {**readers, "ports": [_port(number) for number in system]}]
    return [
        _policy(context, "frontend", "In", frontend),
        _policy(context, "workers", "NotIn", workers),
        *_egress(context),
    ]


def _readers(namespaces: tuple[str, ...]) -> Manifest:
    if not namespaces:
        return {}
    names = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": sorted(set(namespaces))}
    return {"from": [{"namespaceSelector": {"matchExpressions": [names]}}]}


def _egress(context: RenderContext) -> list[Manifest]:
    """Return the policy of egress: DNS, the pipeline's own pods, etcd, NATS and the platform's ports.

    Nothing on a node's own network, where clouds answer with credentials."""
    ports, name = context.cluster.egress_ports, context.pipeline.name
    if ports is None:
        return []
    runtime = context.pipeline.spec.runtime
    urls = [*context.cluster.connections, *runtime.etcd.endpoints, *(runtime.nats.url or "").split(",")]
    reached = sorted({*ports, *(port for url in urls if (port := _port_of(url)))})
    outside = [{"ipBlock": {"cidr": cidr, "except": list(never)}} for cidr, never in _WORLD.items()]
    head = naming.child(
        context,
        api_version="networking.k8s.io/v1",
        kind="NetworkPolicy",
        name=f"{name}-egress",
        labels=naming.pipeline_labels(name),
    )
    rules: list[Manifest] = [
        {"ports": [_port(53), {"port": 53, "protocol": "UDP"}]},
        {"to": [{"podSelector": {"matchLabels": {naming.PIPELINE: name}}}]},
        {"to": [{"namespaceSelector": {}}, *outside], "ports": [_port(number) for number in reached]},
    ]
    selector = {"matchLabels": {naming.PIPELINE: name}}
    return [{**head, "spec": {"podSelector": selector, "policyTypes": ["Egress"], "egress": rules}}]


def _port_of(url: str) -> int | None:
    try:
        parts = urlsplit(url.strip())
        return parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None


def _policy(context: RenderContext, suffix: str, operator: str, ingress: list[Manifest]) -> Manifest:
    name = context.pipeline.name
    head = naming.child(
        context,
        api_version="networking.k8s.io/v1",
        kind="NetworkPolicy",
        name=f"{name}-{suffix}",
        labels=naming.pipeline_labels(name),
    )
    selector = {
        "matchLabels": {naming.PIPELINE: name},
        "matchExpressions": [{"key": naming.COMPONENT, "operator": operator, "values": [naming.FRONTEND]}],
    }
    return {**head, "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}}


def _port(number: int) -> Manifest:
    return {"port": number, "protocol": "TCP"}
