"""What each node of a vLLM group runs, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.vllm.node_plan import Group, NodePlan, group_of, plan_node
from dynamo.worker.settings import WorkerSettings

MODEL = {"model": "/m", "served_model_name": ["m"], "tensor_parallel_size": 4, "kv_events_config": {"publisher": "zmq"}}
RAY = {**MODEL, "distributed_executor_backend": "ray"}
RANKS = {**MODEL, "data_parallel_size": 4}
MP = {
    **MODEL, "distributed_executor_backend": "mp", "nnodes": 2, "node_rank": 0, "master_addr": "10.0.0.1",
    "master_port": 29501,
}  # fmt: skip
DP = {
    **RANKS, "kv_events_config": None, "data_parallel_size_local": 2, "data_parallel_address": "10.0.0.1",
    "data_parallel_rpc_port": 5000,
}  # fmt: skip
SERVE = ("vllm", "serve", "/m", "--headless", "--served-model-name", "m", "--tensor-parallel-size=4")
HEAD = ("ray", "start", "--head", "--port=6379", "--block")
TABLE: list[tuple[Group, dict[str, Any], NodePlan]] = [
    (Group(1, 0), MODEL, NodePlan(MODEL)),
    (Group(2, 0, "10.0.0.1", 29501), MODEL, NodePlan(MP)),
    (
        Group(2, 0, "leader", 7000), {**MODEL, "distributed_executor_backend": None},
        NodePlan({**MP, "master_addr": "leader", "master_port": 7000}),
    ),
    (
        Group(2, 1, "10.0.0.1", 29501), MODEL,
        NodePlan(None, (
            *SERVE, "--distributed-executor-backend=mp", "--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1",
            "--master-port=29501",
        )),
    ),
    (Group(2, 0, "10.0.0.1", 6379), RAY, NodePlan(RAY, HEAD, ("10.0.0.1", 6379))),
    (Group(2, 1, "10.0.0.1", 6379), RAY, NodePlan(None, ("ray", "start", "--address=10.0.0.1:6379", "--block"))),
    (Group(2, 1, "fd00::1", 99), RAY, NodePlan(None, ("ray", "start", "--address=[fd00::1]:99", "--block"))),
    (Group(2, 0, "10.0.0.1", 5000), RANKS, NodePlan(DP)),
    (
        Group(2, 1, "10.0.0.1", 5000), RANKS,
        NodePlan(None, (
            *SERVE, "--data-parallel-size=4", "--data-parallel-size-local=2", "--data-parallel-address=10.0.0.1",
            "--data-parallel-rpc-port=5000", "--data-parallel-start-rank=2",
        )),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("group", "arguments", "plan"), TABLE)
def test_what_a_node_does(group: Group, arguments: dict[str, Any], plan: NodePlan) -> None:
    assert plan_node(group, arguments) == plan


@pytest.mark.parametrize(
    ("group", "arguments", "said"),
    [
        (Group(3, 0, "h", 1), MODEL, "4 GPUs"),
        (Group(8, 0, "h", 1), {**MODEL, "data_parallel_size": 4}, "4 data-parallel ranks"),
        (Group(2, 0, "h", 1), {**MODEL, "distributed_executor_backend": "uni"}, "mp or ray"),
    ],
)
def test_groups_that_cant_be_are_refused(group: Group, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        plan_node(group, arguments)


def test_flags_name_the_group() -> None:
    """One address: where the leader is found, and where the engine's nodes meet."""
    assert group_of(WorkerSettings(leader_addr="nonsense")) == Group(1, 0)
    flags = WorkerSettings(num_nodes=2, node_rank=1, leader_addr="[fd00::1]:29501")
    assert group_of(flags) == Group(2, 1, "fd00::1", 29501)
    with pytest.raises(InvalidArgument, match="--leader-addr"):
        group_of(WorkerSettings(num_nodes=2, leader_addr="h"))
