"""The workers of one revision: their StatefulSets, the files that they read, and the container that loads their model.

The StatefulSet never rolls by itself (`OnDelete`): a new revision is a new StatefulSet, and
what an upgraded operator writes differently into an old one reaches pods only when they
start anew. Where several pods are one worker, each such group has a StatefulSet of its own, and
a headless Service, so that rank 0 has a name before it is ready.

What the pipeline says goes into a ConfigMap per revision, what users have is mounted. Engine arguments become a
file too: in an argv they would show up in every `describe` as one long line, and Kubernetes would expand what looks
like a variable in them.

An init container loads the model, so that no probe's patience limits a download. With a claim (`spec.model.cache`)
all workers share its folder, where the hub's library locks each file while one of them loads it: the others wait, and
find it. Without one, every pod loads into a volume of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dynamo.operator.api.v1alpha1 import Component, Engine
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import Manifest, RenderContext
from dynamo.operator.manifests.placement import (
    container_claims,
    gang_annotations,
    pod_fields,
    queue_labels,
    worker_image,
)
from dynamo.operator.manifests.pod import CACHE, LOCKED, container_of, environment, literal, pod_template, resources_of
from dynamo.operator.manifests.server import server_container, server_mounts, server_volumes
from dynamo.operator.plan.servers import has_sidecar
from dynamo.operator.plan.workload import Argument, Placement, Workload, resolve

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
    component = context.component(workload)
    labels = naming.revision_labels(pipeline, workload) | queue_labels(component)
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
    head = naming.child(
        context,
        api_version="apps/v1",
        kind="StatefulSet",
        name=name,
        labels=labels,
        annotations=gang_annotations(component),
    )
    return {**head, "spec": spec}


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
        image=worker_image(context.cluster, component),
        argv=argv,
        ports=ports,
        env=_environment(context, workload),
        mounts=mounts,
        resources=resources_of(None, _REQUESTS) if has_sidecar(component) else _resources(component, workload),
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
        annotations=gang_annotations(component),
        fields=pod_fields(component, naming.part_selector(context.pipeline.name, workload.component)),
        patch=component.pod_template,
        path=f"spec.components[{index}].podTemplate",
        before=[*loaders(context, workload), *_server(context, workload, mounts)],
    )


def _server(context: RenderContext, workload: Workload, mounts: list[Manifest]) -> list[Manifest]:
    """Return the container of the component's own server, which gets what an engine in the worker would get."""
    component = context.component(workload)
    if not has_sidecar(component):
        return []
    return [
        server_container(
            context,
            workload,
            resources=_resources(component, workload),
            env=list(variables(context, workload)),
            mounts=server_mounts(mounts),
        )
    ]


def _resources(component: Component, workload: Workload) -> Manifest:
    is_light = component.engine in _LIGHT
    resources = resources_of(
        component.resources,
        _LIGHT_REQUESTS if is_light else _REQUESTS,
        workload.accelerators,
        memory_limit=_LIGHT_LIMIT if is_light else None,
    )
    claims = container_claims(component)
    return resources | ({"claims": claims} if claims else {})


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
    cache = context.pipeline.spec.model.cache
    volumes: list[Manifest] = [{"name": "cache", "emptyDir": {}}]
    if cache is not None:
        claim = {"claimName": cache.claim_name or naming.cache_name(context.pipeline.name)}
        volumes = [{"name": "cache", "persistentVolumeClaim": claim}]
    mounts: list[Manifest] = [{"name": "cache", "mountPath": CACHE}]
    component = context.component(workload)
    has_devices = bool(workload.accelerators or component.resource_claims)
    shared = component.shared_memory or (SHARED_MEMORY if has_devices else None)
    if shared:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(shared)}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # devices exchange tensors through it
    if has_sidecar(component):
        volumes += server_volumes(component)
    return [*volumes, *files.volumes], [*mounts, *files.mounts]


_OURS = "/etc/dynamo/files"
_THEIRS = "/etc/dynamo/user"
_MODEL = "/models/source"
_ENGINE_ARGS, _ENGINE_ARGS_FILE = "--engine-args", "engine-args.json"


@dataclass(frozen=True)
class WorkerFiles:
    """Files that a worker reads, and where it finds them."""

    argv: tuple[Argument, ...]
    """The plan's, with files in the place of contents."""
    contents: Mapping[str, str]
    paths: Mapping[str, str]
    volumes: tuple[Manifest, ...]
    mounts: tuple[Manifest, ...]


def worker_files(context: RenderContext, workload: Workload) -> WorkerFiles:
    """Return everything about the files of one revision."""
    contents = {file.name: file.content for file in workload.files if file.content is not None}
    paths = {name: f"{_OURS}/{name}" for name in contents}
    argv = _without_engine_args(workload.argv, contents)
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    if contents:
        config_map = {"name": naming.revision_name(context.pipeline.name, workload)}
        _mount(volumes, mounts=mounts, name="files", source={"configMap": config_map}, path=_OURS)
    for file in workload.files:
        if file.config_map is not None:
            _mount(
                volumes,
                mounts=mounts,
                name=file.name,
                source={"configMap": {"name": file.config_map}},
                path=f"{_THEIRS}/{file.name}",
            )
            paths[file.name] = f"{_THEIRS}/{file.name}/{file.key}"
    claim, _, path = (context.pipeline.spec.model.source or "").removeprefix("pvc://").partition("/")
    if (context.pipeline.spec.model.source or "").startswith("pvc://"):
        source: Manifest = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        _mount(volumes, mounts=mounts, name="model-source", source=source, path=_MODEL)
        argv = tuple(f"{_MODEL}/{path}" if a == context.pipeline.spec.model.source else a for a in argv)
    return WorkerFiles(argv, contents=contents, paths=paths, volumes=tuple(volumes), mounts=tuple(mounts))


def files_config_map(context: RenderContext, workload: Workload) -> list[Manifest]:
    """Return the ConfigMap of a revision, if it has files; it never changes, so nodes needn't watch it."""
    contents = worker_files(context, workload).contents
    if not contents:
        return []
    name = naming.revision_name(context.pipeline.name, workload)
    labels = naming.revision_labels(context.pipeline.name, workload)
    return [
        {
            **naming.child(context, api_version="v1", kind="ConfigMap", name=name, labels=labels),
            "immutable": True,
            "data": dict(contents),
        }
    ]


def _without_engine_args(argv: tuple[Argument, ...], contents: dict[str, str]) -> tuple[Argument, ...]:
    if _ENGINE_ARGS not in argv:
        return argv
    index = argv.index(_ENGINE_ARGS) + 1
    contents[_ENGINE_ARGS_FILE] = str(argv[index])
    return (*argv[:index], f"@{_OURS}/{_ENGINE_ARGS_FILE}", *argv[index + 1 :])


def _mount(volumes: list[Manifest], mounts: list[Manifest], name: str, source: Manifest, path: str) -> None:
    volumes.append({"name": name, **source})
    mounts.append({"name": name, "mountPath": path, "readOnly": True})


LOADER = "model"
TOKEN, OFFLINE = "HF_TOKEN", "HF_HUB_OFFLINE"
_LOADER_REQUESTS = {"cpu": "100m", "memory": "256Mi"}


def loaders(context: RenderContext, workload: Workload) -> list[Manifest]:
    """Return the init container if there is something to load. It has the token and the user's variables alone."""
    if not workload.fetch:
        return []
    component = context.component(workload)
    container: Manifest = {
        "name": LOADER,
        "image": worker_image(context.cluster, component),
        "imagePullPolicy": context.cluster.pull_policy,
        "command": list(workload.fetch[:3]),
        "args": [literal(argument) for argument in workload.fetch[3:]],
        "env": list(variables(context, workload)),
        "resources": {"requests": dict(_LOADER_REQUESTS)},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # the container's own
            {"name": "cache", "mountPath": CACHE},
        ],
        "securityContext": LOCKED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return [container | ({"envFrom": list(component.env_from)} if component.env_from else {})]


def variables(context: RenderContext, workload: Workload, *, loads: bool = True) -> Iterator[Manifest]:
    """Yield where the model goes and who asks for it; then the user's own, which win and may name those before.

    A container that `loads` nothing, since another has, gets no token: code of users' runs in it. It takes what is
    in the cache, since the hub would not even tell it of a model for which a token is needed.
    """
    component = context.component(workload)
    theirs = {variable.name for variable in component.env}
    withheld = not loads and any(secret.variable == TOKEN for secret in workload.secrets) and TOKEN not in theirs
    if withheld and OFFLINE not in theirs:
        yield {"name": OFFLINE, "value": "1"}
    for name, value in (("HF_HOME", f"{CACHE}/huggingface"), ("HOME", "/tmp")):  # the container's own
        if name not in theirs:
            yield {"name": name, "value": value}
    for secret in workload.secrets:
        if secret.variable not in theirs and (loads or secret.variable != TOKEN):
            reference = {"name": secret.secret, "key": secret.key}
            yield {"name": secret.variable, "valueFrom": {"secretKeyRef": reference}}
    for variable in component.env:
        given = {"value": variable.value or ""} if variable.value_from is None else {"valueFrom": variable.value_from}
        yield {"name": variable.name, **given}
