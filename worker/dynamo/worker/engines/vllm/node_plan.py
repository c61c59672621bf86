"""vLLM over several nodes: what each of them runs. Pure; `engine.py` and `sidecar.py` start it.

Three ways, as NVIDIA Dynamo has them: vLLM's own processes (`mp`: every node but the first runs `vllm serve
--headless`), a Ray cluster (`ray`: nodes join it, the first one's engine finds them there), or data-parallel ranks on
each node, to which the first one's client talks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.vllm.arguments import command_line
from dynamo.worker.settings import leader_address

if TYPE_CHECKING:
    from dynamo.worker.settings import WorkerSettings

BACKEND: Final = "distributed_executor_backend"


class Group(NamedTuple):
    """The nodes of one engine, as one of them sees it."""

    nodes: int
    rank: int
    host: str = ""
    """Of rank 0, with `port`, at which the nodes of the engine meet."""
    port: int = 0

    @property
    def address(self) -> str:
        """Return host and port in one word."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def group_of(settings: WorkerSettings) -> Group:
    """Return the group that a worker's flags speak of; `InvalidArgument` where the leader's address is none."""
    if settings.num_nodes == 1:
        return Group(1, 0)
    return Group(settings.num_nodes, settings.node_rank, *leader_address(settings.leader_addr))


@dataclass(frozen=True)
class NodePlan:
    """Plan of one node."""

    engine: Mapping[str, Any] | None
    """Arguments of the engine that this node's worker runs, by vLLM's names; None: it runs none and serves nothing."""
    sidecar: tuple[str, ...] = ()
    """Command that runs as long as the node belongs to the group; empty: none."""
    opens: tuple[str, int] | None = None
    """Host and port at which that has to answer before the engine is started."""


def plan_node(group: Group, arguments: Mapping[str, Any]) -> NodePlan:
    """Return what this node does, given the engine's arguments by vLLM's names (`arguments.merged`).

    Raises `InvalidArgument` for groups that can't be.
    """
    if group.nodes == 1:
        return NodePlan(dict(arguments))
    backend = arguments.get(BACKEND) or "mp"
    _check_world(group, arguments)
    if int(arguments.get("data_parallel_size") or 1) > 1:
        return _data_parallel(group, arguments)
    if backend == "mp":
        return _mp(group, arguments)
    if backend == "ray":
        return _ray(group, arguments)
    raise InvalidArgument(f"vLLM argument {BACKEND!r} {backend!r}: over several nodes it is mp or ray")


def _check_world(group: Group, arguments: Mapping[str, Any]) -> None:
    """Check that every node has as many of the engine's GPUs as the others."""
    world = 1
    for kind in ("tensor", "pipeline", "data"):
        world *= int(arguments.get(f"{kind}_parallel_size") or 1)
    if world % group.nodes:
        raise InvalidArgument(
            f"--num-nodes {group.nodes}: {world} GPUs (tensor, pipeline and data parallel sizes multiplied) can't be"
            " split evenly among them"
        )


def _mp(group: Group, arguments: Mapping[str, Any]) -> NodePlan:
    whole = {
        **arguments, BACKEND: "mp", "nnodes": group.nodes, "node_rank": group.rank, "master_addr": group.host,
        "master_port": group.port,
    }  # fmt: skip
    return NodePlan(whole) if group.rank == 0 else NodePlan(None, _headless(whole))


def _headless(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return `vllm serve` without a server. Events come from rank 0's schedulers alone."""
    others = {name: value for name, value in arguments.items() if name not in ("model", "kv_events_config")}
    return ("vllm", "serve", str(arguments["model"]), "--headless", *command_line(others))


def _data_parallel(group: Group, arguments: Mapping[str, Any]) -> NodePlan:
    """Plan data parallelism: each node has as many whole ranks as the others.

    No KV events: sockets don't leave a machine.
    """
    size = int(arguments["data_parallel_size"])
    if size % group.nodes:
        raise InvalidArgument(
            f"--num-nodes {group.nodes}: {size} data-parallel ranks can't be split evenly among them, and a rank over"
            " several nodes is not there yet"
        )
    local = size // group.nodes
    whole = {
        **arguments, "kv_events_config": None, "data_parallel_size_local": local, "data_parallel_address": group.host,
        "data_parallel_rpc_port": group.port,
    }  # fmt: skip
    if group.rank == 0:
        return NodePlan(whole)
    return NodePlan(None, _headless({**whole, "data_parallel_start_rank": group.rank * local}))


def _ray(group: Group, arguments: Mapping[str, Any]) -> NodePlan:
    """Plan Ray, whose processes on a node stay with the command that started them (`--block`) and with the worker."""
    if group.rank:
        return NodePlan(None, ("ray", "start", f"--address={group.address}", "--block"))
    head = ("ray", "start", "--head", f"--port={group.port}", "--block")
    return NodePlan({**arguments, BACKEND: "ray"}, head, (group.host, group.port))
