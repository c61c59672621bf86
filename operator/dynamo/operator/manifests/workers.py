"""The workers of one revision: a StatefulSet, or one per group where several pods are one worker.

The StatefulSet never rolls by itself (`OnDelete`): a new revision is a new StatefulSet, and
what an upgraded operator writes differently into an old one reaches pods only when they
start anew. Groups get a headless Service each, so that rank 0 has a name before it is ready.
"""

from __future__ import annotations

from dynamo.operator.api.v1alpha1 import Component, Engine
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.config_map import WorkerFiles, worker_files
from dynamo.operator.manifests.context import Manifest, RenderContext
from dynamo.operator.manifests.model_download import loaders, variables
from dynamo.operator.manifests.pod import CACHE, container_of, environment, literal, pod_template, resources_of
from dynamo.operator.plan.workload import Placement, Workload, resolve

CONTAINER = "worker"
LEADER_PORT = 29500
SHARED_MEMORY = "8Gi"
_RANK = "DYN_NODE_RANK"
POD_NAME = "POD_NAME"
"""Variable by which a worker knows its pod; frontends report it to the operator."""
_LIGHT = frozenset({Engine.MOCKER, Engine.ECHO_CORE, Engine.ECHO_FULL})
_LIGHT_REQUESTS = {"cpu": "100m", "memory": "256Mi"}
_LIGHT_LIMIT = "2Gi"
"""What a model takes only its user knows: a limit of ours would end it while it loads."""
_REQUESTS = {"cpu": "500m", "memory": "1Gi"}


def worker_sets(context: RenderContext, workload: Workload, replicas: int) -> list[Manifest]:
    """Return the StatefulSets of a revision that has `replicas` workers now."""
    if workload.nodes == 1:
        return [_stateful_set(context, workload, replicas, None)]
    return [_stateful_set(context, workload, workload.nodes, group) for group in range(replicas)]


def headless_services(context: RenderContext, workload: Workload, replicas: int) -> list[Manifest]:
    """Return a Service per group; nobody asks for a single pod by name, and each Service costs ten writes of
    Kubernetes' own for its endpoints.
    """
    if workload.nodes == 1:
        return []
    name = context.pipeline.name
    labels = naming.revision_labels(name, workload)
    return [
        _headless(
            context,
            workload=workload,
            name=naming.group_name(name, workload, group),
            labels={**labels, naming.GROUP: str(group)},
            selector=naming.revision_selector(name, workload, group),
        )
        for group in range(replicas)
    ]


def _headless(
    context: RenderContext, workload: Workload, name: str, labels: naming.Labels, selector: naming.Labels
) -> Manifest:
    ports = [{"name": p.name, "port": p.preferred, "targetPort": p.name, "protocol": "TCP"} for p in workload.ports]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector, "ports": ports}
    return {**naming.child(context, api_version="v1", kind="Service", name=name, labels=labels), "spec": spec}


def _stateful_set(context: RenderContext, workload: Workload, pods: int, group: int | None) -> Manifest:
    pipeline = context.pipeline.name
    name = naming.group_name(pipeline, workload, group or 0)
    labels = naming.revision_labels(pipeline, workload)
    if group is not None:
        labels |= {naming.GROUP: str(group)}
    spec: Manifest = {
        "replicas": pods,
        # Required by older schemas, and never to be changed; only a group's Service exists.
        "serviceName": name if group is not None else naming.part_name(pipeline, workload.component),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": naming.revision_selector(pipeline, workload, group)},
        "template": _template(context, workload, labels, group),
    }
    return {**naming.child(context, api_version="apps/v1", kind="StatefulSet", name=name, labels=labels), "spec": spec}


def _template(context: RenderContext, workload: Workload, labels: naming.Labels, group: int | None) -> Manifest:
    component, files = context.component(workload), worker_files(context, workload)
    ports = {port.name: port.preferred for port in workload.ports}
    leader = _leader(context, workload, group)
    argv = resolve(
        tuple(literal(a) if isinstance(a, str) else a for a in files.argv),
        Placement(ports, files.paths, f"$({_RANK})", leader),
    )
    volumes, mounts = _storage(context, workload, files)
    container = container_of(
        context,
        workload=workload,
        name=CONTAINER,
        image=context.cluster.worker_image(component.engine),
        argv=argv,
        ports=ports,
        env=_environment(context, workload),
        mounts=mounts,
        resources=_resources(component, workload),
    )
    if component.env_from:
        container["envFrom"] = list(component.env_from)
    index = context.pipeline.spec.components.index(component)
    return pod_template(
        context,
        workload=workload,
        container=container,
        volumes=volumes,
        labels=labels,
        patch=component.pod_template,
        path=f"spec.components[{index}].podTemplate",
        before=loaders(context, workload),
    )


def _resources(component: Component, workload: Workload) -> Manifest:
    is_light = component.engine in _LIGHT
    return resources_of(
        component.resources,
        _LIGHT_REQUESTS if is_light else _REQUESTS,
        workload.accelerators,
        memory_limit=_LIGHT_LIMIT if is_light else None,
    )


def _leader(context: RenderContext, workload: Workload, group: int | None) -> str:
    if group is None:
        return ""
    name = naming.group_name(context.pipeline.name, workload, group)
    return f"{name}-0.{name}.{context.kubernetes_namespace}.svc:{LEADER_PORT}"


def _environment(context: RenderContext, workload: Workload) -> list[Manifest]:
    """Return the plan's variables and ours first, then the user's own in their order."""
    values = {**dict(workload.environment), "DYN_CACHE_DIR": CACHE}
    own: list[Manifest] = [{"name": POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    if workload.nodes > 1:
        field = {"fieldPath": f"metadata.labels['{naming.POD_INDEX}']"}
        own.append({"name": _RANK, "valueFrom": {"fieldRef": field}})
    own += variables(context, workload, loads=not workload.fetch)
    return environment(context, values, own)


def _storage(context: RenderContext, workload: Workload, files: WorkerFiles) -> tuple[list[Manifest], list[Manifest]]:
    claim = {"claimName": naming.cache_name(context.pipeline.name)}
    cached = context.pipeline.spec.model.cache is not None
    volumes: list[Manifest] = [
        {"name": "cache", "persistentVolumeClaim": claim} if cached else {"name": "cache", "emptyDir": {}}
    ]
    mounts: list[Manifest] = [{"name": "cache", "mountPath": CACHE}]
    shared = context.component(workload).shared_memory or (SHARED_MEMORY if workload.accelerators else None)
    if shared:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(shared)}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # devices exchange tensors through it
    return [*volumes, *files.volumes], [*mounts, *files.mounts]
