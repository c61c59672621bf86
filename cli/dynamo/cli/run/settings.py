"""The flags of `dynamo-run`, what they mean to a frontend and to a worker, and a command line that was understood.

Pure: translates one `RunSettings` into the settings of the two deployables, whose own
code then does the work. Flags of NVIDIA Dynamo that are none of these stand in `legacy_flags.py`.
A `Run` is made by `main.py` and carried out by `session.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dynamo.cli.conversation import MAX_COMPLETION_TOKENS
from dynamo.cli.run.grammar import BATCH, DYN, WORKER, CommandError, Roles, Words
from dynamo.frontend.openai.request_defaults import RequestDefaults, read_defaults
from dynamo.frontend.settings import FrontendSettings, problem
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.process.settings import build, flag, like, setting, values_for
from dynamo.worker.settings import WorkerSettings

LOCAL_ENDPOINT: Final = EndpointPath("dynamo", "backend", "generate")
SGLANG: Final = "sglang"
TRUE_FALSE: Final = ("true", "false")


@dataclass(frozen=True)
class RunSettings:
    """Flags of `dynamo-run`: what follows in=, out= and the model."""

    model_path: str = setting("", "The model; the same as MODEL.")
    model_name: str = like(
        WorkerSettings, "model_name", help="Name to serve it under; default: its file's or folder's name.", env=None
    )
    model_config: str = setting(
        "", "Folder or ORG/REPO whose tokenizer, template and configuration a .gguf file is served with, not its own."
    )
    http_port: int = like(
        FrontendSettings, "http_port", default=8080,
        help="Port of in=http and of in=grpc; 0 picks a free one and prints it.",
    )  # fmt: skip
    http_host: str = like(
        FrontendSettings, "http_host", default="127.0.0.1", help="Address of both; 0.0.0.0 opens it to the network."
    )
    grpc_metrics_port: int = like(
        FrontendSettings, "grpc_metrics_port", help="Port of HTTP beside in=grpc; 0 picks a free one."
    )
    router_mode: str = like(FrontendSettings, "router_mode", help="How in=http out=dyn chooses a worker.")
    migration_limit: int | None = like(
        FrontendSettings, "migration_limit", default=None,
        help="Times a request may move to another worker after its worker fails; 0 disables migration.",
    )  # fmt: skip
    context_length: int | None = like(
        WorkerSettings, "context_length", help="Longest prompt plus answer, in tokens (worker side)."
    )
    kv_cache_block_size: int | None = like(WorkerSettings, "kv_cache_block_size")
    chat_template: str = like(
        WorkerSettings, "chat_template",
        help="Jinja file, or the template itself, that replaces the model's chat template (worker side).",
    )  # fmt: skip
    dyn_tool_call_parser: str = like(
        WorkerSettings, "dyn_tool_call_parser",
        help="Parser that extracts `tool_calls` from the output (worker side; docs/how-to/serve/tools.md).",
    )  # fmt: skip
    dyn_reasoning_parser: str = like(
        WorkerSettings, "dyn_reasoning_parser",
        help="Parser that extracts `reasoning_content` from the output (worker side; docs/how-to/serve/tools.md).",
    )  # fmt: skip
    tokenizer: str = like(
        FrontendSettings, "tokenizer", help="Tokenizer library; chats use the one that loads at once where it is auto."
    )
    extra_engine_args: str = setting("", "JSON file with arguments for the engine, by its own names.")
    request_template: str = setting(
        "", "JSON file with what requests get that leave it out: model, temperature, max_completion_tokens."
    )
    batch_output: str = setting("", "File for the answers of in=batch; default: output.jsonl beside the input.")
    batch_concurrency: int = setting(32, "Lines of in=batch that run at once.", env="DYN_BATCH_CONCURRENCY")
    batch_ordered: bool = setting(False, "Write answers of in=batch in the order of the input, not as they come.")
    batch_restart: bool = setting(False, "Start in=batch over where an interrupted run could be gone on with.")
    tensor_parallel_size: int = like(WorkerSettings, "tensor_parallel_size", help="GPUs per worker.")
    num_nodes: int = like(WorkerSettings, "num_nodes", help="Machines per engine; the same on each.")
    node_rank: int = like(
        WorkerSettings, "node_rank", help="Rank of this machine: 0 leads, the others follow (in=none)."
    )
    leader_addr: str = like(WorkerSettings, "leader_addr", help="HOST:PORT of rank 0; the same on each.")
    router_prefill_load_scale: float = like(
        FrontendSettings, "router_prefill_load_scale", env=None,
        flags=("--kv-overlap-score-weight",), aliases=("--router-kv-overlap-score-weight",),
        help="How strongly the router prefers workers that cache the prompt, relative to balancing load (kv router).",
    )  # fmt: skip
    router_temperature: float = like(FrontendSettings, "router_temperature", env=None)
    router_replica_sync: str = like(
        FrontendSettings, "router_replica_sync", default="true", choices=TRUE_FALSE, env=None,
        help="Exchange routing decisions with other frontends (kv router).",
    )  # fmt: skip
    use_kv_events: str = like(FrontendSettings, "use_kv_events", default="true", choices=TRUE_FALSE, env=None, flags=())
    discovery_backend: str = like(FrontendSettings, "discovery_backend", help="Where other processes are found.")
    cors_origin: list[str] = like(FrontendSettings, "cors_origin")  # noqa: RUF009 - makes a dataclass field
    api_keys_file: str = like(FrontendSettings, "api_keys_file")
    tls_cert_path: str = like(FrontendSettings, "tls_cert_path", help="Serve HTTPS with this certificate (PEM).")
    tls_key_path: str = like(FrontendSettings, "tls_key_path")
    base_gpu_id: int = setting(0, "First GPU to use (sglang); for other engines set CUDA_VISIBLE_DEVICES.")


_WORKER_SIDE: Final = (
    "context_length", "kv_cache_block_size", "extra_engine_args", "chat_template", "model_config",
    "dyn_tool_call_parser", "dyn_reasoning_parser",
)  # fmt: skip


def notices(roles: Roles, settings: RunSettings, model: str = "") -> list[str]:
    """Return one sentence per flag that was given but changes nothing for this engine, or for this model."""
    sentences = []
    if settings.base_gpu_id and roles.output != SGLANG:
        sentences.append(f"--base-gpu-id changes nothing for {roles.output}: set CUDA_VISIBLE_DEVICES")
    if settings.model_config and not is_gguf(model):
        what = f"{model} has its own tokenizer and template" if model else "it describes a .gguf file"
        sentences.append(f"--model-config changes nothing: {what}")
    return sentences


def check(roles: Roles, settings: RunSettings, model: str) -> None:
    """Refuse what would be silently wrong, with a `CommandError`."""
    if reason := problem(frontend_settings(roles, settings)):
        raise CommandError(reason)
    if roles.output == DYN:
        _check_frontend_only(settings, model)
    _check_batch(roles, settings)
    _check_nodes(roles, settings)
    if roles.input == WORKER and settings.request_template:
        raise CommandError("--request-template belongs to in=text, in=stdin, in=http and in=batch, not to a worker")
    if roles.input == "grpc" and settings.request_template:
        raise CommandError("--request-template has no effect with in=grpc: requests say it in their parameters")


def _check_batch(roles: Roles, settings: RunSettings) -> None:
    if not 1 <= settings.batch_concurrency <= 4096:
        raise CommandError("--batch-concurrency must be between 1 and 4096")
    plain = RunSettings()
    for name in ("batch_output", "batch_ordered", "batch_restart"):
        if roles.input != BATCH and getattr(settings, name) != getattr(plain, name):
            raise CommandError(f"{flag(name)} belongs to in=batch:FILE")


def _check_nodes(roles: Roles, settings: RunSettings) -> None:
    """Refuse what can't be meant of several nodes; the rest is the worker's own check."""
    if roles.follower and (settings.num_nodes < 2 or settings.node_rank < 1):
        raise CommandError(
            "in=none is for the nodes beside a leader: give --num-nodes and --leader-addr as the leader has them, "
            "and --node-rank from 1 on"
        )
    if roles.output == DYN and (settings.num_nodes, settings.node_rank, settings.leader_addr) != (1, 0, ""):
        raise CommandError(
            "--num-nodes, --node-rank and --leader-addr configure an engine; out=dyn runs none. "
            "Give them to the worker: in=dyn://… out=ENGINE."
        )
    if roles.input != WORKER and settings.node_rank:
        raise CommandError(f"--node-rank {settings.node_rank}: give in=none on the nodes beside the leader")


def _check_frontend_only(settings: RunSettings, model: str) -> None:
    for name in _WORKER_SIDE:
        if getattr(settings, name):
            raise CommandError(f"'{flag(name)}' flag should only be used on the worker node, not on the ingress")
    if model:
        raise CommandError(f"out=dyn serves the models of its workers; {model} belongs to in=dyn:// out=ENGINE")


def is_gguf(model: str) -> bool:
    """Tell whether a GGUF file is named, here, of the hub, or of a package."""
    return ".gguf" in model.lower() or model.startswith("package://") or ":" in model.rpartition("/")[2]


def frontend_settings(
    roles: Roles, settings: RunSettings, template: Mapping[str, Any] | None = None
) -> FrontendSettings:
    """Return settings of the frontend in this process; `template` has the fields of `--request-template`."""
    switches = {name: getattr(settings, name) == "true" for name in ("use_kv_events", "router_replica_sync")}
    return build(
        FrontendSettings,
        **values_for(FrontendSettings, settings) | switches,
        kserve_grpc_server=roles.input == "grpc",
        namespace=_namespace(roles, settings),
        endpoint=str(roles.path) if roles.output == DYN and roles.path else "",
        shutdown_delay_secs=0.0,
        graceful_shutdown_timeout_secs=5.0,
        clipped_tokens=0 if roles.input in ("http", "grpc") else MAX_COMPLETION_TOKENS,
        request_defaults=RequestDefaults(**template) if template else None,
    )


def _namespace(roles: Roles, settings: RunSettings) -> str:
    """Return the only namespace that a frontend looks at; empty: all of them."""
    if roles.output == DYN:
        return roles.path.namespace if roles.path else ""
    return LOCAL_ENDPOINT.namespace if over_nodes(settings) else ""


def over_nodes(settings: RunSettings) -> bool:
    """Tell whether the engine here leads a group.

    Its nodes find each other in etcd, so nothing of it is process-local.
    """
    return settings.num_nodes > 1


def worker_settings(roles: Roles, settings: RunSettings, model: str) -> WorkerSettings:
    """Return settings of the worker in this process."""
    return WorkerSettings(
        **values_for(WorkerSettings, settings),
        engine=roles.output,
        model_path=model,
        model_config=settings.model_config if is_gguf(model) else "",
        endpoint=f"dyn://{roles.path or LOCAL_ENDPOINT}",
        engine_args=_engine_args(roles, settings),
        migration_limit=settings.migration_limit,
        python_file=roles.python_file,
        python_mode=roles.python_mode or WorkerSettings.python_mode,
        python_arg=list(roles.python_arguments),
        discovery_backend=settings.discovery_backend,
        load_metrics=roles.input == WORKER,
    )


def _engine_args(roles: Roles, settings: RunSettings) -> str:
    given = f"@{settings.extra_engine_args}" if settings.extra_engine_args else ""
    if roles.server_url:
        arguments = WorkerSettings(engine=roles.output, engine_args=given).arguments()
        return json.dumps({**arguments, "url": roles.server_url})
    if not settings.base_gpu_id or roles.output != SGLANG:
        return given
    arguments = WorkerSettings(engine=SGLANG, engine_args=given).arguments()
    return json.dumps({"base_gpu_id": settings.base_gpu_id, **arguments})


def request_defaults(settings: RunSettings) -> dict[str, Any]:
    """Return the fields of `--request-template`, or a `CommandError` that says what is wrong with the file."""
    if not settings.request_template:
        return {}
    try:
        defaults = read_defaults(Path(settings.request_template).read_text())
    except (OSError, ValueError, InvalidArgument) as error:
        raise CommandError(f"--request-template {settings.request_template}: {error}") from error
    return {name: value for name in defaults.__struct_fields__ if (value := getattr(defaults, name)) is not None}


@dataclass(frozen=True)
class Run:
    """Run, understood: who asks, who answers, with which model and flags."""

    words: Words
    roles: Roles
    settings: RunSettings
    model: str
    template: dict[str, Any]
    """The fields of `--request-template`."""
