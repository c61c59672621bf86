"""What a plan consists of: plain values that both executors carry out.

`plan.py` makes them, `dynamo up` runs them as local processes, the operator renders
manifests from them. What only the executor can know (a port that is free, the path of a
mounted file, the rank of a pod) stands in an argv as a symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

START_SECONDS = 600
"""Until a process answers at all: slow images import for minutes. Loading the model comes after that."""


@dataclass(frozen=True)
class PortOf:
    """In an argv: the number that the executor gave the port of this name."""

    name: str


@dataclass(frozen=True)
class PathOf:
    """In an argv: where the executor put the file of this name."""

    name: str


@dataclass(frozen=True)
class NodeRank:
    """In an argv: which pod of its group this is, from 0."""


@dataclass(frozen=True)
class LeaderAddress:
    """In an argv: host and port of the group's rank 0."""


Symbol = PortOf | PathOf | NodeRank | LeaderAddress
Argument = str | Symbol


@dataclass(frozen=True)
class Port:
    """A port that a process listens on; `number` None leaves the choice to a local executor."""

    name: str
    number: int | None
    preferred: int
    """The number in a container, where every process has its own address."""


@dataclass(frozen=True)
class Probe:
    """A request that asks a process whether it is ready."""

    port: str
    path: str
    period_seconds: int = 2


@dataclass(frozen=True)
class FileMount:
    """A file that a process reads: its content, or the key of a ConfigMap that has it."""

    name: str
    content: str | None = None
    config_map: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class SecretRef:
    """A variable whose value is a key of a Secret; on a laptop it comes from the user's environment."""

    variable: str
    secret: str
    key: str
    field: str
    """The pipeline's field that asks for it, for messages."""


@dataclass(frozen=True)
class Rollout:
    """Replicas that may be missing or extra while a revision replaces another, already rounded."""

    max_surge: int = 0
    max_unavailable: int = 1
    recreate: bool = False


@dataclass(frozen=True)
class Workload:
    """Alike processes: the frontends, or the workers of one component."""

    component: str
    revision: str
    argv: tuple[Argument, ...]
    environment: tuple[tuple[str, str], ...]
    replicas: int
    nodes: int = 1
    accelerators: tuple[str, int] | None = None
    """Resource name and number per pod."""
    ports: tuple[Port, ...] = ()
    probe: Probe | None = None
    files: tuple[FileMount, ...] = ()
    secrets: tuple[SecretRef, ...] = ()
    fetch: tuple[str, ...] = ()
    """Loads the model before the process starts, where a start has a time limit; the process would do it too."""
    rollout: Rollout = Rollout()
    grace_seconds: int = 30
    start_seconds: int = START_SECONDS
    is_frontend: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything that one pipeline needs to run, infrastructure apart."""

    pipeline: str
    namespace: str
    model: str
    workloads: tuple[Workload, ...]

    @property
    def frontend(self) -> Workload:
        """Return the frontends' workload."""
        return next(w for w in self.workloads if w.is_frontend)

    @property
    def workers(self) -> tuple[Workload, ...]:
        """Return the components' workloads, in the file's order."""
        return tuple(w for w in self.workloads if not w.is_frontend)


@dataclass(frozen=True)
class Placement:
    """Values that an executor puts in the place of symbols."""

    ports: Mapping[str, int]
    paths: Mapping[str, str]
    rank: str = "0"
    leader: str = ""


def resolve(argv: tuple[Argument, ...], placement: Placement) -> list[str]:
    """Return `argv` with every symbol replaced."""
    values: dict[type, Callable[[Any], str]] = {
        str: str,
        PortOf: lambda a: str(placement.ports[a.name]),
        PathOf: lambda a: placement.paths[a.name],
        NodeRank: lambda _: placement.rank,
        LeaderAddress: lambda _: placement.leader,
    }
    return [values[type(argument)](argument) for argument in argv]
