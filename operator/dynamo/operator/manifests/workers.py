"""The workers of one revision: a StatefulSet, or one per group where several pods are one worker.

The StatefulSet never rolls by itself (`OnDelete`): a new revision is a new StatefulSet, and
what an upgraded operator writes differently into an old one reaches pods only when they
start anew. Groups get a headless Service each, so that rank 0 has a name before it is ready.
"""

from __future__ import annotations

from dynamo.operator.api.v1alpha1 import Engine
from dynamo.operator.resources import naming
from dynamo.operator.resources.files import WorkerFiles, worker_files
from dynamo.operator.resources.loading import loaders, variables
from dynamo.operator.resources.pod import CACHE, container_of, environment, literal, pod_template, resources_of
from dynamo.operator.resources.site import Manifest, Scene
from dynamo.operator.workload import Placement, Workload, resolve

CONTAINER = "worker"
LEADER_PORT = 29500
SHARED_MEMORY = "8Gi"
_RANK = "DYN_NODE_RANK"
POD_NAME = "POD_NAME"
"""What a worker says of where it runs; frontends repeat it to the operator."""
_LIGHT = frozenset({Engine.MOCKER, Engine.ECHO_CORE, Engine.ECHO_FULL})
_LIGHT_REQUESTS = {"cpu": "100m", "memory": "256Mi"}
_REQUESTS = {"cpu": "500m", "memory": "1Gi"}


def worker_sets(scene: Scene, workload: Workload, replicas: int) -> list[Manifest]:
    """The StatefulSets of a revision that has `replicas` workers now."""
    if workload.nodes == 1:
        return [_stateful_set(scene, workload, replicas, None)]
    return [_stateful_set(scene, workload, workload.nodes, group) for group in range(replicas)]


def headless_services(scene: Scene, workload: Workload, replicas: int) -> list[Manifest]:
    """One per group of the revision; nobody asks for a single pod by name, and each Service costs ten writes of
    Kubernetes' own for its endpoints.
    """
    if workload.nodes == 1:
        return []
    name = scene.pipeline.name
    labels = naming.revision_labels(name, workload)
    return [
        _headless(
            scene,
            workload,
            naming.group_name(name, workload, group),
            {**labels, naming.GROUP: str(group)},
            naming.revision_selector(name, workload, group),
        )
        for group in range(replicas)
    ]


def _headless(scene: Scene, workload: Workload, name: str, labels: naming.Labels, selector: naming.Labels) -> Manifest:
    ports = [{"name": p.name, "port": p.preferred, "targetPort": p.name, "protocol": "TCP"} for p in workload.ports]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector, "ports": ports}
    return {**naming.child(scene, "v1", "Service", name, labels), "spec": spec}


def _stateful_set(scene: Scene, workload: Workload, pods: int, group: int | None) -> Manifest:
    pipeline = scene.pipeline.name
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
        "template": _template(scene, workload, labels, group),
    }
    return {**naming.child(scene, "apps/v1", "StatefulSet", name, labels), "spec": spec}


def _template(scene: Scene, workload: Workload, labels: naming.Labels, group: int | None) -> Manifest:
    component, files = scene.component(workload), worker_files(scene, workload)
    ports = {port.name: port.preferred for port in workload.ports}
    leader = _leader(scene, workload, group)
    argv = resolve(
        tuple(literal(a) if isinstance(a, str) else a for a in files.argv),
        Placement(ports, files.paths, f"$({_RANK})", leader),
    )
    volumes, mounts = _storage(scene, workload, files)
    container = container_of(
        scene,
        workload,
        CONTAINER,
        scene.site.worker_image(component.engine),
        argv,
        ports,
        _environment(scene, workload),
        mounts,
        resources_of(
            component.resources,
            _LIGHT_REQUESTS if component.engine in _LIGHT else _REQUESTS,
            workload.accelerators,
        ),
    )
    if component.env_from:
        container["envFrom"] = list(component.env_from)
    index = scene.pipeline.spec.components.index(component)
    path = f"spec.components[{index}].podTemplate"
    before = loaders(scene, workload)
    return pod_template(scene, workload, container, volumes, labels, component.pod_template, path, before)


def _leader(scene: Scene, workload: Workload, group: int | None) -> str:
    if group is None:
        return ""
    name = naming.group_name(scene.pipeline.name, workload, group)
    return f"{name}-0.{name}.{scene.kubernetes_namespace}.svc:{LEADER_PORT}"


def _environment(scene: Scene, workload: Workload) -> list[Manifest]:
    """The plan's and ours first, then the user's own in their order."""
    values = {**dict(workload.environment), "DYN_CACHE_DIR": CACHE}
    own: list[Manifest] = [{"name": POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    if workload.nodes > 1:
        field = {"fieldPath": f"metadata.labels['{naming.POD_INDEX}']"}
        own.append({"name": _RANK, "valueFrom": {"fieldRef": field}})
    own += variables(scene, workload)
    return environment(scene, values, own)


def _storage(scene: Scene, workload: Workload, files: WorkerFiles) -> tuple[list[Manifest], list[Manifest]]:
    claim = {"claimName": naming.cache_name(scene.pipeline.name)}
    cached = scene.pipeline.spec.model.cache is not None
    volumes: list[Manifest] = [
        {"name": "cache", "persistentVolumeClaim": claim} if cached else {"name": "cache", "emptyDir": {}}
    ]
    mounts: list[Manifest] = [{"name": "cache", "mountPath": CACHE}]
    shared = scene.component(workload).shared_memory or (SHARED_MEMORY if workload.accelerators else None)
    if shared:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(shared)}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # devices exchange tensors through it
    return [*volumes, *files.volumes], [*mounts, *files.mounts]
