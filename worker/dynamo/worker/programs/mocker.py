"""`python -m dynamo.mocker`: NVIDIA Dynamo's flags of the simulated engine, as a worker's settings."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.program_options import ProgramOptions
from dynamo.runtime.process.settings import like, setting, values_for
from dynamo.worker.settings import WorkerSettings

_BLOCK_SIZES: Final = {"vllm": 64, "sglang": 1, "trtllm": 32}
MODES: Final = ("agg", "prefill", "decode")


@dataclass(frozen=True)
class MockerSettings:
    """Flags of `python -m dynamo.mocker`; names and defaults are those of NVIDIA Dynamo 1.6.1."""

    model_path: str = like(
        WorkerSettings, "model_path",
        help="Model whose tokenizer and template are used; empty: the built-in byte-level model.",
    )  # fmt: skip
    model_name: str = like(WorkerSettings, "model_name", help="Served name; default: from the path.")
    endpoint: str = setting(
        "", "What to serve, dyn://NAMESPACE.COMPONENT.ENDPOINT; default: backend.generate, or prefill.generate, in the "
        "namespace.", env=("DYN_ENDPOINT", "DYN_ENDPOINT_PATH"),
    )  # fmt: skip
    namespace: str = like(
        ProgramOptions, "namespace", default="dynamo", help="Its namespace where --endpoint doesn't say."
    )
    num_workers: int = like(WorkerSettings, "num_workers", help="Workers in this process.")
    engine_type: str = setting("vllm", "Engine to simulate.", choices=tuple(_BLOCK_SIZES))
    num_gpu_blocks_override: int | None = setting(None, "KV blocks; default 16384.")
    block_size: int | None = setting(None, "Tokens in a KV block; default 64 (vllm).")
    max_model_len: int | None = setting(None, "Longest prompt plus answer, in tokens.")
    max_num_seqs: int = setting(256, "Requests that run at once.")
    max_num_batched_tokens: int = setting(8192, "Tokens of one step.")
    enable_prefix_caching: bool = setting(True, "Keep KV blocks of prompts for later requests.")
    enable_chunked_prefill: bool = setting(True, "Spread long prompts over several steps.")
    preemption_mode: str = setting("lifo", "Who goes when blocks run out.", choices=("lifo", "fifo"))
    watermark: float | None = setting(None, "Share of the blocks that is kept free (0.x).")
    speedup_ratio: float = setting(1.0, "How many times faster than a real engine; 0: no simulated time at all.")
    decode_speedup_ratio: float = setting(1.0, "The same, for decoding, on top of it.")
    data_parallel_size: int = setting(1, "Data-parallel ranks per worker.")
    startup_time: float | None = setting(None, "Seconds before it serves.")
    disaggregation_mode: str = setting(
        "agg", "Phase that this worker runs: agg (both), prefill or decode.", choices=MODES
    )
    bootstrap_ports: str = setting("", "Ports where decode workers meet prefill workers; one is enough here.")
    kv_transfer_bandwidth: float | None = setting(None, "GB/s between prefill and decode workers; 0: no time.")
    kv_transfer_timing_mode: str = setting("full_prompt", "KV transfer model; only full_prompt is supported.")
    kv_cache_dtype: str = setting("auto", "Type of the simulated cache.")
    kv_bytes_per_token: str = setting("auto", "Bytes of KV cache per token.")
    reasoning: str = setting("", "JSON object with start_thinking_token_id, end_thinking_token_id and thinking_ratio.")
    dyn_tool_call_parser: str = like(
        WorkerSettings, "dyn_tool_call_parser",
        help="Parser that extracts `tool_calls` from the output (docs/how-to/serve/tools.md).",
    )  # fmt: skip
    dyn_reasoning_parser: str = like(
        WorkerSettings, "dyn_reasoning_parser",
        help="Parser that extracts `reasoning_content` from the output (docs/how-to/serve/tools.md).",
    )  # fmt: skip
    migration_limit: int | None = like(
        WorkerSettings, "migration_limit",
        help="Times a request may move to another worker; default: the frontend's limit.",
    )  # fmt: skip
    extra_engine_args: str = setting("", "JSON file with arguments; it wins over flags.", env="DYN_ENGINE_ARGS")
    system_host: str = like(WorkerSettings, "system_host", help="Address of /health, /live and /metrics.")
    system_port: int = like(WorkerSettings, "system_port")
    open_engine_routes: bool = like(WorkerSettings, "open_engine_routes")
    graceful_shutdown_timeout_secs: float = like(WorkerSettings, "graceful_shutdown_timeout_secs")
    discovery_backend: str = like(WorkerSettings, "discovery_backend", help="Where workers are registered.")
    verbose: int = 0


_ARGUMENTS: Final = (
    "engine_type", "num_gpu_blocks_override", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "enable_prefix_caching", "enable_chunked_prefill", "preemption_mode", "watermark", "speedup_ratio",
    "decode_speedup_ratio", "data_parallel_size", "startup_time", "disaggregation_mode", "kv_transfer_bandwidth",
    "kv_transfer_timing_mode", "kv_cache_dtype", "kv_bytes_per_token", "reasoning",
)  # fmt: skip


def worker_settings(given: MockerSettings) -> WorkerSettings:
    """Return the settings for the worker; raises `InvalidArgument`."""
    arguments: dict[str, Any] = {name: getattr(given, name) for name in _ARGUMENTS}
    arguments = {name: value for name, value in arguments.items() if value not in (None, "")}
    if given.kv_bytes_per_token != "auto":
        arguments["kv_bytes_per_token"] = _number(given.kv_bytes_per_token)
    if ports := [port for port in given.bootstrap_ports.split(",") if port.strip()]:
        arguments["bootstrap_port"] = _number(ports[0])
    if given.extra_engine_args:
        arguments |= WorkerSettings(engine_args=given.extra_engine_args).arguments()
    component = "prefill" if given.disaggregation_mode == "prefill" else "backend"
    block_size = _BLOCK_SIZES[given.engine_type] if given.block_size is None else given.block_size
    return dataclasses.replace(
        WorkerSettings(engine="mocker"),
        endpoint=given.endpoint or f"dyn://{given.namespace}.{component}.generate",
        kv_cache_block_size=block_size,
        engine_args=json.dumps(arguments),
        verbose=given.verbose,
        **values_for(WorkerSettings, given),
    )


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"{text!r} must be a whole number") from None
