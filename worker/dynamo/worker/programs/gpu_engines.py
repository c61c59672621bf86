"""`python -m dynamo.vllm|sglang|trtllm`: a worker with that engine. What isn't known here goes to the engine."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final

from dynamo.runtime.http.local_callers import OPEN_VARIABLE
from dynamo.runtime.process.settings import setting
from dynamo.worker.settings import WorkerSettings

MODES: Final = ("agg", "aggregated", "pd", "prefill", "decode")
_ROLES: Final = {"prefill": "prefill", "decode": "decode"}


@dataclass(frozen=True)
class EngineProgramSettings:
    """What all three programs can be told; every other flag is the engine's own."""

    model: str = setting(
        "", "Model: ORG/REPO, a folder, or a GGUF file.", env=("DYN_MODEL_PATH", "DYN_TRTLLM_MODEL"),
        flags=["--model-path"],
    )  # fmt: skip
    served_model_name: str = setting(
        "", "Name to serve it under; default: as --model.", env=("DYN_MODEL_NAME", "DYN_TRTLLM_SERVED_MODEL_NAME"),
        flags=["--model-name"],
    )  # fmt: skip
    endpoint: str = setting(
        "", "What to serve, dyn://NAMESPACE.COMPONENT.ENDPOINT; default: backend.generate, or prefill.generate, in the "
        "namespace.", env=("DYN_ENDPOINT", "DYN_ENDPOINT_PATH"),
    )  # fmt: skip
    namespace: str = setting("dynamo", "Its namespace where --endpoint doesn't say.", env="DYN_NAMESPACE")
    disaggregation_mode: str = setting(
        "agg", "Phase that this worker runs: agg (both), prefill or decode.", choices=MODES,
        env=("DYN_VLLM_DISAGGREGATION_MODE", "DYN_TRTLLM_DISAGGREGATION_MODE"),
    )  # fmt: skip
    tensor_parallel_size: int = setting(
        1, "GPUs that share one replica.", env="DYN_TRTLLM_TENSOR_PARALLEL_SIZE", flags=["--tp", "--tp-size", "-tp"]
    )
    context_length: int | None = setting(None, "Longest prompt plus answer in tokens; default: the model's.")
    kv_cache_block_size: int | None = setting(
        None, "Tokens in a KV block; default 16, of TensorRT-LLM 32.", env="DYN_TRTLLM_KV_BLOCK_SIZE",
        flags=["--block-size", "--page-size", "--kv-block-size"],
    )  # fmt: skip
    num_nodes: int = setting(1, "Nodes that share one replica.", flags=["--nnodes"])
    node_rank: int = setting(0, "Rank of this node; 0 leads.")
    leader_addr: str = setting("", "HOST:PORT of the node of rank 0.", flags=["--dist-init-addr", "--master-addr"])
    chat_template: str = setting("", "Jinja file that replaces the model's chat template.")
    dyn_tool_call_parser: str = setting(
        "",
        "Parser that extracts `tool_calls` from the output (docs/tools.md). Default: none.",
        env="DYN_TOOL_CALL_PARSER",
    )
    dyn_reasoning_parser: str = setting(
        "",
        "Parser that extracts `reasoning_content` from the output (docs/tools.md). Default: none.",
        env="DYN_REASONING_PARSER",
    )
    migration_limit: int | None = setting(
        None, "Times a request may move to another worker; default: the frontend's limit."
    )
    extra_engine_args: str = setting(
        "", "File with the engine's own arguments; it wins over flags.", flags=["--engine-args"],
        env=("DYN_ENGINE_ARGS", "DYN_TRTLLM_EXTRA_ENGINE_ARGS"),
    )  # fmt: skip
    override_engine_args: str = setting(
        "", "The same, as a JSON object; it wins over both.", env="DYN_TRTLLM_OVERRIDE_ENGINE_ARGS"
    )
    health_check_enabled: bool = setting(
        False, "Ask the engine when it has been silent; leave routing while it doesn't answer.",
        env="DYN_HEALTH_CHECK_ENABLED",
    )  # fmt: skip
    health_check_payload: str = setting(
        "", "What it is asked, as a JSON object, or @FILE; default: one token.", env="DYN_HEALTH_CHECK_PAYLOAD"
    )
    system_host: str = setting("127.0.0.1", "Address of /health, /live and /metrics.", env="DYN_SYSTEM_HOST")
    system_port: int = setting(-1, "Their port: 0 picks a free one, -1 turns them off.", env="DYN_SYSTEM_PORT")
    open_engine_routes: bool = setting(
        False, "Take what is asked of /engine from other machines, too.", env=OPEN_VARIABLE
    )
    graceful_shutdown_timeout_secs: float = setting(
        30.0, "Seconds that running streams may go on after SIGTERM.", env="DYN_GRACEFUL_SHUTDOWN_TIMEOUT_SECS"
    )
    discovery_backend: str = setting(
        "etcd", "Where workers are registered.", env="DYN_DISCOVERY_BACKEND", choices=("etcd", "mem")
    )
    verbose: int = 0


_SAME: Final = (
    "tensor_parallel_size", "context_length", "num_nodes", "node_rank", "leader_addr", "chat_template",
    "dyn_tool_call_parser", "dyn_reasoning_parser", "migration_limit",
    "health_check_enabled", "health_check_payload", "system_host", "system_port", "open_engine_routes",
    "graceful_shutdown_timeout_secs",
    "discovery_backend", "verbose",
)  # fmt: skip
SHORT: Final = {
    "vllm": {"-pp": "pipeline_parallel_size", "-dp": "data_parallel_size", "-q": "quantization"},
    "sglang": {"--pp": "pp_size", "--dp": "dp_size", "--ep": "ep_size"},
    "trtllm": {},
}  # fmt: skip
"""Spellings of the engine's own flags that are not their arguments' names."""
_BLOCK_SIZES: Final = {"vllm": 16, "sglang": 16, "trtllm": 32}


def worker_settings(engine: str, given: EngineProgramSettings, own: dict[str, Any]) -> WorkerSettings:
    """The same, for the worker; `own` are the engine's arguments. Raises `InvalidArgument`."""
    arguments = dict(own)
    if given.extra_engine_args:
        arguments |= WorkerSettings(engine=engine, engine_args=given.extra_engine_args).arguments()
    if given.override_engine_args:
        arguments |= WorkerSettings(engine=engine, engine_args=given.override_engine_args).arguments()
    role = _ROLES.get(given.disaggregation_mode, "aggregated")
    component = "prefill" if role == "prefill" else "backend"
    return dataclasses.replace(
        WorkerSettings(engine=engine),
        model_path=given.model,
        model_name=given.served_model_name,
        endpoint=given.endpoint or f"dyn://{given.namespace}.{component}.generate",
        role=role,
        kv_cache_block_size=given.kv_cache_block_size or _BLOCK_SIZES[engine],
        engine_args=json.dumps(arguments) if arguments else "",
        **{name: getattr(given, name) for name in _SAME},
    )
