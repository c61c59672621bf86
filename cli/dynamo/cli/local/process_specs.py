"""From a plan's workloads to single local processes, and what a plan asks that a laptop can't give.

Pure: the executor hands in ports and folders, and starts what comes out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dynamo.cli.local.ports import LOOPBACK
from dynamo.cli.local.state import FRONTEND, NODE, WORKER
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.plan.rollout import Start, converge
from dynamo.operator.plan.servers import has_sidecar
from dynamo.operator.plan.workload import Argument, Placement, Plan, PortOf, Workload, resolve

INFRA = "infra"
DRAIN_VARIABLE = "DYN_HTTP_SHUTDOWN_DELAY_SECS"


@dataclass(frozen=True)
class PartSpec:
    """One process to run."""

    name: str
    kind: str
    pipeline: str
    component: str
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    revision: str = ""
    ports: tuple[tuple[str, int], ...] = ()
    grace: float = 35.0


@dataclass(frozen=True)
class Ground:
    """Ground that a pipeline's processes stand on."""

    http_ports: tuple[int, ...]
    """One per frontend; 0 lets it pick."""
    files: Path
    pick_port: Callable[[], int]


def parts_of(plan: Plan, ground: Ground) -> list[PartSpec]:
    """Return every process of a plan, frontends first."""
    starts = [action for action in converge(plan, ()) if isinstance(action, Start)]
    return [part for start in starts for part in _parts(plan, start.workload, start.replicas, ground)]


def _parts(plan: Plan, workload: Workload, replicas: int, ground: Ground) -> Iterator[PartSpec]:
    for replica in range(replicas):
        ports = _ports(workload, replica, ground)
        leader = f"{LOOPBACK}:{ground.pick_port()}" if workload.nodes > 1 else ""
        for rank in range(workload.nodes):
            placement = Placement(ports, _paths(workload, ground.files), str(rank), leader)
            yield PartSpec(
                name=_name(workload, replica, rank),
                kind=FRONTEND if workload.is_frontend else NODE if rank else WORKER,
                pipeline=plan.pipeline,
                component=workload.component,
                argv=_argv(workload.argv, placement),
                environment=_environment(workload),
                revision=workload.revision,
                ports=tuple(ports.items()),
                grace=workload.grace_seconds + 5.0,
            )


def _argv(argv: tuple[Argument, ...], placement: Placement) -> tuple[str, ...]:
    """Return the command with this interpreter in the place of `python`.

    That an unactivated environment works too.
    """
    return (sys.executable, *resolve(argv, placement)[1:])


def _ports(workload: Workload, replica: int, ground: Ground) -> dict[str, int]:
    if not workload.is_frontend:
        return {port.name: port.number or 0 for port in workload.ports}
    ports = {"http": ground.http_ports[replica]}
    if PortOf("system") in workload.argv:
        ports["system"] = ground.pick_port()
    return ports


def _paths(workload: Workload, folder: Path) -> dict[str, str]:
    return {file.name: str(folder / file.name) for file in workload.files}


def _environment(workload: Workload) -> tuple[tuple[str, str], ...]:
    """Return the variables. No proxy has to learn that a frontend on a laptop ends, so it needn't go on accepting."""
    return (*workload.environment, (DRAIN_VARIABLE, "0")) if workload.is_frontend else workload.environment


def _name(workload: Workload, replica: int, rank: int) -> str:
    if workload.is_frontend:
        return "frontend" if workload.replicas == 1 else f"frontend-{replica}"
    return f"{workload.component}-{replica}" + (f"-{rank}" if workload.nodes > 1 else "")


def files_of(plan: Plan) -> dict[str, str]:
    """Return the files that processes of the plan read, with their content."""
    return {file.name: file.content for w in plan.workloads for file in w.files if file.content is not None}


def local_problems(pipeline: DynamoPipeline, plan: Plan, environment: Mapping[str, str]) -> list[str]:
    """Return what works in a cluster only, each with what to do here."""
    return [*_cluster_only(pipeline), *_missing_secrets(plan, environment), *_nobody_answers(pipeline)]


def local_notes(pipeline: DynamoPipeline) -> Iterator[str]:
    """Yield what is passed over here, where that could surprise."""
    runtime = pipeline.spec.runtime
    for name, secret in (("etcd", runtime.etcd.secret), ("nats", runtime.nats.secret)):
        if secret:
            yield f"spec.runtime.{name}.secret is for a cluster; here {name.upper()}_AUTH_* of your environment count"
    for index, component in enumerate(pipeline.spec.components):
        if component.env_from:
            yield f"spec.components[{index}].envFrom is for a cluster; here your whole environment is passed on"
        if component.pod_template:
            yield f"spec.components[{index}].podTemplate is for a cluster; here .env and your environment count"
    if pipeline.spec.frontend.pod_template:
        yield (
            "spec.frontend.podTemplate is for a cluster; here your environment counts: "
            "export its variables (DYN_HTTP_…) before dynamo up"
        )


def _cluster_only(pipeline: DynamoPipeline) -> Iterator[str]:
    source = pipeline.spec.model.source or ""
    if source.startswith("pvc://"):
        yield f"spec.model.source: {source} names a volume claim, and there is no cluster here: use a path or hf://org/repo"
    for index, component in enumerate(pipeline.spec.components):
        where = f"spec.components[{index}]"
        if component.python and component.python.config_map:
            yield f"{where}.python.configMap: no ConfigMaps here: remove it and set python.file to a path"
        if has_sidecar(component) and not (component.command or component.upstream):
            yield f"{where}.image: no containers here: set command, which starts the server, or upstream"
        for position, variable in enumerate(component.env):
            if variable.value_from is not None and "secretKeyRef" not in variable.value_from:
                yield (
                    f"{where}.env[{position}].valueFrom: only secretKeyRef works here "
                    f"(from your environment): set value instead"
                )


def _missing_secrets(plan: Plan, environment: Mapping[str, str]) -> Iterator[str]:
    missing = {(s.variable, s.field): s for w in plan.workloads for s in w.secrets if s.variable not in environment}
    for (variable, field), secret in missing.items():
        yield f"{field}: Secret {secret.secret} is in a cluster; here your environment has its value: set {variable}"


def _nobody_answers(pipeline: DynamoPipeline) -> Iterator[str]:
    if pipeline.spec.frontend.replicas == 0:
        yield "spec.frontend.replicas: is 0, so nothing would answer here: set it to 1"
