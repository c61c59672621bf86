"""Collects facts of this machine for the rules of `diagnosis/machine.py`. Every question has a deadline."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dynamo.cli.diagnosis.devices import CARD_FIELDS, GpuFact, cards_of, demand_of
from dynamo.cli.diagnosis.machine import EngineFact, FolderFact, MachineFacts, PortFact
from dynamo.cli.local.facts import servers
from dynamo.cli.local.facts.environment import are_up, wanted
from dynamo.cli.local.facts.environment import collect as collect_environment
from dynamo.cli.local.facts.fields import fields
from dynamo.cli.local.facts.models import models
from dynamo.cli.local.facts.programs import programs
from dynamo.cli.local.facts.upstreams import upstreams
from dynamo.cli.local.infra_servers import find_etcd, find_nats_server
from dynamo.cli.local.ports import LOOPBACK, holder, is_free
from dynamo.cli.local.state import is_running, read_ending, read_state, running, state_home
from dynamo.engine_catalog import CATALOG, EngineName, traits_of

if TYPE_CHECKING:
    from dynamo.operator.api.v1alpha1 import DynamoPipeline

SMI_SECONDS: Final = 5.0
_MOST_CHARACTERS: Final = 200


def collect(
    pipelines: Sequence[DynamoPipeline], environment: Mapping[str, str], folder: Path, file: str = ""
) -> MachineFacts:
    """Return what the rules look at; `pipelines` say which ports, engines and models are wanted.

    Their models are looked for from `folder`, the file's own. Of the network, it asks etcd and NATS of the environment.
    """
    from dynamo.llm.models.paths import is_of_hub

    scripts = sysconfig.get_path("scripts")
    return MachineFacts(
        python=sys.version_info[:2],
        scripts=scripts,
        command_on_path=shutil.which("dynamo", path=environment.get("PATH", "")) is not None,
        ports=_port_facts(pipelines, environment),
        folders=(*folders(environment), *_of_pipelines(pipelines, environment)),
        memory_bytes=_memory(),
        file_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        address_limit=_addresses(),
        engines=engines(pipelines),
        models=models(pipelines, folder, environment),
        fields=fields(pipelines, folder),
        upstreams=upstreams(pipelines),
        programs=programs(pipelines, folder),
        gpu=gpu_fact(environment),
        demands=demand_of(pipelines, here=True),
        own_servers=servers.ask(environment),
        etcd=environment.get("ETCD_ENDPOINTS") or find_etcd() or "",
        nats=environment.get("NATS_SERVER") or find_nats_server() or "",
        wanted=wanted(pipelines, file),
        up=are_up(environment) if pipelines else (),
        needs_hub=any(is_of_hub(pipeline.spec.model.source or "") for pipeline in pipelines),
        environment=collect_environment(environment, folder, of_file=bool(pipelines)),
    )


def _port_facts(pipelines: Sequence[DynamoPipeline], environment: Mapping[str, str]) -> tuple[PortFact, ...]:
    """Ask about each; without a file, what serves here already is no fault."""
    facts = [port_fact(number, by, environment) for number, by in _ports(pipelines, environment)]
    return tuple(fact for fact in facts if pipelines or not fact.holder.startswith("the pipeline"))


def _ports(pipelines: Sequence[DynamoPipeline], environment: Mapping[str, str]) -> list[tuple[int, str]]:
    """Return the ports that `dynamo up` would open: those of pipelines that are up are theirs already."""
    home = state_home(environment)
    if not pipelines:
        return [(8000, "dynamo up"), (8080, "dynamo run in=http")]
    wanted = [(p.spec.frontend.port, p.name) for p in pipelines[:1] if not is_running(home / p.name)]
    return wanted + [
        (p.spec.frontend.port, p.name) for p in pipelines[1:] if "port" in p.spec.frontend.model_fields_set
    ]


def port_fact(number: int, wanted_by: str, environment: Mapping[str, str], host: str = LOOPBACK) -> PortFact:
    """Ask whether a port can be listened on, and who holds it."""
    try:
        free = is_free(number, host)
    except OSError as error:
        return PortFact(number, wanted_by, error=error.strerror or str(error))
    if free:
        return PortFact(number, wanted_by)
    return PortFact(number, wanted_by, False, who_listens(state_home(environment), number) or "")


def who_listens(home: Path, port: int) -> str | None:
    """Name a pipeline of ours that listens there, else whoever the system knows."""
    for state, alive in running(home):
        if alive and state.url.endswith(f":{port}"):
            return f"the pipeline {state.pipeline} (`dynamo up {state.file}`, pid {state.pid})"
    return holder(port)


def folders(environment: Mapping[str, str]) -> tuple[FolderFact, ...]:
    """Return the folders that this program writes to."""
    from dynamo.llm.models.file_cache import default_root

    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    hub = environment.get("HF_HUB_CACHE") or Path(environment.get("HF_HOME") or cache / "huggingface") / "hub"
    return (
        folder_fact(state_home(environment), "logs and data of pipelines", "XDG_STATE_HOME"),
        folder_fact(default_root(environment), "files of models", "DYN_CACHE_DIR"),
        folder_fact(Path(hub), "downloaded models", "HF_HOME"),
    )


def _of_pipelines(pipelines: Sequence[DynamoPipeline], environment: Mapping[str, str]) -> Iterator[FolderFact]:
    """Yield the folders of pipelines that something else stands in the place of, or that are somebody else's."""
    for pipeline in pipelines:
        path = state_home(environment) / pipeline.name
        fact = folder_fact(path, f"logs and data of {pipeline.name}", "XDG_STATE_HOME")
        if not fact.writable and folder_fact(state_home(environment), "", "").writable:
            yield fact


def folder_fact(path: Path, holds: str, variable: str) -> FolderFact:
    """Look at a folder, or where it isn't there at the nearest one above it. Makes nothing."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        read_only = bool(os.statvfs(there).f_flag & os.ST_RDONLY)
        writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK) and not read_only
        why = "" if writable else f"{there} is read-only" if read_only else f"you may not write to {there}"
        return FolderFact(str(path), holds, variable, writable, shutil.disk_usage(there).free, why)
    except OSError as error:
        return FolderFact(str(path), holds, variable, False, error=error.strerror or str(error))


def _memory() -> int | None:
    try:
        rows = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(row.split()[1]) << 10 for row in rows if row.startswith("MemAvailable:")), None)


def _addresses() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def engines(pipelines: Sequence[DynamoPipeline]) -> tuple[EngineFact, ...]:
    """Return the engines that pipelines want, or without any all that compute."""
    from dynamo.operator.plan.servers import has_sidecar

    if pipelines:
        wanted = {c.engine.value: p.name for p in pipelines for c in p.spec.components if not has_sidecar(c)}
    else:
        wanted = dict.fromkeys((name.value for name in EngineName if CATALOG[name].loads_weights), "")
    return tuple(
        EngineFact(name, traits.extra, _is_installed(traits.package), by)
        for name, by in wanted.items()
        if (traits := traits_of(name)).package
    )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def gpu_fact(environment: Mapping[str, str], root: Path = Path("/")) -> GpuFact:
    """Count device files, and ask nvidia-smi where there are any."""
    devices = len(list((root / "dev").glob("nvidia[0-9]*")))
    driver = (root / "proc" / "driver" / "nvidia" / "version").exists()
    program = shutil.which("nvidia-smi", path=environment.get("PATH", ""))
    if not devices:
        return GpuFact(0, driver)
    if program is None:
        return GpuFact(devices, driver, "nvidia-smi isn't on PATH")
    query = [program, f"--query-gpu={CARD_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return GpuFact(devices, driver, f"nvidia-smi didn't answer within {SMI_SECONDS:g} s")
    said = (done.stderr or done.stdout).strip()[:_MOST_CHARACTERS]
    return GpuFact(devices, driver, said) if done.returncode else GpuFact(devices, driver, cards=cards_of(done.stdout))


def has_state(home: Path, name: str) -> bool:
    """Tell whether a pipeline of this name is, or was, up here."""
    folder = home / name
    known = read_state(folder) or read_ending(folder)
    return known is not None or is_running(folder) or os.path.isdir(folder / "logs")


def closed_state(home: Path, name: str) -> FolderFact | None:
    """Return the folder of a pipeline that may not be looked into; None where it may, or isn't there."""
    closed = [p for p in (home, home / name) if os.path.isdir(p) and not os.access(p, os.R_OK | os.X_OK)]
    if not closed:
        return None
    return FolderFact(str(closed[0]), f"the state of {name}", "XDG_STATE_HOME", False, error="permission denied")
