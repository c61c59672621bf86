"""The pod template of a workload: one container, locked down as PSS `restricted` asks, patched by the user last.

Every pod runs without the right to ask the API server, with a read-only root file system,
and is told to end by SIGTERM alone: frontend and worker drain by themselves (they leave
membership, refuse late arrivals retryably, finish their streams), so there is no preStop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dynamo.operator.api.fields import ResourceSpec
from dynamo.operator.resources import naming
from dynamo.operator.resources.credentials import credentials
from dynamo.operator.resources.overlay import check_template, overlay
from dynamo.operator.resources.site import Manifest, Scene
from dynamo.operator.workload import Workload

CACHE = "/var/cache/dynamo"
MARGIN_SECONDS = 20
"""Beyond the streams' grace: draining (15 s at most), leaving etcd and NATS, closing the engine."""
START_SECONDS = 600
"""Until a process answers at all: slow images import for minutes. Loading the model comes after that."""

LOCKED: Manifest = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod_template(
    scene: Scene,
    workload: Workload,
    container: Manifest,
    volumes: list[Manifest],
    labels: Mapping[str, str],
    patch: Mapping[str, Any] | None,
    path: str,
    before: Sequence[Manifest] = (),
) -> Manifest:
    """`container` in its pod, after those that end before it starts.

    `patch` is the user's podTemplate, which stands at `path` in the pipeline.
    """
    spec = _pod_spec(scene, workload, container, volumes)
    if before:
        spec["initContainers"] = list(before)
    base = {"metadata": {"labels": dict(labels)}, "spec": spec}
    template = overlay(base, patch or {}, path)
    check_template(template, path, container["name"])
    metadata = template.get("metadata", {})
    own_labels = {**metadata.get("labels", {}), **labels}
    return {**template, "metadata": {**metadata, "labels": own_labels}}


def _pod_spec(scene: Scene, workload: Workload, container: Manifest, volumes: list[Manifest]) -> Manifest:
    site = scene.site
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if site.fs_group is not None:
        security |= {"fsGroup": site.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    spec: Manifest = {
        "serviceAccountName": naming.account_name(scene.pipeline.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": workload.grace_seconds + MARGIN_SECONDS,
        # The first process of a container loses a SIGTERM that comes before its interpreter can handle it, and its pod
        # would then stay for all of the grace. In a namespace that the pod shares, it is not the first one.
        "shareProcessNamespace": True,
        "securityContext": security,
    }
    if site.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in site.pull_secrets]
    if workload.nodes == 1:
        spec["topologySpreadConstraints"] = [_spread(scene, workload)]
    scratch = [{"name": "tmp", "emptyDir": {}}, *volumes, *credentials(scene).volumes]
    return {**spec, "containers": [container], "volumes": scratch}


def _spread(scene: Scene, workload: Workload) -> Manifest:
    selector = naming.part_selector(scene.pipeline.name, workload.component)
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector},
    }


def container_of(
    scene: Scene,
    workload: Workload,
    name: str,
    image: str,
    argv: list[str],
    ports: Mapping[str, int],
    env: list[Manifest],
    mounts: list[Manifest],
    resources: Manifest,
) -> Manifest:
    """The one container; `argv` may hold `$(NAME)` for a variable, literals come escaped."""
    found: Manifest = {
        "name": name,
        "image": image,
        "imagePullPolicy": scene.site.pull_policy,
        "command": argv[:3],
        "args": argv[3:],
        "env": env,
        "ports": [{"name": n, "containerPort": number, "protocol": "TCP"} for n, number in ports.items()],
        "resources": resources,
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # the container's own
            *mounts,
            *credentials(scene).mounts,
        ],
        "securityContext": LOCKED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return found | (_probes(workload) if workload.probe else {})


def _probes(workload: Workload) -> Manifest:
    """Alive is asked of the event loop, ready of the membership; a long load is not ready, but alive."""
    if workload.probe is None:
        return {}
    port, period = workload.probe.port, workload.probe.period_seconds
    live = {"httpGet": {"path": "/live", "port": port}}
    return {
        "startupProbe": {**live, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": START_SECONDS},
        "livenessProbe": {**live, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {
            "httpGet": {"path": workload.probe.path, "port": port},
            "periodSeconds": period,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
    }


def environment(scene: Scene, values: Mapping[str, str], own: list[Manifest]) -> list[Manifest]:
    """Variables by name: the plan's, the credentials', then `own`, which may say `$(NAME)` of those before."""
    found: dict[str, Manifest] = {name: {"name": name, "value": value} for name, value in values.items()}
    for variable in (*credentials(scene).env, *own):
        found.pop(variable["name"], None)
        found[variable["name"]] = variable
    return list(found.values())


def resources_of(
    spec: ResourceSpec | None, defaults: Mapping[str, str], accelerators: tuple[str, int] | None = None
) -> Manifest:
    """What the user asks for, else small requests; devices count as request and limit."""
    requests = {k: str(v) for k, v in (spec.requests if spec else {}).items()}
    limits = {k: str(v) for k, v in (spec.limits if spec else {}).items()}
    for name, amount in defaults.items():
        if name not in limits:
            requests.setdefault(name, amount)
    if accelerators:
        name, count = accelerators
        amount = limits.get(name) or requests.get(name) or str(count)
        requests[name] = limits[name] = amount
    return {k: v for k, v in {"requests": requests, "limits": limits}.items() if v}


def literal(text: str) -> str:
    """Kubernetes would put a variable in the place of `$(NAME)`."""
    return text.replace("$(", "$$(")
