"""vLLM over several nodes: what each of them runs. Pure; who starts the processes is elsewhere.

Three ways, as the original has them: vLLM's own processes (`mp`: every node but the first runs `vllm serve
--headless`), a Ray cluster (`ray`: nodes join it, the first one's engine finds them there), or data-parallel ranks on
each node, to which the first one's client talks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.vllm_arguments import command_line

Backend = Literal["mp", "ray"]
BACKEND: Final = "distributed_executor_backend"
RAY_PORT: Final = 6379
DATA_PARALLEL_PORT: Final = 13345
MASTER_PORT: Final = 29501
"""vLLM's own default."""


@dataclass(frozen=True)
class Group:
    """The nodes of one engine, as one of them sees it."""

    nodes: int
    rank: int
    leader: str
    """Host, or host:port, of rank 0."""

    def address(self, port: int) -> tuple[str, int]:
        """Where rank 0 is, on `port` unless it says another; `InvalidArgument` where it doesn't say."""
        host, _, given = self.leader.rpartition(":") if _has_port(self.leader) else (self.leader, "", "")
        if not host.strip("[]"):
            raise InvalidArgument(
                f"--num-nodes {self.nodes} needs --leader-addr, the address of the node of rank 0 (HOST or HOST:PORT)"
            )
        found = int(given or port)
        if not 0 < found < 1 << 16:
            raise InvalidArgument(f"--leader-addr {self.leader!r}: {found} is no port")
        return host, found


def _has_port(address: str) -> bool:
    host, separator, port = address.rpartition(":")
    return bool(separator) and port.isdigit() and (":" not in host or host.endswith("]"))


@dataclass(frozen=True)
class NodePlan:
    """What one node does."""

    engine: Mapping[str, Any] | None
    """Arguments of the engine that this node's worker runs, by vLLM's names; None: it runs none and serves nothing."""
    before: tuple[str, ...] = ()
    """Has to have ended well before the engine is started; empty: nothing."""
    beside: tuple[str, ...] = ()
    """Runs as long as the node belongs to the group; empty: nothing."""


def plan_node(group: Group, arguments: Mapping[str, Any]) -> NodePlan:
    """What this node does, given the engine's arguments by vLLM's names (`vllm_arguments.merged`).

    Raises `InvalidArgument` for groups that can't be.
    """
    if not 0 <= group.rank < group.nodes:
        raise InvalidArgument(f"--node-rank {group.rank} is not below --num-nodes {group.nodes}")
    if group.nodes == 1:
        return NodePlan(dict(arguments))
    backend = arguments.get(BACKEND, "mp")
    _check_world(group, arguments)
    if int(arguments.get("data_parallel_size") or 1) > 1:
        return _data_parallel(group, arguments)
    if backend == "mp":
        return _mp(group, arguments)
    if backend == "ray":
        return _ray(group, arguments)
    raise InvalidArgument(f"vLLM argument {BACKEND!r} {backend!r}: over several nodes it is mp or ray")


def _check_world(group: Group, arguments: Mapping[str, Any]) -> None:
    """Every node has as many of the engine's GPUs as the others."""
    sizes = (arguments.get(f"{kind}_parallel_size") or 1 for kind in ("tensor", "pipeline", "data"))
    world = 1
    for size in sizes:
        world *= int(size)
    if world % group.nodes:
        raise InvalidArgument(
            f"--num-nodes {group.nodes}: {world} GPUs (tensor, pipeline and data parallel sizes multiplied) can't be"
            " split evenly among them"
        )


def _mp(group: Group, arguments: Mapping[str, Any]) -> NodePlan:
    host, port = group.address(MASTER_PORT)
    whole = {
        **arguments, BACKEND: "mp", "nnodes": group.nodes, "node_rank": group.rank, "master_addr": host,
        "master_port": port,
    }  # fmt: skip
    if group.rank == 0:
        return NodePlan(whole)
    return NodePlan(None, beside=_headless(whole))


def _headless(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """`vllm serve` without a server. Events come from rank 0's schedulers alone."""
    others = {name: value for name, value in arguments.items() if name not in ("model", "kv_events_config")}
    return ("vllm", "serve", str(arguments["model"]), "--headless", *command_line(others))


def _data_parallel(group: Group, arguments: Mapping[str, Any]) -> NodePlan:
    """Each node has as many ranks as the others, each of them whole. No KV events: sockets don't leave a machine."""
    size = int(arguments["data_parallel_size"])
    if size % group.nodes:
        raise InvalidArgument(
            f"--num-nodes {group.nodes}: {size} data-parallel ranks can't be split evenly among them, and a rank over"
            " several nodes is not there yet"
        )
    host, port = group.address(DATA_PARALLEL_PORT)
    local = size // group.nodes
    whole = {
        **arguments, "kv_events_config": None, "data_parallel_size_local": local, "data_parallel_address": host,
        "data_parallel_rpc_port": port,
    }  # fmt: skip
    if group.rank == 0:
        return NodePlan(whole)
    return NodePlan(None, beside=_headless({**whole, "data_parallel_start_rank": group.rank * local}))


def _ray(group: Group, arguments: Mapping[str, Any]) -> NodePlan:
    host, port = group.address(RAY_PORT)
    if group.rank == 0:
        return NodePlan({**arguments, BACKEND: "ray"}, before=("ray", "start", "--head", f"--port={port}"))
    return NodePlan(None, beside=("ray", "start", f"--address={host}:{port}", "--block"))
