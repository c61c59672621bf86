"""What the pipelines of a file stand on: which etcd and NATS, and which HTTP ports.

Called by `executor.py` before anything of a pipeline starts, so that a mistake costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynamo.cli.local import infra_servers
from dynamo.cli.local.ports import is_free
from dynamo.operator.api.v1alpha1 import DynamoPipeline, RuntimeSpec


class UpError(Exception):
    """`dynamo up` can't go on; the message says why and what to do."""


@dataclass(frozen=True)
class Footing:
    """The etcd and NATS of a run."""

    etcd: str
    nats: str
    servers: tuple[infra_servers.Server, ...]
    """Those to start here."""
    notes: tuple[str, ...]
    """What to tell the user about those that run already."""


async def find_footing(
    pipelines: Sequence[DynamoPipeline], environment: Mapping[str, str], folder: Path, pick_port: Callable[[], int]
) -> Footing:
    """Return servers of our own, or those that the environment or the file names (checked); raises `UpError`."""
    spec = shared_runtime(pipelines)
    etcd, nats = infra_servers.remote_etcd(spec, environment), infra_servers.remote_nats(spec, environment)
    try:
        for what, remote, port in (("NATS", nats, 4222), ("etcd", etcd, 2379)):
            if remote is not None:
                await infra_servers.check_reachable(what, remote, port)
        own_nats = infra_servers.local_nats(pick_port()) if nats is None else None
        own_etcd = infra_servers.local_etcd(pick_port(), pick_port(), folder / "etcd") if etcd is None else None
    except infra_servers.InfraError as error:
        raise UpError(str(error)) from None
    named = (("nats", nats), ("etcd", etcd))
    return Footing(
        etcd=own_etcd.url if own_etcd else ",".join(etcd.urls if etcd else ()),
        nats=own_nats.url if own_nats else ",".join(nats.urls if nats else ()),
        servers=tuple(server for server in (own_nats, own_etcd) if server),
        notes=tuple(f"{name}: using the one that {r.said_by} names" for name, r in named if r is not None),
    )


def shared_runtime(pipelines: Sequence[DynamoPipeline]) -> RuntimeSpec:
    """Return one etcd and one NATS for all documents: the one that names them does it for all."""
    named = [p.spec.runtime for p in pipelines]
    etcd = {r.etcd.endpoints: r.etcd for r in named if r.etcd.endpoints}
    nats = {r.nats.url: r.nats for r in named if r.nats.url}
    if len(etcd) > 1 or len(nats) > 1:
        raise UpError("spec.runtime: the pipelines of one file share one etcd and one NATS here: name the same in each")
    return RuntimeSpec(etcd=next(iter(etcd.values()), named[0].etcd), nats=next(iter(nats.values()), named[0].nats))


def assign_ports(
    pipelines: Sequence[DynamoPipeline], first: int | None, free: Callable[[int], bool]
) -> list[tuple[int, ...]]:
    """Return the HTTP port of each frontend.

    The flag, else the file's, else (nobody chose) the next one that is free.
    """
    taken: set[int] = set()
    groups = []
    for index, pipeline in enumerate(pipelines):
        spec = pipeline.spec.frontend
        chosen = first if index == 0 and first is not None else spec.port
        if first == 0:
            chosen = 0
        elif index and "port" not in spec.model_fields_set:
            chosen = next(p for p in range(max(taken) + 1, 65536) if p not in taken and free(p))
        if chosen and chosen in taken:
            raise UpError(
                f"{pipeline.name}: spec.frontend.port: {chosen} is taken by a pipeline before it: choose another"
            )
        taken.add(chosen)
        groups.append((chosen, *(0 for _ in range(spec.replicas - 1))))
    return groups


def demand_port(host: str, port: int, who_listens: Callable[[int], str | None]) -> None:
    """Raise `UpError` where the port isn't free, with who holds it."""
    try:
        if is_free(port, host) or port == 0:
            return
    except OSError as error:
        raise UpError(
            f"can't listen on {host}:{port}: {error.strerror}; choose another --http-host (DYN_HTTP_HOST) or "
            "--http-port"
        ) from None
    who = who_listens(port)
    raise UpError(
        f"port {port} is in use{f' by {who}' if who else ''}: stop that, "
        "or use --http-port 0 (picks a free one) or another number"
    )
