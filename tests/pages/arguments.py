"""What an engine would be told by a line, by its adapter's own rules: also for those that can't run here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from docs.generate.compatibility.printed import ROWS
from docs.generate.compatibility.printed_row import Row

from dynamo.cli.run.grammar import DEFAULTS
from dynamo.cli.run.main import read
from dynamo.cli.run.settings import worker_settings
from dynamo.llm import open_model
from dynamo.worker.engines.sglang import arguments as sglang_arguments
from dynamo.worker.engines.trtllm import requests as trtllm_requests
from dynamo.worker.engines.vllm import arguments as vllm_arguments

TOLD: Final[dict[str, dict[str, Any]]] = {
    "two instances": {"tp_size": 2, "base_gpu_id": 2},
    "sglang, http": {"tp_size": 8},
    "sglang, text": {"tp_size": 8},
    "sglang, gpus": {"tp_size": 4, "base_gpu_id": 4},
    "sglang, arguments": {"dtype": "half", "trust_remote_code": True},
    "vllm, context": {"max_model_len": 256},
    "vllm, ray": {"tensor_parallel_size": 16},
    "trtllm, arguments": {
        "backend": "pytorch", "kv_cache_config": {"tokens_per_block": 32, "event_buffer_max_size": 1024},
    },
}  # fmt: skip
"""By row: what the engine gets beside the model."""


def lines_for(engine: str) -> list[Row]:
    """What the guides have an engine run on one node."""
    shown = "test_lines_reach_their_engine"
    return [row for row in ROWS if f"out={engine}" in row.words() and row.test.endswith(f"::{shown}")]


def told(words: Sequence[str], checkout: str) -> dict[str, Any]:
    """The arguments by the engine's own names; the model is `checkout`, whatever the line calls it."""
    run = read(words, terminal=True, installed=DEFAULTS)
    settings = worker_settings(run.roles, run.settings, checkout)
    if settings.engine == "sglang":
        return sglang_arguments.arguments(settings, checkout, "m", settings.arguments())
    if settings.engine == "trtllm":
        return trtllm_requests.llm_arguments(settings, checkout, settings.arguments())
    sockets = vllm_arguments.EventSockets.within(Path("/nowhere"))
    return vllm_arguments.merged(settings, open_model(checkout), sockets)
