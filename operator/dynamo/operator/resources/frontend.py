"""The frontends: a Deployment, which rolls by itself, and the Service whose name users know."""

from __future__ import annotations

from dynamo.operator.plan import SYSTEM_PORT
from dynamo.operator.resources import naming
from dynamo.operator.resources.pod import CACHE, container_of, environment, literal, pod_template, resources_of
from dynamo.operator.resources.site import Manifest, Scene
from dynamo.operator.workload import Placement, Workload, resolve

DEFAULT_PORT = 8000
FIRST_FREE_PORT = 1024
_REQUESTS = {"cpu": "100m", "memory": "512Mi"}


def frontend_deployment(scene: Scene) -> Manifest:
    """New pods first: a frontend costs no device, and its Service never goes without one."""
    workload, name = scene.plan.frontend, scene.pipeline.name
    head = naming.child(
        scene,
        "apps/v1",
        "Deployment",
        naming.part_name(name, naming.FRONTEND),
        naming.part_labels(name, naming.FRONTEND),
    )
    rollout = workload.rollout
    spec: Manifest = {
        "replicas": workload.replicas,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": naming.part_selector(name, naming.FRONTEND)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
        },
        "template": _template(scene, workload),
    }
    return {**head, "spec": spec}


def frontend_service(scene: Scene) -> Manifest:
    """In front of all frontends, on the port that the pipeline names."""
    name, spec = scene.pipeline.name, scene.pipeline.spec.frontend
    head = naming.child(
        scene,
        "v1",
        "Service",
        naming.part_name(name, naming.FRONTEND),
        naming.part_labels(name, naming.FRONTEND),
        spec.service.annotations,
    )
    port = {"name": "http", "port": spec.port, "targetPort": "http", "protocol": "TCP", "appProtocol": "http"}
    selector = naming.part_selector(name, naming.FRONTEND)
    return {**head, "spec": {"type": spec.service.type, "selector": selector, "ports": [port]}}


def frontend_ports(scene: Scene) -> dict[str, int]:
    """Container ports by name; without root a process can't have the lowest, and the Service hides the difference."""
    ports = {port.name: port.preferred for port in scene.plan.frontend.ports}
    if ports["http"] < FIRST_FREE_PORT or ports["http"] == SYSTEM_PORT:
        ports["http"] = DEFAULT_PORT
    return ports


def health_port(scene: Scene) -> int:
    """Where a frontend is asked how it stands."""
    probe = scene.plan.frontend.probe
    return frontend_ports(scene)[probe.port if probe else "http"]


def _template(scene: Scene, workload: Workload) -> Manifest:
    spec, ports = scene.pipeline.spec.frontend, frontend_ports(scene)
    argv = resolve(tuple(literal(a) if isinstance(a, str) else a for a in workload.argv), Placement(ports, {}))
    values = {
        **dict(workload.environment),
        "DYN_CACHE_DIR": CACHE,
        "HOME": "/tmp",  # the container's own
    }
    cache = {"name": "cache", "mountPath": CACHE}
    container = container_of(
        scene,
        workload,
        naming.FRONTEND,
        scene.site.frontend_image,
        argv,
        ports,
        environment(scene, values, []),
        [cache],
        resources_of(spec.resources, _REQUESTS),
    )
    labels = naming.revision_labels(scene.pipeline.name, workload)
    volumes: list[Manifest] = [{"name": "cache", "emptyDir": {}}]
    return pod_template(scene, workload, container, volumes, labels, spec.pod_template, "spec.frontend.podTemplate")
