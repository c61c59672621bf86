"""What each node of a vLLM group runs, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.vllm_nodes import Group, NodePlan, plan_node

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
TABLE: list[tuple[Group, dict[str, Any], NodePlan]] = [
    (Group(1, 0, ""), MODEL, NodePlan(MODEL)),
    (Group(2, 0, "10.0.0.1"), MODEL, NodePlan(MP)),
    (Group(2, 0, "leader:7000"), MODEL, NodePlan({**MP, "master_addr": "leader", "master_port": 7000})),
    (
        Group(2, 1, "10.0.0.1"), MODEL,
        NodePlan(None, beside=(
            *SERVE, "--distributed-executor-backend=mp", "--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1",
            "--master-port=29501",
        )),
    ),
    (Group(2, 0, "10.0.0.1"), RAY, NodePlan(RAY, before=("ray", "start", "--head", "--port=6379"))),
    (Group(2, 1, "10.0.0.1"), RAY, NodePlan(None, beside=("ray", "start", "--address=10.0.0.1:6379", "--block"))),
    (Group(2, 1, "[fd00::1]:99"), RAY, NodePlan(None, beside=("ray", "start", "--address=[fd00::1]:99", "--block"))),
    (Group(2, 0, "10.0.0.1:5000"), RANKS, NodePlan(DP)),
    (
        Group(2, 1, "10.0.0.1:5000"), RANKS,
        NodePlan(None, beside=(
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
        (Group(2, 0, ""), MODEL, "needs --leader-addr"),
        (Group(2, 0, ":29501"), MODEL, "needs --leader-addr"),
        (Group(2, 0, "h:0"), MODEL, "no port"),
        (Group(2, 0, "h:70000"), MODEL, "no port"),
        (Group(2, 2, "h"), MODEL, "not below"),
        (Group(3, 0, "h"), MODEL, "4 GPUs"),
        (Group(8, 0, "h"), {**MODEL, "data_parallel_size": 4}, "4 data-parallel ranks"),
        (Group(2, 0, "h"), {**MODEL, "distributed_executor_backend": "uni"}, "mp or ray"),
    ],
)
def test_groups_that_cant_be_are_refused(group: Group, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        plan_node(group, arguments)
