"""The parts of `make bench-gpu` that need no GPU: what the sides are started with, prompts, the printed rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.engines.gpu import engine_arguments, gpus, pipeline, prompts_of, run_words, shape, table_lines
from bench.processes import BenchError

from dynamo.cli.run.grammar import DEFAULTS
from dynamo.cli.run.main import read
from dynamo.cli.run.settings import worker_settings
from dynamo.operator.api.load import load_pipelines


@pytest.mark.parametrize(("output", "engine"), [("vllm", "vllm"), ("openai:http://127.0.0.1:8000/v1", "openai")])
def test_dynamo_run_understands_its_line(output: str, engine: str, tmp_path: Path) -> None:
    """Model, name, port and engine arguments reach the settings of the worker."""
    file = tmp_path / "engine.json"
    file.write_text(json.dumps(engine_arguments(0.3)))
    more = ["--extra-engine-args", str(file)] if engine == "vllm" else []
    asked = read(run_words(output, Path("/m"), 8080, *more), terminal=False, installed=DEFAULTS)
    worker = worker_settings(asked.roles, asked.settings, asked.model)
    assert (worker.engine, worker.model_path, worker.model_name) == (engine, "/m", "gpu")
    assert engine == "openai" or worker.arguments() == engine_arguments(0.3)


def test_its_pipeline_is_valid() -> None:
    (read_back,) = load_pipelines(pipeline(Path("/m"), engine_arguments(0.3)))
    assert (read_back.spec.components[0].engine, read_back.spec.model.name) == ("vllm", "gpu")


def test_the_model_keeps_what_its_tokenizer_needs() -> None:
    told = shape(4, {"vocab_size": 32000, "hidden_size": 256, "num_hidden_layers": 2})
    assert (told["vocab_size"], told["hidden_size"], told["num_hidden_layers"]) == (32000, 4096, 4)


def test_no_prompt_is_in_a_cache() -> None:
    """Of all rounds and sides of a load none begins as another does."""
    vocabulary = [f"word{number}" for number in range(8_191)]
    prompts = [prompt for turn in range(16) for prompt in prompts_of(vocabulary, 256_000 + turn, 512, 8)]
    assert all(len(prompt.partition(": ")[2].split()) == 8 for prompt in prompts)
    assert len({prompt.partition(":")[0] for prompt in prompts}) == len(prompts)


def test_rows_compare_rounds_side_by_side() -> None:
    """The share is the median of each round's own, not of medians."""

    def figures(*rates: float) -> list[dict[str, float]]:
        times = {"ttft_p50_ms": 1.0, "ttft_p99_ms": 2.0, "itl_p50_ms": 3.0, "itl_p99_ms": 4.0, "cpu": 5.0}
        return [{**times, "tokens_per_second": rate} for rate in rates]

    bare, served = table_lines(8, {"bare": figures(100, 200, 400), "run": figures(110, 240, 200)})
    assert bare == "| 8 | bare | 1.00 | 2.00 | 3.00 | 4.00 | 200 | 1.000 | 5 |"
    assert served == "| 8 | run | 1.00 | 2.00 | 3.00 | 4.00 | 200 | 1.100 | 5 |"


def test_a_machine_without_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="nvidia-smi"):
        gpus()
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.159.04, 143771 MiB'\n")
    smi.chmod(0o755)
    assert gpus() == ["NVIDIA H200, 580.159.04, 143771 MiB"]
