"""The pod template of a workload: one container, locked down as PSS `restricted` asks, patched by the user last.

Every pod runs without the right to ask the API server, with a read-only root file system,
and ends by SIGTERM alone: frontend and worker drain by themselves (they leave
membership, refuse late arrivals retryably, finish their streams), so there is no preStop.

The container gets the credentials of etcd and NATS as a folder of files out of a Secret, never as a value. The runtime
reads the folder at each sign-in (`ETCD_AUTH_DIR`, `NATS_AUTH_DIR`) and knows the files by name, so a template doesn't
depend on which of them there are, and new contents need no new pod. What the platform gives stands in the pipeline's
own Secret, under keys that begin with the server's name; a Secret that the pipeline names is mounted as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dynamo.operator.api.fields import ResourceSpec
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import ClusterSettings, Manifest, RenderContext, RenderError
from dynamo.operator.manifests.user_pod_template import check_template, overlay, refusals
from dynamo.operator.plan.workload import Workload

CACHE = "/var/cache/dynamo"
MARGIN_SECONDS = 20
"""Beyond the streams' grace: draining (15 s at most), leaving etcd and NATS, closing the engine."""
LOCKED: Manifest = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod_template(
    context: RenderContext,
    workload: Workload,
    container: Manifest,
    volumes: list[Manifest],
    labels: Mapping[str, str],
    patch: Mapping[str, Any] | None,
    path: str,
    before: Sequence[Manifest] = (),
    annotations: Mapping[str, str] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Manifest:
    """Return `container` in its pod, after those that end before it starts.

    `fields` are those of the pod's spec that the pipeline names. `patch` is the user's podTemplate, which stands at
    `path` in the pipeline.
    """
    spec = _pod_spec(context, workload, container, volumes) | dict(fields or {})
    if before:
        spec["initContainers"] = list(before)
    metadata = {"labels": dict(labels)} | ({"annotations": dict(annotations)} if annotations else {})
    base = {"metadata": metadata, "spec": spec}
    template = overlay(base, patch or {}, path)
    check_template(template, path, container["name"])
    _check_policy(context, template, path)
    _drop_our_limit(template, container, patch or {})
    laid = template.get("metadata", {})
    own_labels = {**laid.get("labels", {}), **labels}
    return {**template, "metadata": {**laid, "labels": own_labels}}


def _check_policy(context: RenderContext, template: Manifest, path: str) -> None:
    cluster = context.cluster
    account = naming.account_name(context.pipeline.name)
    refused = refusals(template, cluster.pod_template_policy, account, cluster.service_accounts)
    if refused:
        others = "; ".join(f"{path}.{place} {why}" for place, why in refused[1:])
        place, why = refused[0]
        policy = f"refused by the platform's pipelines.podTemplatePolicy={cluster.pod_template_policy}"
        raise RenderError(f"{path}.{place}", f"{why}{'; ' + others if others else ''} ({policy}): remove it")


def _drop_our_limit(template: Manifest, container: Manifest, patch: Mapping[str, Any]) -> None:
    """Drop our memory limit where the user's template asks for memory and names no limit."""
    for container_patch in (patch.get("spec") or {}).get("containers") or []:
        asked = container_patch.get("resources") or {} if container_patch.get("name") == container["name"] else {}
        if "memory" in (asked.get("requests") or {}) and "memory" not in (asked.get("limits") or {}):
            ours = next(c for c in template["spec"]["containers"] if c["name"] == container["name"])["resources"]
            ours["limits"] = {k: v for k, v in ours.get("limits", {}).items() if k != "memory"}


def _pod_spec(context: RenderContext, workload: Workload, container: Manifest, volumes: list[Manifest]) -> Manifest:
    cluster = context.cluster
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if cluster.fs_group is not None:
        security |= {"fsGroup": cluster.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    spec: Manifest = {
        "serviceAccountName": naming.account_name(context.pipeline.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": workload.grace_seconds + MARGIN_SECONDS,
        # The first process of a container loses a SIGTERM that comes before its interpreter can handle it, and its pod
        # would then stay for all of the grace. In a namespace that the pod shares, it is not the first one.
        "shareProcessNamespace": True,
        "securityContext": security,
    }
    if cluster.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in cluster.pull_secrets]
    if workload.nodes == 1:
        spec["topologySpreadConstraints"] = [_spread(context, workload)]
    scratch = [{"name": "tmp", "emptyDir": {}}, *volumes, *credentials(context).volumes]
    return {**spec, "containers": [container], "volumes": scratch}


def _spread(context: RenderContext, workload: Workload) -> Manifest:
    selector = naming.part_selector(context.pipeline.name, workload.component)
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector},
    }


def container_of(
    context: RenderContext,
    workload: Workload,
    name: str,
    image: str,
    argv: list[str],
    ports: Mapping[str, int],
    env: list[Manifest],
    mounts: list[Manifest],
    resources: Manifest,
) -> Manifest:
    """Return the one container; `argv` may hold `$(NAME)` for a variable, literals come escaped."""
    container: Manifest = {
        "name": name,
        "image": image,
        "imagePullPolicy": context.cluster.pull_policy,
        "command": argv[:3],
        "args": argv[3:],
        "env": env,
        "ports": [{"name": n, "containerPort": number, "protocol": "TCP"} for n, number in ports.items()],
        "resources": resources,
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # the container's own
            *mounts,
            *credentials(context).mounts,
        ],
        "securityContext": LOCKED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return container | (_probes(workload) if workload.probe else {})


def _probes(workload: Workload) -> Manifest:
    """Return the probes: the event loop is asked for live, the membership for ready, so a long load is live."""
    if workload.probe is None:
        return {}
    port, period = workload.probe.port, workload.probe.period_seconds
    live = {"httpGet": {"path": "/live", "port": port}}
    return {
        "startupProbe": {**live, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": workload.start_seconds},
        "livenessProbe": {**live, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {
            "httpGet": {"path": workload.probe.path, "port": port},
            "periodSeconds": period,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
    }


def environment(context: RenderContext, values: Mapping[str, str], own: list[Manifest]) -> list[Manifest]:
    """Return variables by name: the plan's, those of traces and of credentials, then `own`.

    `own` may use `$(NAME)` of those before, and replaces one of the same name.
    """
    tracing = context.cluster.tracing
    shared = {**values, **(tracing.environment(context.kubernetes_namespace, context.pipeline.name) if tracing else {})}
    variables: dict[str, Manifest] = {name: {"name": name, "value": value} for name, value in shared.items()}
    for variable in (*credentials(context).env, *own):
        variables.pop(variable["name"], None)
        variables[variable["name"]] = variable
    return list(variables.values())


def resources_of(
    spec: ResourceSpec | None,
    defaults: Mapping[str, str],
    accelerators: tuple[str, int] | None = None,
    memory_limit: str | None = None,
) -> Manifest:
    """Return what the user asks for, else small requests; devices count as request and limit.

    The limit of memory holds where the user says nothing of memory.
    """
    requests = {k: str(v) for k, v in (spec.requests if spec else {}).items()}
    limits = {k: str(v) for k, v in (spec.limits if spec else {}).items()}
    if memory_limit and "memory" not in limits and "memory" not in requests:
        requests["memory"] = defaults.get("memory", memory_limit)
        limits["memory"] = memory_limit
    for name, amount in defaults.items():
        if name not in limits:
            requests.setdefault(name, amount)
    if accelerators:
        name, count = accelerators
        amount = limits.get(name) or requests.get(name) or str(count)
        requests[name] = limits[name] = amount
    return {k: v for k, v in {"requests": requests, "limits": limits}.items() if v}


def literal(text: str) -> str:
    """Escape a text: Kubernetes would put a variable in the place of `$(NAME)`."""
    return text.replace("$(", "$$(")


_ROOT: Final = "/etc/dynamo/credentials"
ETCD_FILES: Final = ("username", "password", "ca.crt", "tls.crt", "tls.key")
NATS_FILES: Final = ("username", "password", "token", "nkey", "user.creds", "ca.crt", "tls.crt", "tls.key")
"""What the runtime looks for; a test holds both together."""
_MODE: Final = 0o440


@dataclass(frozen=True)
class Credentials:
    """Parts of a container that give it the credentials."""

    env: tuple[dict[str, Any], ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()


def credentials(context: RenderContext) -> Credentials:
    """Return them for both servers; empty where they need none."""
    runtime = context.pipeline.spec.runtime
    etcd = _of("etcd", "ETCD_AUTH_DIR", _source(context, "etcd", runtime.etcd.secret, ETCD_FILES))
    nats = _of("nats", "NATS_AUTH_DIR", _source(context, "nats", runtime.nats.secret, NATS_FILES))
    return Credentials(etcd.env + nats.env, etcd.volumes + nats.volumes, etcd.mounts + nats.mounts)


def given(pipeline: DynamoPipeline, cluster: ClusterSettings) -> frozenset[str]:
    """Return the servers for which the platform gives credentials: those that the pipeline doesn't name itself."""
    runtime = pipeline.spec.runtime
    etcd = cluster.etcd_sign_in and not (runtime.etcd.endpoints or runtime.etcd.secret)
    nats = cluster.nats_sign_in and not (runtime.nats.url or runtime.nats.secret)
    return frozenset(name for name, yes in (("etcd", etcd), ("nats", nats)) if yes)


def secret_key(server: str, file: str) -> str:
    """Return where a file of a server stands in the pipeline's own Secret."""
    return f"{server}.{file}"


def _source(context: RenderContext, server: str, named: str | None, files: Iterable[str]) -> dict[str, Any] | None:
    if named:
        return {"secretName": named, "defaultMode": _MODE}
    if server not in given(context.pipeline, context.cluster):
        return None
    items = [{"key": secret_key(server, file), "path": file} for file in files]
    name = naming.credentials_name(context.pipeline.name)
    return {"secretName": name, "items": items, "defaultMode": _MODE, "optional": True}


def _of(server: str, variable: str, source: dict[str, Any] | None) -> Credentials:
    if source is None:
        return Credentials()
    name, folder = f"{server}-credentials", f"{_ROOT}/{server}"
    mount = {"name": name, "mountPath": folder, "readOnly": True}
    return Credentials(({"name": variable, "value": folder},), ({"name": name, "secret": source},), (mount,))
