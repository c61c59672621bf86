"""The frontends: a Deployment, which rolls by itself, and the Service whose name users know."""

from __future__ import annotations

from dynamo.operator.api.frontend import ApiKeys
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import Manifest, RenderContext
from dynamo.operator.manifests.pod import CACHE, container_of, environment, literal, pod_template, resources_of
from dynamo.operator.plan.plan import SYSTEM_PORT
from dynamo.operator.plan.workload import Placement, Workload, resolve

DEFAULT_PORT = 8000
FIRST_FREE_PORT = 1024
_REQUESTS = {"cpu": "100m", "memory": "512Mi"}
MEMORY_LIMIT_GIB = 2
"""Of each process: twice of what a hundred requests of the largest size take together."""
API_KEYS = "/etc/dynamo/api-keys"
_API_KEYS_VARIABLE = "DYN_API_KEYS_FILE"


def frontend_deployment(context: RenderContext) -> Manifest:
    """Return the Deployment; new pods come first, so that its Service never goes without one."""
    workload, name = context.plan.frontend, context.pipeline.name
    head = naming.child(
        context,
        api_version="apps/v1",
        kind="Deployment",
        name=naming.part_name(name, naming.FRONTEND),
        labels=naming.part_labels(name, naming.FRONTEND),
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
        "template": _template(context, workload),
    }
    return {**head, "spec": spec}


def frontend_service(context: RenderContext) -> Manifest:
    """Return the Service in front of all frontends, on the port that the pipeline names."""
    name, spec = context.pipeline.name, context.pipeline.spec.frontend
    head = naming.child(
        context,
        api_version="v1",
        kind="Service",
        name=naming.part_name(name, naming.FRONTEND),
        labels=naming.part_labels(name, naming.FRONTEND),
        annotations=spec.service.annotations,
    )
    port = {"name": "http", "port": spec.port, "targetPort": "http", "protocol": "TCP", "appProtocol": "http"}
    selector = naming.part_selector(name, naming.FRONTEND)
    return {**head, "spec": {"type": spec.service.type, "selector": selector, "ports": [port]}}


def frontend_ports(context: RenderContext) -> dict[str, int]:
    """Return container ports by name; without root a process can't have the lowest, which the Service hides."""
    ports = {port.name: port.preferred for port in context.plan.frontend.ports}
    if ports["http"] < FIRST_FREE_PORT or ports["http"] == SYSTEM_PORT:
        ports["http"] = DEFAULT_PORT
    return ports


def health_port(context: RenderContext) -> int:
    """Return the port on which a frontend is asked for its health."""
    probe = context.plan.frontend.probe
    return frontend_ports(context)[probe.port if probe else "http"]


def _api_keys(spec: ApiKeys | None) -> tuple[list[Manifest], list[Manifest]]:
    """Mount the file with the keys as a folder, so that the kubelet renews it. Without the Secret no pod starts."""
    if spec is None:
        return [], []
    source = {"secretName": spec.secret, "items": [{"key": spec.key, "path": "keys"}], "defaultMode": 0o440}
    mount = {"name": "api-keys", "mountPath": API_KEYS, "readOnly": True}
    return [{"name": "api-keys", "secret": source}], [mount]


def _template(context: RenderContext, workload: Workload) -> Manifest:
    spec, ports = context.pipeline.spec.frontend, frontend_ports(context)
    argv = resolve(tuple(literal(a) if isinstance(a, str) else a for a in workload.argv), Placement(ports, {}))
    values = {
        **dict(workload.environment),
        "DYN_CACHE_DIR": CACHE,
        "HOME": "/tmp",  # the container's own
        "DYN_DISABLE_FRONTEND_ADMIN_API": "true",  # whoever shares the pod's network, as a mesh does, is "local"
        **({_API_KEYS_VARIABLE: f"{API_KEYS}/keys"} if spec.api_keys else {}),
    }
    keys_volumes, keys_mounts = _api_keys(spec.api_keys)
    cache = {"name": "cache", "mountPath": CACHE}
    container = container_of(
        context,
        workload=workload,
        name=naming.FRONTEND,
        image=context.cluster.frontend_image,
        argv=argv,
        ports=ports,
        env=environment(context, values, []),
        mounts=[cache, *keys_mounts],
        resources=resources_of(spec.resources, _REQUESTS, memory_limit=f"{MEMORY_LIMIT_GIB * spec.workers}Gi"),
    )
    labels = naming.revision_labels(context.pipeline.name, workload)
    volumes: list[Manifest] = [{"name": "cache", "emptyDir": {}}, *keys_volumes]
    return pod_template(
        context,
        workload=workload,
        container=container,
        volumes=volumes,
        labels=labels,
        patch=spec.pod_template,
        path="spec.frontend.podTemplate",
    )
