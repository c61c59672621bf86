"""python -m dynamo.mocker|vllm|sglang|trtllm: NVIDIA Dynamo's command lines reach the worker with their meaning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dynamo.worker.engines.mocker.arguments import read_arguments
from dynamo.worker.programs.engine_flags import divide, engine_arguments
from dynamo.worker.programs.entry import FORMER, make_command
from dynamo.worker.settings import WorkerSettings


def told(engine: str, line: str, **env: str) -> WorkerSettings:
    """What the worker is told by a line."""
    seen: list[WorkerSettings] = []
    done = CliRunner().invoke(make_command(engine, seen.append), line.split(), env=env)
    assert done.exit_code == 0, done.output
    return seen[0]


def refused(engine: str, line: str) -> str:
    done = CliRunner().invoke(make_command(engine, lambda _: None), line.split())
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    return done.output


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("--max-model-len 4096", {"max_model_len": 4096}),
        ("--gpu-memory-utilization=0.8 --enforce-eager", {"gpu_memory_utilization": 0.8, "enforce_eager": True}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--dtype half --seed -1", {"dtype": "half", "seed": -1}),
        ('--speculative-config {"model":"draft","num_speculative_tokens":3}',
         {"speculative_config": {"model": "draft", "num_speculative_tokens": 3}}),
        ("--lora-modules a=b c=d", {"lora_modules": ["a=b", "c=d"]}),
        ("-dp 4", {"data_parallel_size": 4}),
    ],
)  # fmt: skip
def test_flags_of_the_engine_are_passed_on(words: str, fields: dict[str, Any]) -> None:
    """Whatever isn't ours is an engine argument: numbers, truth, text, objects, lists; also a draft model's."""
    assert engine_arguments(words.split(), {"-dp": "data_parallel_size"}) == fields


@pytest.mark.parametrize("word", ["stray", "-x", "---"])
def test_a_stray_word_is_refused(word: str) -> None:
    """A word that belongs to no flag is named."""
    if word == "---":
        assert engine_arguments([word], {}) == {"_": True}
        return
    with pytest.raises(click.UsageError, match="belongs to no flag"):
        engine_arguments([word], {})


def test_lines_are_divided() -> None:
    """Our flags take their values with them."""
    own = {"--model": True, "-v": False}
    words = ["--model", "m", "-v", "--max-model-len", "5", "--model=n"]
    assert divide(words, own) == (["--model", "m", "-v", "--model=n"], ["--max-model-len", "5"])


@pytest.mark.parametrize("engine", FORMER)
def test_parsers(engine: str) -> None:
    """What parses a model's answers is said alike to all of them."""
    worker = told(engine, "--model-path m --dyn-tool-call-parser hermes --dyn-reasoning-parser qwen3")
    assert (worker.dyn_tool_call_parser, worker.dyn_reasoning_parser) == ("hermes", "qwen3")


@pytest.mark.parametrize("words", ["-vv", "-v -v"])
@pytest.mark.parametrize("engine", FORMER)
def test_more_log_lines(engine: str, words: str) -> None:
    """Twice, in one word or two, as the help says; also where other short flags are the engine's."""
    assert told(engine, f"--model-path m {words}").verbose == 2


def test_vllm_of_today() -> None:
    """A line of 1.6: model, parallelism, part of the work, the engine's own flags."""
    worker = told(
        "vllm", "--model Qwen/Qwen3-0.6B --served-model-name q --tensor-parallel-size 2 --disaggregation-mode prefill "
        "--block-size 64 --max-model-len 4096 --kv-transfer-config {\"kv_connector\":\"NixlConnector\"}",
    )  # fmt: skip
    assert (worker.engine, worker.model_path, worker.model_name) == ("vllm", "Qwen/Qwen3-0.6B", "q")
    assert (worker.tensor_parallel_size, worker.role, worker.kv_cache_block_size) == (2, "prefill", 64)
    assert worker.endpoint == "dyn://dynamo.prefill.generate"
    assert worker.arguments() == {"max_model_len": 4096, "kv_transfer_config": {"kv_connector": "NixlConnector"}}


def test_vllm_of_2025() -> None:
    """A line of 0.8: older flags and variables mean what they meant."""
    worker = told(
        "vllm", "--model m --is-decode-worker --migration-limit 3 --store-kv mem --connector nixl",
        DYN_NAMESPACE="ns", DYN_SYSTEM_PORT="9090",
    )  # fmt: skip
    assert (worker.role, worker.migration_limit, worker.discovery_backend) == ("decode", 3, "mem")
    assert (worker.endpoint, worker.system_port) == ("dyn://ns.backend.generate", 9090)


def test_sglang_and_trtllm(tmp_path: Path) -> None:
    """Their own spellings, and TensorRT-LLM's files, which win over flags."""
    worker = told("sglang", "--model-path m --tp 2 --dp 2 --nnodes 2 --node-rank 1 --dist-init-addr h:5000")
    assert (worker.tensor_parallel_size, worker.num_nodes, worker.node_rank, worker.leader_addr) == (2, 2, 1, "h:5000")
    assert worker.arguments() == {"dp_size": 2}
    file = tmp_path / "a.json"
    file.write_text('{"max_batch_size": 8}')
    worker = told(
        "trtllm", f"--model-path m --max-batch-size 4 --max-num-tokens 9 --extra-engine-args {file} "
        '--override-engine-args {"max_num_tokens":10} --publish-events-and-metrics',
    )  # fmt: skip
    assert worker.arguments() == {"max_batch_size": 8, "max_num_tokens": 10}
    assert worker.block_size == 32


def test_the_mocker_of_today(tmp_path: Path) -> None:
    """NVIDIA Dynamo's flags are what the simulated engine reads; defaults are NVIDIA Dynamo's, too."""
    worker = told(
        "mocker", "--model-path m --speedup-ratio 10 --num-gpu-blocks-override 100 --max-num-seqs 4 --num-workers 3 "
        "--no-enable-prefix-caching --data-parallel-size 2 --disaggregation-mode prefill --bootstrap-ports 7001,7002 "
        "--kv-transfer-bandwidth 100 --preemption-mode fifo --stagger-delay -1 --startup-time 0.5",
    )  # fmt: skip
    arguments = read_arguments(worker.arguments(), worker.block_size)
    assert (arguments.limits.num_gpu_blocks, arguments.limits.max_num_seqs, arguments.limits.block_size) == (100, 4, 64)
    assert (arguments.limits.enable_prefix_caching, arguments.timing.speedup_ratio, arguments.dp_size) == (False, 10, 2)
    assert (arguments.role, arguments.bootstrap_port, arguments.startup_time) == ("prefill", 7001, 0.5)
    assert (worker.num_workers, worker.endpoint) == (3, "dyn://dynamo.prefill.generate")
    file = tmp_path / "a.json"
    file.write_text('{"engine": {"speedup_ratio": 7, "block_size": 32}}')
    worker = told("mocker", f"--speedup-ratio 10 --extra-engine-args {file}")
    arguments = read_arguments(worker.arguments(), worker.block_size)
    assert (arguments.timing.speedup_ratio, arguments.limits.block_size) == (7, 32)


def test_the_mocker_of_2025() -> None:
    """--is-prefill-worker, --watermark and --store-kv of 0.8."""
    worker = told("mocker", "--is-prefill-worker --watermark 0.02 --store-kv mem --enable-local-indexer")
    arguments = read_arguments(worker.arguments(), worker.block_size)
    assert (arguments.role, arguments.limits.watermark, worker.discovery_backend) == ("prefill", 0.02, "mem")


@pytest.mark.parametrize(
    ("engine", "line", "says"),
    [
        ("vllm", "--model m --dyn-structural-tag x", "held to a schema only by tool_choice"),
        ("vllm", "--model m --use-vllm-tokenizer", "made by the frontend"),
        ("vllm", "--model m --discovery-backend kubernetes", "found in etcd"),
        ("vllm", "--model m stray", "belongs to no flag"),
        ("sglang", "--model-path m --config c.yaml", "--extra-engine-args"),
        ("trtllm", "--model-path m --modality video", "serves text"),
        ("mocker", "--bootstrap-ports x", "must be a whole number"),
        ("mocker", "--extra-engine-args /no/such", "/no/such"),
        ("mocker", "--ais-perf-model", "--speedup-ratio"),
        ("mocker", "--nonsense 1", "No such option"),
    ],
)
def test_what_can_not_be_followed_is_refused(engine: str, line: str, says: str) -> None:
    """One sentence and exit code 2."""
    assert says in " ".join(refused(engine, line).split())


@pytest.mark.parametrize("engine", FORMER)
def test_help_has_examples_and_imports_no_engine(engine: str) -> None:
    """`python -m dynamo.X --help` answers without the engine, a server or a tokenizer."""
    code = (
        "import sys, runpy; sys.argv = ['x', '--help']\n"
        f"try:\n    runpy.run_module('dynamo.{engine}', run_name='__main__')\nexcept SystemExit as end:\n"
        "    heavy = {'vllm', 'sglang', 'tensorrt_llm', 'torch', 'xllamacpp', 'tokenizers', 'fastapi', 'uvicorn', "
        "'nats', 'asyncio'}\n    sys.exit(end.code or ', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"python -m dynamo.{engine}" in done.stdout
    assert "Examples:" in done.stdout
