"""The worker's flags: what can't be meant is refused by name, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click.testing
import pytest

from dynamo.llm import open_model
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.settings import parse
from dynamo.worker.engines import create_engine
from dynamo.worker.main import make_command
from dynamo.worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kv_cache_block_size": 0}, "--kv-cache-block-size must be from 1"),
        ({"context_length": -3}, "--context-length"),
        ({"system_port": 70_000}, "--system-port"),
        ({"graceful_shutdown_timeout_secs": -1.0}, "--graceful-shutdown-timeout-secs"),
        ({"graceful_shutdown_timeout_secs": float("nan")}, "--graceful-shutdown-timeout-secs"),
        ({"num_nodes": 2, "node_rank": 2}, "--node-rank 2 is not below --num-nodes 2"),
        ({"num_nodes": 2}, "needs --leader-addr HOST:PORT"),
        ({"num_nodes": 2, "leader_addr": "here"}, "must be HOST:PORT of the node of rank 0, got 'here'"),
        ({"num_nodes": 2, "leader_addr": "a:1", "num_workers": 2}, "a group of nodes is one worker"),
        ({"num_nodes": 2, "leader_addr": "a:1", "discovery_backend": "mem"}, "needs --discovery-backend etcd"),
        ({"dyn_tool_call_parser": "hermis"}, "no tool call parser 'hermis': did you mean 'hermes'"),
        ({"dyn_reasoning_parser": "nothing"}, "no reasoning parser 'nothing': there are basic, "),
        ({"endpoint": "dyn://a.b"}, "namespace.component.endpoint"),
        ({"engine_args": "{x"}, "--engine-args is no JSON"),
        ({"engine_args": '{"a": ' + "[" * 100_000}, "nested too deeply"),
        ({"engine_args": "[1]"}, "neither a JSON object nor a file"),
        ({"engine_args": "@/no/such/file"}, "/no/such/file"),
    ],
)
def test_values_that_cannot_be_meant(given: dict[str, Any], words: str) -> None:
    """Each is refused with the flag's name."""
    with pytest.raises(InvalidArgument, match=words):
        WorkerSettings(engine="mocker", **given).check()


def test_engine_arguments_from_a_file(tmp_path: Path) -> None:
    """`@FILE` and `FILE` read the file; a file that holds no object is refused."""
    file = tmp_path / "arguments.json"
    file.write_text('{"speedup_ratio": 10}')
    for text in (f"@{file}", str(file)):
        assert parse(WorkerSettings, ["--engine-args", text]).arguments() == {"speedup_ratio": 10}
    file.write_text("[]")
    with pytest.raises(InvalidArgument, match="must be a JSON object"):
        WorkerSettings(engine_args=f"@{file}").check()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cache: {tokens_per_block: 64}\nmax_batch_size: 8", {"cache": {"tokens_per_block": 64}, "max_batch_size": 8}),
        ("cuda_graph_config: {batch_sizes: {1: on}}", {"cuda_graph_config": {"batch_sizes": {"1": True}}}),
        ("", {}),
        ("built: 2026-11-22", "no word for .*date"),
        ("a: &x [*x]", "refers to itself"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("- 1", "must be a JSON object"),
    ],
)  # fmt: skip
def test_engine_arguments_in_yaml(tmp_path: Path, text: str, found: dict[str, Any] | str) -> None:
    """As TensorRT-LLM's users have them: what JSON could say as well, and passes through other programs' hands as."""
    file = tmp_path / "arguments.yaml"
    file.write_text(text)
    settings = WorkerSettings(engine="trtllm", engine_args=str(file))
    if isinstance(found, dict):
        assert settings.arguments() == found
        return
    with pytest.raises(InvalidArgument, match=found):
        settings.arguments()


def test_the_environment_is_below_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Precedence is flag, environment, default."""
    monkeypatch.setenv("DYN_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", "7")
    assert parse(WorkerSettings, []).graceful_shutdown_timeout_secs == 7
    assert parse(WorkerSettings, ["--graceful-shutdown-timeout-secs", "3"]).graceful_shutdown_timeout_secs == 3


def test_one_node_engines_refuse_groups() -> None:
    """An engine that can't span nodes says so, instead of serving once per node."""
    with pytest.raises(InvalidArgument, match="runs on one node"):
        create_engine(WorkerSettings(engine="echo_core", num_nodes=2, leader_addr="a:1"), open_model(None))


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ([], 2, "choose one of"),
        (["--engine", "mokker"], 2, "did you mean 'mocker'?"),
        (["--engine", "vllm", "--model-path", "/m/x.gguf"], 2, "not .gguf files"),
        (["--engine", "mocker", "--system-port", "70000"], 2, "--system-port"),
        (["--engine", "mocker", "--model-path", "/no/such/model"], 1, "/no/such/model"),
        (["--engine", "mocker", "--engine-args", '{"num_gpu_blocks": 1}'], 1, "too small"),
    ],
)
def test_exit_codes(argv: list[str], code: int, words: str) -> None:
    """A mistake in the flags ends with 2, what fails afterwards with 1; both with one sentence."""
    result = click.testing.CliRunner().invoke(make_command(), argv)
    assert result.exit_code == code
    assert words in result.output
    assert "Traceback" not in result.output
