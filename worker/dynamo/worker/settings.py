"""The worker's settings: every flag, its variable and its default.

Made into a click command by `dynamo.runtime.process.settings.command`; the plan of a pipeline
writes these flags, and a test parses what it wrote.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dynamo.engine_catalog import kv_block_sizes, traits_of
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.http.local_callers import OPEN_VARIABLE
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.process.extras import install_hint
from dynamo.runtime.process.program_options import ProgramOptions
from dynamo.runtime.process.settings import like, setting

ROLES: Final = ("aggregated", "prefill", "decode")
MODES: Final = ("tokens", "text")
_RANGES: Final = {
    "context_length": (2, 1 << 31),
    "kv_cache_block_size": (1, 1 << 16),
    "tensor_parallel_size": (1, 4096),
    "num_workers": (1, 1024),
    "num_nodes": (1, 4096),
    "node_rank": (0, 4095),
    "system_port": (-1, 65535),
    "graceful_shutdown_timeout_secs": (0, 7 * 86400),
    "migration_limit": (0, 1 << 31),
    "canary_wait_time_secs": (0.1, 86400),
    "health_check_request_timeout_secs": (0.1, 86400),
}


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of a worker process."""

    engine: str = setting("", "Engine to run; required.", env="DYN_ENGINE")
    model_path: str = setting(
        "",
        "Folder, GGUF file, ORG/REPO of Hugging Face (also hf://ORG/REPO, @REVISION, :QUANTISATION, /FILE.gguf) or "
        "package://NAME; empty: the built-in byte-level model.",
        env="DYN_MODEL_PATH",
    )
    model_name: str = setting("", "Name that clients use; default: that of the file or folder.", env="DYN_MODEL_NAME")
    model_config: str = setting(
        "", "Folder or ORG/REPO whose tokenizer, template and configuration a GGUF file is served with, not its own."
    )
    endpoint: str = setting(
        "dyn://dynamo.backend.generate",
        "Endpoint to serve, dyn://NAMESPACE.COMPONENT.ENDPOINT.",
        env="DYN_ENDPOINT_PATH",
    )
    role: str = setting(
        "aggregated",
        "Phase that this worker runs: aggregated (both), prefill or decode.",
        env="DYN_ROLE",
        choices=ROLES,
    )
    context_length: int | None = setting(
        None, "Longest prompt plus answer, in tokens. Default and maximum: the model's own."
    )
    kv_cache_block_size: int | None = setting(None, kv_block_sizes())
    tensor_parallel_size: int = setting(1, "GPUs that share one copy of the model.")
    num_workers: int = setting(1, "Instances in this process, each with its own engine (mocker and echo engines only).")
    num_nodes: int = setting(1, "Nodes that share one copy of the model.")
    node_rank: int = setting(0, "Rank of this node; 0 leads.")
    leader_addr: str = setting("", "Address of the node of rank 0, host:port.")
    chat_template: str = setting(
        "", "Jinja file, or the template itself, that replaces the model's chat template.",
        flags=["--custom-jinja-template"],
    )  # fmt: skip
    dyn_tool_call_parser: str = setting(
        "",
        "Parser that extracts `tool_calls` from the output; docs/how-to/serve/tools.md has the names. Default: none.",
        env="DYN_TOOL_CALL_PARSER",
    )  # fmt: skip
    dyn_reasoning_parser: str = setting(
        "",
        "Parser that extracts `reasoning_content` from the output, e.g. qwen3. Default: none.",
        env="DYN_REASONING_PARSER",
    )
    engine_args: str = setting(
        "", "The engine's own arguments: a JSON object, or @FILE.", env="DYN_ENGINE_ARGS", flags=["--extra-engine-args"]
    )
    python_file: str = setting("", "File with an async generate(request) (engine python).")
    python_mode: str = setting(
        "tokens", "What generate gets and returns: tokens or text (engine python).", choices=MODES
    )
    python_arg: list[str] = setting(  # noqa: RUF009 - makes a dataclass field
        [], "One word of the file's sys.argv; may be repeated (engine python)."
    )
    system_host: str = like(
        ProgramOptions, "system_host", help="Address of /health, /live, /metrics, /v1/metadata and /engine."
    )
    system_port: int = like(ProgramOptions, "system_port")
    open_engine_routes: bool = setting(
        False, "Let other machines call /engine routes, not only this one.", env=OPEN_VARIABLE
    )
    system_enabled: bool | None = setting(
        None,
        "Older switch of the system port: on picks a free port if none is set, off closes it.",
        env="DYN_SYSTEM_ENABLED",
    )
    graceful_shutdown_timeout_secs: float = like(ProgramOptions, "graceful_shutdown_timeout_secs")
    migration_limit: int | None = setting(
        None, "Times a request for this model may move to another worker; default: the frontend's limit."
    )
    load_metrics: bool = setting(
        False, "Serve the engine's load at an endpoint load_metrics beside the other one.",
        env="DYN_LOAD_METRICS",
    )  # fmt: skip
    health_check_enabled: bool = setting(
        False, "Probe the engine after a silence; leave routing while it doesn't answer.",
        env="DYN_HEALTH_CHECK_ENABLED",
    )  # fmt: skip
    canary_wait_time_secs: float = setting(
        10.0, "Seconds without output after which the engine is probed.", env="DYN_CANARY_WAIT_TIME"
    )
    health_check_request_timeout_secs: float = setting(
        3.0, "Seconds that the first token of a probe may take.", env="DYN_HEALTH_CHECK_REQUEST_TIMEOUT"
    )
    health_check_payload: str = setting(
        "", "Request of the probe, as a JSON object or @FILE; default: one token.", env="DYN_HEALTH_CHECK_PAYLOAD"
    )
    discovery_backend: str = like(ProgramOptions, "discovery_backend", help="Where instances are registered.")
    direct_frames: str = like(ProgramOptions, "direct_frames")
    verbose: int = 0

    def check(self) -> None:
        """Raise `InvalidArgument` naming the first flag whose value can't be meant."""
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidArgument(f"--{name.replace('_', '-')} must be from {low} to {high}, got {value}")
        if self.node_rank >= self.num_nodes:
            raise InvalidArgument(f"--node-rank {self.node_rank} is not below --num-nodes {self.num_nodes}")
        self._check_group()
        self._check_parsers()
        self.path()
        self.arguments()
        self.payload()

    def _check_parsers(self) -> None:
        if self.dyn_tool_call_parser or self.dyn_reasoning_parser:
            from dynamo.llm.parsers.parser_names import check_parsers  # their patterns are for those who name one

            check_parsers(self.dyn_tool_call_parser, self.dyn_reasoning_parser)

    def _check_group(self) -> None:
        if self.num_nodes == 1:
            return
        if not self.leader_addr:
            raise InvalidArgument("--num-nodes needs --leader-addr HOST:PORT of the node of rank 0, the same on each")
        leader_address(self.leader_addr)
        if self.num_workers > 1:
            raise InvalidArgument("--num-workers and --num-nodes are both above 1: a group of nodes is one worker")
        if self.discovery_backend == "mem":
            raise InvalidArgument("--num-nodes needs --discovery-backend etcd: nodes find each other there")

    def card_fields(self) -> dict[str, Any]:
        """Return what frontends learn from the model's card: options of theirs that this worker sets for its model."""
        return {} if self.migration_limit is None else {"migration_limit": self.migration_limit}

    @property
    def block_size(self) -> int:
        """Return the tokens in a KV block, the engine's own default included."""
        return self.kv_cache_block_size or traits_of(self.engine).kv_block_size

    @property
    def wanted_system_port(self) -> int:
        """Return the port of the system server; 0: any, negative: none."""
        if self.system_enabled is False:
            return -1
        return 0 if self.system_enabled and self.system_port < 0 else self.system_port

    def path(self) -> EndpointPath:
        """Return the endpoint to serve; `InvalidArgument` where it is none."""
        return EndpointPath.parse(self.endpoint)

    def arguments(self) -> dict[str, Any]:
        """Return `engine_args` as an object; `InvalidArgument` says what is wrong with it."""
        return _object(self.engine_args, "--engine-args")

    def payload(self) -> dict[str, Any]:
        """Return `health_check_payload` likewise; empty where there is none."""
        return _object(self.health_check_payload, "--health-check-payload")


def _object(text: str, source: str) -> dict[str, Any]:
    """Read a JSON object, or that of a file; empty for no text."""
    if not text:
        return {}
    file = text[1:] if text.startswith("@") else text if not text.lstrip().startswith("{") else ""
    if file:
        source = f"{source} {file}"
        text = _read(Path(file), source)
    value = _yaml(text, source) if file.endswith((".yaml", ".yml")) else _json(text, source)
    if not isinstance(value, dict):
        raise InvalidArgument(f'{source} must be a JSON object, such as {{"name": value}}')
    return value


def _json(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{source} is no JSON: {error}") from error
    except RecursionError as error:
        raise InvalidArgument(f"{source} is nested too deeply") from error


def _yaml(text: str, source: str) -> Any:
    """Read YAML, as TensorRT-LLM's users keep its arguments; what JSON can say of it, since they go on as that."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise InvalidArgument(f"{source}: YAML needs PyYAML: {install_hint('cli')}, or use JSON") from error
    try:
        value = yaml.safe_load(text) or {}
        return json.loads(json.dumps(value))
    except yaml.YAMLError as error:
        raise InvalidArgument(f"{source} is no YAML: {' '.join(str(error).split())}") from error
    except TypeError as error:  # a date, say
        raise InvalidArgument(f"{source} holds what JSON has no word for ({error}): write it as a text") from error
    except ValueError as error:
        raise InvalidArgument(f"{source} refers to itself") from error
    except RecursionError as error:
        raise InvalidArgument(f"{source} is nested too deeply") from error


def _read(path: Path, source: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{source}: neither a JSON object nor a file that can be read ({error})") from error


def checked_arguments(
    engine: str, given: dict[str, Any], defaults: dict[str, Any], lowest: dict[str, int]
) -> dict[str, Any]:
    """Return an engine's own arguments over its defaults, whose types they must have.

    Numbers are at least `lowest`, or 0.

    `InvalidArgument` names the first that is unknown (with the nearest known one) or of another kind.
    """
    for name, value in given.items():
        if name not in defaults:
            raise unknown_name(f"{engine} argument", name, list(defaults))
        kind = type(defaults[name])
        if kind is int:
            low = lowest.get(name, 0)
            if type(value) is not int or value < low:
                raise InvalidArgument(
                    f"{engine} argument {name!r} must be a whole number of at least {low}, got {value!r}"
                )
        elif type(value) is not kind:
            word = {str: "a text", bool: "true or false", list: "a list"}[kind]
            raise InvalidArgument(f"{engine} argument {name!r} must be {word}, got {value!r}")
    return {**defaults, **given}


def leader_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` or `[v6]:PORT`; raises `InvalidArgument` where that is none."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not port.isdecimal() or not 0 < int(port) < 65536 or (":" in bare and host == bare):
        raise InvalidArgument(f"--leader-addr must be HOST:PORT of the node of rank 0, got {text!r}")
    return bare, int(port)


def unknown_name(what: str, name: str, known: list[str]) -> InvalidArgument:
    """Return the error for a name that is not among `known`, with the nearest of them."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"
    return InvalidArgument(f"unknown {what} {name!r}{hint}")
