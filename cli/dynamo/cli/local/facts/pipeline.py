"""Collects facts of one pipeline of this machine for `diagnosis/local_pipeline.py`. Every question has a deadline."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dynamo.cli.diagnosis.local_pipeline import LocalFacts, LocalPart
from dynamo.cli.diagnosis.servers import ServerFact
from dynamo.cli.local.facts import servers
from dynamo.cli.local.facts.last_errors import last_complaint, last_error, last_errors
from dynamo.cli.local.facts.upstreams import unreachable
from dynamo.cli.local.facts.worker_health import AWAY, is_stopped, seen
from dynamo.cli.local.state import (
    WORKER,
    PartState,
    RunState,
    holder_of,
    is_running,
    read_ending,
    read_state,
    state_home,
)

if TYPE_CHECKING:
    from dynamo.operator.api.v1alpha1 import Component

_INFRA: Final = ("etcd", "nats")


def collect(name: str, environment: Mapping[str, str], now: float) -> LocalFacts:
    """Return what the rules look at of a pipeline that is up here, or was."""
    folder = state_home(environment) / name
    state = read_state(folder)
    if not is_running(folder):
        return _of_ended(name, folder, state)
    pid, file = holder_of(folder)
    facts = LocalFacts(
        name, state.file if state else file or "FILE", True, up_pid=pid,
        up_stopped=pid.isdecimal() and is_stopped(int(pid)), state_folder=str(folder), state_free_bytes=_free(folder),
        unreadable="" if state else str(folder / "state.json"),
    )  # fmt: skip
    if state is None:
        return facts
    components = _components(state)
    parts = tuple(_part(part, now, components.get(part.component)) for part in seen(state.parts))
    own = frozenset(part.name for part in parts if part.name in _INFRA and part.kind == "infra")
    return replace(facts, parts=parts, servers=_servers(state), own_servers=own)


def _of_ended(name: str, folder: Path, state: RunState | None) -> LocalFacts:
    """Say what is known of a run that is over: what it said last of all, else what its logs do."""
    ending = read_ending(folder)
    said = tuple(LocalPart(part, "stopped", last_error=text) for part, text in last_errors(folder))
    file = ending.file if ending else state.file if state else "FILE"
    reasons = tuple(ending.reasons.items()) if ending else ()
    return LocalFacts(name, file, False, said, reasons, stopped_by_hand=ending is not None and not reasons)


def _components(state: RunState) -> dict[str, Component]:
    """Return what the pipeline's file says of its workers now; nothing where it can't be read any more."""
    from dynamo.operator.api.load import PipelineFileError, load_pipelines

    try:
        pipelines = load_pipelines(Path(state.file).read_text(encoding="utf-8"), state.file)
    except (OSError, UnicodeDecodeError, PipelineFileError):
        return {}
    return {c.name: c for pipeline in pipelines if pipeline.name == state.pipeline for c in pipeline.spec.components}


def _part(part: PartState, now: float, component: Component | None) -> LocalPart:
    stopped = part.pid if part.pid is not None and is_stopped(part.pid) else None
    log = Path(part.log)
    return LocalPart(
        part.name, part.state, part.reason, part.restarts,
        last_complaint(log) if part.state == AWAY else last_error(log),
        part.kind, stopped, part.ended, max(0.0, now - part.since), part.pid,
        component.python.file if component and component.python and part.kind == WORKER else "",
        _upstream_error(component) if component and part.state == "starting" else "",
    )  # fmt: skip


def _upstream_error(component: Component) -> str:
    return unreachable(component.upstream) if component.upstream else ""


def _free(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def _servers(state: RunState) -> tuple[ServerFact, ...]:
    """Ask the etcd and NATS of a run whether they answer; who they let in is theirs, and what TLS says isn't asked."""
    asked = servers.ask({"ETCD_ENDPOINTS": state.etcd, "NATS_SERVER": state.nats}, log_in=False)
    return tuple(server for server in asked if not server.error.startswith("TLS"))
