"""`python -m dynamo.vllm|sglang|trtllm`: a worker with that engine. What isn't known here goes to the engine."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final

from dynamo.runtime.process.program_options import ProgramOptions
from dynamo.runtime.process.settings import like, setting, values_for
from dynamo.worker.settings import WorkerSettings

MODES: Final = ("agg", "aggregated", "pd", "prefill", "decode")
_ROLES: Final = {"prefill": "prefill", "decode": "decode"}


@dataclass(frozen=True)
class EngineProgramSettings:
    """Flags that all three programs have; every other flag is the engine's own."""

    model: str = like(
        WorkerSettings, "model_path", help="Model: ORG/REPO, a folder, or a GGUF file.",
        env=("DYN_MODEL_PATH", "DYN_TRTLLM_MODEL"), flags=["--model-path"],
    )  # fmt: skip
    served_model_name: str = like(
        WorkerSettings, "model_name", help="Name to serve it under; default: as --model.",
        env=("DYN_MODEL_NAME", "DYN_TRTLLM_SERVED_MODEL_NAME"), flags=["--model-name"],
    )  # fmt: skip
    endpoint: str = setting(
        "", "What to serve, dyn://NAMESPACE.COMPONENT.ENDPOINT; default: backend.generate, or prefill.generate, in the "
        "namespace.", env=("DYN_ENDPOINT", "DYN_ENDPOINT_PATH"),
    )  # fmt: skip
    namespace: str = like(
        ProgramOptions, "namespace", default="dynamo", help="Its namespace where --endpoint doesn't say."
    )
    disaggregation_mode: str = setting(
        "agg", "Phase that this worker runs: agg (both), prefill or decode.", choices=MODES,
        env=("DYN_VLLM_DISAGGREGATION_MODE", "DYN_TRTLLM_DISAGGREGATION_MODE"),
    )  # fmt: skip
    tensor_parallel_size: int = like(
        WorkerSettings, "tensor_parallel_size", env="DYN_TRTLLM_TENSOR_PARALLEL_SIZE",
        flags=["--tp", "--tp-size", "-tp"],
    )  # fmt: skip
    context_length: int | None = like(
        WorkerSettings, "context_length", help="Longest prompt plus answer in tokens; default: the model's."
    )
    kv_cache_block_size: int | None = setting(
        None, "Tokens in a KV block; default 16, of TensorRT-LLM 32.", env="DYN_TRTLLM_KV_BLOCK_SIZE",
        flags=["--block-size", "--page-size", "--kv-block-size"],
    )  # fmt: skip
    num_nodes: int = like(WorkerSettings, "num_nodes", flags=["--nnodes"])
    node_rank: int = like(WorkerSettings, "node_rank")
    leader_addr: str = like(
        WorkerSettings, "leader_addr", help="HOST:PORT of the node of rank 0.",
        flags=["--dist-init-addr", "--master-addr"],
    )  # fmt: skip
    chat_template: str = like(
        WorkerSettings, "chat_template", help="Jinja file that replaces the model's chat template.", flags=()
    )
    dyn_tool_call_parser: str = like(
        WorkerSettings, "dyn_tool_call_parser",
        help="Parser that extracts `tool_calls` from the output (docs/how-to/serve/tools.md). Default: none.",
    )  # fmt: skip
    dyn_reasoning_parser: str = like(
        WorkerSettings, "dyn_reasoning_parser",
        help="Parser that extracts `reasoning_content` from the output (docs/how-to/serve/tools.md). Default: none.",
    )  # fmt: skip
    migration_limit: int | None = like(
        WorkerSettings, "migration_limit",
        help="Times a request may move to another worker; default: the frontend's limit.",
    )  # fmt: skip
    extra_engine_args: str = setting(
        "", "File with the engine's own arguments; it wins over flags.", flags=["--engine-args"],
        env=("DYN_ENGINE_ARGS", "DYN_TRTLLM_EXTRA_ENGINE_ARGS"),
    )  # fmt: skip
    override_engine_args: str = setting(
        "", "The same, as a JSON object; it wins over both.", env="DYN_TRTLLM_OVERRIDE_ENGINE_ARGS"
    )
    health_check_enabled: bool = like(WorkerSettings, "health_check_enabled")
    health_check_payload: str = like(WorkerSettings, "health_check_payload")
    system_host: str = like(WorkerSettings, "system_host", help="Address of /health, /live and /metrics.")
    system_port: int = like(WorkerSettings, "system_port")
    open_engine_routes: bool = like(WorkerSettings, "open_engine_routes")
    graceful_shutdown_timeout_secs: float = like(WorkerSettings, "graceful_shutdown_timeout_secs")
    discovery_backend: str = like(WorkerSettings, "discovery_backend", help="Where workers are registered.")
    verbose: int = 0


SHORT: Final = {
    "vllm": {"-pp": "pipeline_parallel_size", "-dp": "data_parallel_size", "-q": "quantization"},
    "sglang": {"--pp": "pp_size", "--dp": "dp_size", "--ep": "ep_size"},
    "trtllm": {},
}  # fmt: skip
"""Spellings of the engine's own flags that are not their arguments' names."""


def worker_settings(engine: str, given: EngineProgramSettings, own: dict[str, Any]) -> WorkerSettings:
    """Return the settings for the worker; `own` are the engine's arguments. Raises `InvalidArgument`."""
    arguments = dict(own)
    if given.extra_engine_args:
        arguments |= WorkerSettings(engine=engine, engine_args=given.extra_engine_args).arguments()
    if given.override_engine_args:
        arguments |= WorkerSettings(engine=engine, engine_args=given.override_engine_args).arguments()
    role = _ROLES.get(given.disaggregation_mode, "aggregated")
    component = "prefill" if role == "prefill" else "backend"
    return dataclasses.replace(
        WorkerSettings(engine=engine),
        endpoint=given.endpoint or f"dyn://{given.namespace}.{component}.generate",
        role=role,
        kv_cache_block_size=given.kv_cache_block_size,
        engine_args=json.dumps(arguments) if arguments else "",
        verbose=given.verbose,
        **values_for(WorkerSettings, given),
    )
