"""What a pipeline needs to run, as a pure function: `plan(pipeline, environment) -> Plan`.

Called by `dynamo up` and by the reconciler, so that a laptop and a cluster run the same
processes. A test parses every argv made here with the parsers of frontend and worker.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dynamo.operator.api import placement, server
from dynamo.operator.api.frontend import FrontendSpec, RouterSpec
from dynamo.operator.api.rules import CPU_ENGINES
from dynamo.operator.api.v1alpha1 import Component, DynamoPipeline, ModelSpec
from dynamo.operator.api.v1alpha1 import Rollout as RolloutSpec
from dynamo.operator.plan.servers import engine_arguments
from dynamo.operator.plan.workload import (
    START_SECONDS,
    Argument,
    FileMount,
    LeaderAddress,
    NodeRank,
    PathOf,
    Plan,
    Port,
    PortOf,
    Probe,
    Rollout,
    SecretRef,
    Workload,
)

ENDPOINT = "generate"
SYSTEM_PORT = 9090
GRACE_SECONDS = 60
"""In a cluster, where neither pipeline nor platform sets it. A pod without streams ends at once, but the deletion
of a namespace waits for half of the longest grace in it, whatever its pods do."""
LOCAL_GRACE_SECONDS = 30
REVISION_DIGITS = 8
KEPT = {
    "resources",
    "pod_template",
    "env",
    "env_from",
    "accelerator",
    "shared_memory",
    *placement.FIELDS,
    *server.FIELDS,
}
"""Fields that reach a pod without showing in its argv or environment."""


@dataclass(frozen=True)
class Environment:
    """The place where a plan is carried out."""

    etcd: tuple[str, ...]
    nats: str
    local: bool = False
    """On a laptop: loopback, ports picked by the executor, the Dynamo namespace is the pipeline's name."""
    http_host: str = "0.0.0.0"
    kubernetes_namespace: str = "default"
    grace_seconds: int = GRACE_SECONDS


def plan(pipeline: DynamoPipeline, environment: Environment) -> Plan:
    """Return every workload of a valid pipeline."""
    namespace = dynamo_namespace(pipeline, environment)
    if pipeline.spec.graceful_shutdown_timeout_seconds is not None:
        environment = replace(environment, grace_seconds=pipeline.spec.graceful_shutdown_timeout_seconds)
    shared = (("DYN_NAMESPACE", namespace), *_connections(pipeline, environment))
    frontend = _frontend(pipeline.spec.frontend, namespace, shared, environment)
    workers = [
        _worker(pipeline, component=component, namespace=namespace, shared=shared, environment=environment)
        for component in pipeline.spec.components
    ]
    return Plan(
        pipeline=pipeline.name,
        namespace=namespace,
        model=model_name(pipeline),
        workloads=tuple(_with_revision(w, pipeline) for w in (frontend, *workers)),
    )


def dynamo_namespace(pipeline: DynamoPipeline, environment: Environment) -> str:
    """Return the namespace; pipelines on one etcd never meet, as no Kubernetes name has an underscore."""
    if pipeline.spec.namespace:
        return pipeline.spec.namespace
    if environment.local:
        return pipeline.name
    return f"{pipeline.metadata.namespace or environment.kubernetes_namespace}_{pipeline.name}"


def model_name(pipeline: DynamoPipeline) -> str:
    """Return the served name: as asked, else the repository or file, else (nothing to load) the pipeline."""
    model = pipeline.spec.model
    if model.name or not model.source:
        return model.name or pipeline.name
    scheme, separator, rest = model.source.partition("://")
    if separator and scheme == "hf":
        repository = [part for part in rest.partition("@")[0].split("/") if part][:2]
        return "/".join(repository).partition(":")[0]
    last = (rest if separator else model.source).rstrip("/").rpartition("/")[2]
    return last.removesuffix(".gguf") or pipeline.name


def _connections(pipeline: DynamoPipeline, environment: Environment) -> Iterator[tuple[str, str]]:
    runtime = pipeline.spec.runtime
    yield "ETCD_ENDPOINTS", ",".join(runtime.etcd.endpoints or environment.etcd)
    yield "NATS_SERVER", runtime.nats.url or environment.nats


def _frontend(
    spec: FrontendSpec, namespace: str, shared: tuple[tuple[str, str], ...], environment: Environment
) -> Workload:
    argv: list[Argument] = ["python", "-m", "dynamo.frontend"]
    argv += ["--http-host", environment.http_host, "--http-port", PortOf("http")]
    argv += ["--namespace", namespace, "--router-mode", spec.router.mode.value]
    argv += ["--migration-limit", str(spec.migration_limit)]
    argv += ["--worker-wait-timeout-secs", _number(spec.worker_wait_timeout_seconds)]
    if not spec.console:
        argv.append("--no-console")
    ports = [Port("http", spec.port, spec.port)]
    probe = Probe("http", "/health")
    if spec.workers > 1:
        argv += ["--workers", str(spec.workers)]
    if spec.workers > 1 or not environment.local:
        # The kubelet's questions must be answered however many clients hold the public port.
        argv += ["--system-port", PortOf("system")]
        ports.append(Port("system", None, SYSTEM_PORT))
        probe = Probe("system", "/health")
    argv += [*_kv_routing(spec), "--graceful-shutdown-timeout-secs", str(environment.grace_seconds)]
    return Workload(
        component="frontend",
        revision="",
        argv=tuple(argv),
        environment=shared,
        replicas=spec.replicas,
        ports=tuple(ports),
        probe=probe,
        rollout=Rollout(max_surge=1, max_unavailable=0),
        secrets=tuple(_frontend_secrets(spec)),
        grace_seconds=environment.grace_seconds,
        is_frontend=True,
    )


def _frontend_secrets(spec: FrontendSpec) -> Iterator[SecretRef]:
    """Yield the keys' Secret: on a laptop a variable names the file, in a cluster `manifests.frontend` mounts it."""
    if spec.api_keys:
        yield SecretRef("DYN_API_KEYS_FILE", spec.api_keys.secret, spec.api_keys.key, "spec.frontend.apiKeys")


def _kv_routing(spec: FrontendSpec) -> Iterator[str]:
    """Yield only what differs from the frontend's own defaults."""
    router = spec.router
    if router.prefill_load_scale != RouterSpec().prefill_load_scale:
        yield from ("--router-prefill-load-scale", _number(router.prefill_load_scale))
    if router.temperature:
        yield from ("--router-temperature", _number(router.temperature))
    if not router.use_kv_events:
        yield "--no-use-kv-events"
    if router.busy_threshold is not None:
        yield from ("--busy-threshold", _number(router.busy_threshold))


def _worker(
    pipeline: DynamoPipeline,
    component: Component,
    namespace: str,
    shared: tuple[tuple[str, str], ...],
    environment: Environment,
) -> Workload:
    model = pipeline.spec.model
    replicas = pipeline.spec.replicas if component.replicas is None else component.replicas
    files = tuple(_files(model, component))
    return Workload(
        component=component.name,
        revision="",
        argv=(*_worker_argv(pipeline, component, namespace, environment),),
        environment=(*shared, *((e.name, e.value or "") for e in component.env if e.value_from is None)),
        replicas=replicas,
        nodes=component.nodes,
        accelerators=devices_of(component),
        ports=(Port("system", None, SYSTEM_PORT),),
        probe=Probe("system", "/health"),
        files=files,
        secrets=tuple(_secrets(model, component)),
        fetch=_fetch(model, component),
        rollout=_rollout(component.rollout, replicas),
        grace_seconds=environment.grace_seconds,
        start_seconds=component.startup_timeout_seconds or START_SECONDS,
    )


def _worker_argv(
    pipeline: DynamoPipeline, component: Component, namespace: str, environment: Environment
) -> Iterator[Argument]:
    model = pipeline.spec.model
    yield from ("python", "-m", "dynamo.worker", "--engine", component.engine.value)
    if model.source:
        yield from ("--model-path", model.source.removeprefix("file://"))
    yield from ("--model-name", model_name(pipeline))
    yield from ("--endpoint", f"dyn://{namespace}.{component.name}.{ENDPOINT}", "--role", component.role.value)
    if model.context_length:
        yield from ("--context-length", str(model.context_length))
    if component.kv_cache_block_size:
        yield from ("--kv-cache-block-size", str(component.kv_cache_block_size))
    if model.chat_template:
        yield from ("--chat-template", PathOf("chat-template"))
    if model.tool_call_parser:
        yield from ("--dyn-tool-call-parser", model.tool_call_parser)
    if model.reasoning_parser:
        yield from ("--dyn-reasoning-parser", model.reasoning_parser)
    yield from _parallelism(component)
    if arguments := engine_arguments(component, local=environment.local):
        yield from ("--engine-args", _compact(arguments))
    if component.python:
        python_file: Argument = PathOf("python") if component.python.config_map else component.python.file
        yield from ("--python-file", python_file, "--python-mode", component.python.mode)
    yield from ("--system-host", "127.0.0.1" if environment.local else "0.0.0.0", "--system-port", PortOf("system"))
    yield from ("--graceful-shutdown-timeout-secs", str(environment.grace_seconds))


def _fetch(model: ModelSpec, component: Component) -> tuple[str, ...]:
    if not (model.source or "").startswith("hf://"):
        return ()
    argv = ("python", "-m", "dynamo.worker.fetch", "--engine", component.engine.value)
    return (*argv, "--model-path", model.source or "")


def _parallelism(component: Component) -> Iterator[Argument]:
    if component.tensor_parallel_size > 1:
        yield from ("--tensor-parallel-size", str(component.tensor_parallel_size))
    if component.nodes > 1:
        yield from ("--num-nodes", str(component.nodes), "--node-rank", NodeRank(), "--leader-addr", LeaderAddress())


def _files(model: ModelSpec, component: Component) -> Iterator[FileMount]:
    if model.chat_template:
        yield FileMount("chat-template", content=model.chat_template)
    if component.python and component.python.config_map:
        yield FileMount("python", config_map=component.python.config_map, key=component.python.file)


def _secrets(model: ModelSpec, component: Component) -> Iterator[SecretRef]:
    if model.token_secret:
        yield SecretRef("HF_TOKEN", model.token_secret.name, model.token_secret.key, "spec.model.tokenSecret")
    for index, variable in enumerate(component.env):
        reference = (variable.value_from or {}).get("secretKeyRef")
        if isinstance(reference, dict):
            field = f"env[{index}].valueFrom of component {component.name}"
            yield SecretRef(variable.name, str(reference.get("name", "")), str(reference.get("key", "")), field)


def devices_of(component: Component) -> tuple[str, int] | None:
    """Return the resource name of the devices that a pod of it asks for, and how many; None where it asks for none."""
    resource = component.accelerator.resource if component.accelerator else "nvidia.com/gpu"
    count = component.accelerator.count if component.accelerator else None
    if count is None:
        claimed = bool(component.resource_claims)
        wanted = component.accelerator is not None or not (claimed or component.engine in CPU_ENGINES)
        count = component.tensor_parallel_size // component.nodes if wanted else 0
    return (resource, count) if count else None


def _rollout(spec: RolloutSpec, replicas: int) -> Rollout:
    """Round a surge up and a gap down, as in a Deployment; both 0 would never move."""
    if spec.strategy == "Recreate":
        return Rollout(max_surge=0, max_unavailable=replicas, recreate=True)
    if spec.max_surge is None and spec.max_unavailable is None:
        return Rollout(max_surge=1, max_unavailable=0) if replicas <= 1 else Rollout(max_surge=0, max_unavailable=1)
    surge = _share(spec.max_surge or 0, replicas, round_up=True)
    missing = _share(spec.max_unavailable or 0, replicas, round_up=False)
    return Rollout(max_surge=surge, max_unavailable=missing if surge or missing else 1)


def _share(value: int | str, replicas: int, *, round_up: bool) -> int:
    if isinstance(value, int):
        return value
    part = int(value.removesuffix("%")) * replicas / 100
    return math.ceil(part) if round_up else math.floor(part)


def _with_revision(workload: Workload, pipeline: DynamoPipeline) -> Workload:
    """Name the workload after what would need new processes: not how many there are, nor how they roll."""
    component = next((c for c in pipeline.spec.components if c.name == workload.component), None)
    spec = pipeline.spec.frontend if workload.is_frontend or component is None else component
    kept = spec.model_dump(mode="json", include=KEPT)
    matters = [
        [repr(argument) for argument in workload.argv],
        workload.environment,
        [(f.name, f.content, f.config_map, f.key) for f in workload.files],
        [(s.variable, s.secret, s.key) for s in workload.secrets],
        [workload.nodes, workload.accelerators, workload.grace_seconds],
        [(p.name, p.number) for p in workload.ports],
        None if workload.is_frontend else pipeline.spec.model.model_dump(mode="json", include={"cache"}),
        pipeline.spec.restart,
        kept,
    ]
    digest = hashlib.sha256(_compact(matters).encode()).hexdigest()
    return replace(workload, revision=digest[:REVISION_DIGITS])


def _canonical(value: Any) -> Any:
    """Return a value as the API server gives it back: 1.0 is 1, and null is absent."""
    if isinstance(value, dict):
        return {k: _canonical(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_canonical(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _compact(value: Any) -> str:
    """Return JSON that is the same for the same meaning: maps have no order in the API server."""
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _number(value: float) -> str:
    return repr(_canonical(value))
