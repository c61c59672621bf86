"""`manifests(pipeline, plan, cluster, replicas)`: everything that should exist now, in the order to write it.

Called by the reconciler with the number of workers that `converge` allows at this moment.
Old revisions aren't here: what they were made from is gone, so they are only scaled down
and removed. Each manifest bears a digest of itself, by which a field that was dropped from
the intent is noticed too. The objects that belong to the pipeline as a whole are made here: account, model cache,
disruption budgets, network policies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from dynamo.operator.api.bounds import RENDERED_BYTES
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import ClusterSettings, Manifest, RenderContext, RenderError
from dynamo.operator.manifests.frontend import entrance, frontend_deployment, frontend_ports, frontend_service
from dynamo.operator.manifests.placement import worker_image
from dynamo.operator.manifests.pod import given
from dynamo.operator.manifests.workers import files_config_map, headless_services, worker_sets
from dynamo.operator.plan.plan import REVISION_DIGITS
from dynamo.operator.plan.workload import Plan, Workload


def manifests(
    pipeline: DynamoPipeline,
    plan: Plan,
    cluster: ClusterSettings,
    replicas: Mapping[str, int] | None = None,
    lost: Mapping[str, int] | None = None,
) -> list[Manifest]:
    """Return the manifests of a plan (out of `with_images`) on this cluster; raises `RenderError`.

    `replicas` says how many workers of the wanted revision there are now, by component; the
    plan's number counts for those it leaves out. `lost` says how many more than that hang on dead nodes.
    """
    context, counts, gone = RenderContext.of(pipeline, plan, cluster), replicas or {}, lost or {}
    objects = [service_account(context), *model_cache(context), *network_policies(context)]
    objects += [frontend_service(context), *entrance(context)]
    for workload in plan.workloads:
        objects += disruption_budget(context, workload, gone.get(workload.component, 0))
    for workload in plan.workers:
        objects += _worker(context, workload, counts.get(workload.component, workload.replicas))
    return _signed_within((*objects, frontend_deployment(context)))


def with_images(plan: Plan, pipeline: DynamoPipeline, cluster: ClusterSettings) -> Plan:
    """Return the plan with revisions that also name image and sign-in: both are rollouts like any other."""
    components = {c.name: (f"spec.components[{i}]", c) for i, c in enumerate(pipeline.spec.components)}
    sign_in = sorted(given(pipeline, cluster))

    def image(workload: Workload) -> str:
        if workload.is_frontend:
            return cluster.frontend_image
        path, component = components[workload.component]
        return worker_image(cluster, component, path)

    def revision(workload: Workload) -> str:
        return digest([workload.revision, image(workload), *sign_in])[:REVISION_DIGITS]

    return replace(plan, workloads=tuple(replace(w, revision=revision(w)) for w in plan.workloads))


def digest(value: Any) -> str:
    """Return a digest of any JSON, the same for the same meaning."""
    return _hashed(_text(value))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _worker(context: RenderContext, workload: Workload, replicas: int) -> list[Manifest]:
    return [
        *files_config_map(context, workload),
        *headless_services(context, workload, replicas),
        *worker_sets(context, workload, replicas),
    ]


def _signed_within(objects: Iterable[Manifest], most: int = RENDERED_BYTES) -> list[Manifest]:
    """Return all of them with their digests, if they are few enough to be kept, compared and sent."""
    signed, size = [], 0
    for manifest in objects:
        signed_manifest, length = _signed(manifest)
        size += length
        if size > most:
            raise RenderError(
                "spec.components",
                f"all objects of the pipeline have more than {most >> 20} MiB together: ask for fewer groups, "
                "or for a smaller podTemplate",
            )
        signed.append(signed_manifest)
    return signed


def _signed(manifest: Manifest) -> tuple[Manifest, int]:
    """Add a digest without replicas: they are never dropped, and an autoscaler may change them."""
    metadata, spec = manifest["metadata"], manifest.get("spec", {})
    signed = {**manifest, "spec": {k: v for k, v in spec.items() if k != "replicas"}}
    text = _text(signed)
    annotations = {**metadata.get("annotations", {}), naming.INTENT: _hashed(text)[:16]}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}, len(text)


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
    if cache is None or cache.claim_name is not None:
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
