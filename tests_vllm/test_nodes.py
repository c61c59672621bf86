"""What the nodes of a group run, before vLLM's own parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from dynamo.worker.engines.vllm.arguments import parsed
from dynamo.worker.engines.vllm.node_plan import Group, plan_node

MODEL = {"model": "/m", "served_model_name": ["m"], "tensor_parallel_size": 4, "enforce_eager": True}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (MODEL, {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.1", "master_port": 29501}),
        (
            {**MODEL, "data_parallel_size": 4},
            {"data_parallel_size": 4, "data_parallel_size_local": 2, "data_parallel_start_rank": 2,
             "data_parallel_address": "10.0.0.1", "data_parallel_rpc_port": 29501},
        ),
    ],
)  # fmt: skip
def test_vllm_understands_what_followers_run(arguments: dict[str, Any], told: dict[str, Any]) -> None:
    words = plan_node(Group(2, 1, "10.0.0.1", 29501), arguments).sidecar
    assert words[:2] == ("vllm", "serve")
    found = vars(make_arg_parser(FlexibleArgumentParser()).parse_args(list(words[2:])))
    expected = {"model_tag": "/m", "headless": True, "tensor_parallel_size": 4, "enforce_eager": True, **told}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("more", [{}, {"data_parallel_size": 2}, {"distributed_executor_backend": "ray"}])
def test_vllm_understands_what_the_leader_runs(more: dict[str, Any], tmp_path: Path) -> None:
    """The model is a folder that exists: another vLLM looks up at the hub."""
    plan = plan_node(Group(2, 0, "10.0.0.1", 29501), {**MODEL, **more, "model": str(tmp_path)})
    assert plan.engine is not None
    found = parsed(plan.engine)
    assert found.tensor_parallel_size == 4
    assert {name: getattr(found, name) for name in more} == more
