"""What the parts of a pipeline share, and what guards them: account, model cache, budgets, network policies."""

from __future__ import annotations

from dynamo.operator.resources import naming
from dynamo.operator.resources.frontend import frontend_ports
from dynamo.operator.resources.site import Manifest, Scene
from dynamo.operator.workload import Workload


def service_account(scene: Scene) -> Manifest:
    """An identity without rights, so that pods don't run as the namespace's default one."""
    name = scene.pipeline.name
    head = naming.child(scene, "v1", "ServiceAccount", naming.account_name(name), naming.pipeline_labels(name))
    return {**head, "automountServiceAccountToken": False}


def model_cache(scene: Scene) -> list[Manifest]:
    """The claim that the workers share; most clusters' default class can't do more than ReadWriteOnce."""
    cache, name = scene.pipeline.spec.model.cache, scene.pipeline.name
    if cache is None:
        return []
    head = naming.child(scene, "v1", "PersistentVolumeClaim", naming.cache_name(name), naming.pipeline_labels(name))
    spec: Manifest = {
        "accessModes": [cache.access_mode or "ReadWriteOnce"],
        "resources": {"requests": {"storage": str(cache.size)}},
    }
    if cache.storage_class_name:
        spec["storageClassName"] = cache.storage_class_name
    return [{**head, "spec": spec}]


def disruption_budget(scene: Scene, workload: Workload, lost: int = 0) -> list[Manifest]:
    """One pod of a component at a time, over all its revisions; neither a broken pod nor a lost one blocks a drain.

    For a single pod it would allow everything, and Kubernetes writes its status at each of the pod's changes.
    """
    if workload.replicas * workload.nodes < 2:
        return []
    name, component = scene.pipeline.name, workload.component
    head = naming.child(
        scene,
        "policy/v1",
        "PodDisruptionBudget",
        naming.part_name(name, component),
        naming.part_labels(name, component),
    )
    spec = {
        "maxUnavailable": 1 + lost,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": naming.part_selector(name, component)},
    }
    return [{**head, "spec": spec}]


def network_policies(scene: Scene) -> list[Manifest]:
    """Frontends take requests from anyone, workers only from their pipeline; metrics may be read by anyone."""
    if not scene.site.network_policies:
        return []
    frontend = [{"ports": [_port(number) for number in frontend_ports(scene).values()]}]
    system = sorted({port.preferred for workload in scene.plan.workers for port in workload.ports})
    pipeline = {"podSelector": {"matchLabels": {naming.PIPELINE: scene.pipeline.name}}}
    workers = [{"from": [pipeline]}, {"ports": [_port(number) for number in system]}]
    return [_policy(scene, "frontend", "In", frontend), _policy(scene, "workers", "NotIn", workers)]


def _policy(scene: Scene, suffix: str, operator: str, ingress: list[Manifest]) -> Manifest:
    name = scene.pipeline.name
    head = naming.child(
        scene, "networking.k8s.io/v1", "NetworkPolicy", f"{name}-{suffix}", naming.pipeline_labels(name)
    )
    selector = {
        "matchLabels": {naming.PIPELINE: name},
        "matchExpressions": [{"key": naming.COMPONENT, "operator": operator, "values": [naming.FRONTEND]}],
    }
    return {**head, "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}}


def _port(number: int) -> Manifest:
    return {"port": number, "protocol": "TCP"}
