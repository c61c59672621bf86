"""`make_engine` and `run_input`: an engine and a way to ask it, in one process, as `dynamo-run` joins them.

`EngineType.Dynamic` asks workers elsewhere, over the program's runtime; with `Echo` and `Mocker` the engine is in this
process: on the program's runtime for `dyn://…`, else on one in memory, where nobody else sees it.
"""

from __future__ import annotations

import asyncio
import enum
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dynamo.llm.serving.model_runtime_config import ModelRuntimeConfig
from dynamo.llm.serving.router_options import RouterConfig, mode_word
from dynamo.llm.serving.upper_layers import EngineOn, engine_host, http_frontend, talk
from dynamo.llm.unsupported import FrontendRoute
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.process.tasks import unless_dead
from dynamo.runtime.runtime import DistributedRuntime

_HOLD_SECONDS: Final = 10.0
_DYN: Final = "dyn://"
_LOCAL: Final = "dyn://dynamo.backend.generate"
_WAYS: Final = ("http", "grpc", "text", "stdin")
_INSTEAD: Final = {
    "batch": "`dynamo-run in=batch:FILE` answers the lines of a file",
    "none": "followers of an engine over several nodes are started by `dynamo-run in=none`",
}
_REFUSED: Final = {
    "metrics_prefix": "metrics are called dynamo_frontend_… here: leave it out",
    "chat_engine_factory": "register a model with ModelInput.Text, whose program answers chats by itself",
    "ais_perf_config": "there is no such model of performance here: leave it out",
    "enable_streaming_tool_dispatch": "streams carry OpenAI's chunks only: leave it out",
    "enable_streaming_reasoning_dispatch": "streams carry OpenAI's chunks only: leave it out",
}


class EngineType(enum.Enum):
    """Type of the engine that answers."""

    Echo = "echo_full"
    """The prompt's own text."""
    Dynamic = "dyn"
    """Workers that the runtime finds."""
    Mocker = "mocker"
    """A simulated engine with real scheduling and timing."""


class EntrypointArgs:
    """NVIDIA Dynamo's arguments. `tokenizer_fallback` has no effect; Anthropic's API is always served.

    `InvalidArgument` for those that ask for what isn't here. `extra_engine_args` names a JSON file for the mocker,
    `mocker_engine_args` holds the same as a dict.
    """

    def __init__(
        self, engine_type: EngineType, model_path: str | Path | None = None, model_name: str | None = None,
        endpoint_id: str | None = None, template_file: str | Path | None = None,
        router_config: RouterConfig | None = None, kv_cache_block_size: int | None = None,
        http_host: str | None = None, http_port: int | None = None, http_metrics_port: int | None = None,
        tls_cert_path: str | Path | None = None, tls_key_path: str | Path | None = None,
        extra_engine_args: str | Path | None = None, mocker_engine_args: Mapping[str, Any] | None = None,
        runtime_config: ModelRuntimeConfig | None = None, namespace: str | None = None,
        namespace_prefix: str | None = None, is_prefill: bool = False, is_decode: bool = False,
        migration_limit: int = 0, migration_max_seq_len: int | None = None, chat_engine_factory: Any = None,
        ais_perf_config: Any = None, *, context_length: int | None = None,
        tls_client_ca_cert_path: str | Path | None = None, **later: Any,
    ) -> None:  # fmt: skip
        if not isinstance(engine_type, EngineType):
            raise InvalidArgument(f"EntrypointArgs({engine_type!r}): a dynamo.llm EngineType is meant")
        given = {name: value for name, value in locals().items() if name not in ("self", "later")} | later
        for name in later:
            if name not in _REFUSED and name not in _LATER:
                raise TypeError(f"EntrypointArgs has no argument {name!r}")
        for name, why in _REFUSED.items():
            if given.get(name):
                raise InvalidArgument(f"EntrypointArgs({name}={given[name]!r}): {why}")
        if is_prefill and is_decode:
            raise InvalidArgument("EntrypointArgs: is_prefill and is_decode contradict each other")
        self.engine_type = engine_type
        self.values: dict[str, Any] = given


_LATER: Final = (
    "tokenizer_backend", "tokenizer_fallback", "reasoning_field_name", "enable_anthropic_api",
    "strip_anthropic_preamble",
)  # fmt: skip


@dataclass(frozen=True)
class EngineConfig:
    """Engine that `make_engine` gives to `run_input`."""

    args: EntrypointArgs
    engine: EngineOn | None = None
    """Loaded; None: workers elsewhere."""


async def make_engine(distributed_runtime: DistributedRuntime, args: EntrypointArgs) -> EngineConfig:
    """Load what `args` name, which may take long; `InvalidArgument` says what is wrong with them."""
    if args.engine_type is EngineType.Dynamic:
        return EngineConfig(args)
    prepare = engine_host(f"EngineType.{args.engine_type.name}")
    return EngineConfig(args, await prepare(_of_worker(args)))


async def run_input(
    distributed_runtime: DistributedRuntime,
    input: str,  # noqa: A002 - NVIDIA Dynamo's name
    engine_config: EngineConfig,
    frontend_route_extensions: Sequence[FrontendRoute] | None = None,
) -> None:
    """Connect an input to the engine: `http`, `grpc`, `text`, `stdin` or `dyn://NAMESPACE.COMPONENT.ENDPOINT`.

    `grpc` serves KServe's protocol on `http_port`, and HTTP on `http_metrics_port` (8788), which `http` refuses.
    Returns when the runtime is shut down (a `dynamo_worker` is by SIGTERM), or the conversation is over; `http` and
    `grpc` let running answers end first. Raises `InvalidArgument` for an input that can't be, `EngineError` where the
    engine dies.
    """
    args, way = engine_config.args, _way(input)
    if way == _DYN:
        if engine_config.engine is None:
            raise InvalidArgument(f"{input}: workers elsewhere serve themselves; take EngineType.Echo or Mocker")
        async with engine_config.engine(distributed_runtime, f"{_DYN}{EndpointPath.parse(input)}") as failed:
            await unless_dead(failed, distributed_runtime.closing.wait())
        return
    async with AsyncExitStack() as stack:
        if engine_config.engine is None:
            await _ask(way, distributed_runtime, args, distributed_runtime.closing)
            return
        runtime = await stack.enter_async_context(await DistributedRuntime.in_memory())
        failed = await stack.enter_async_context(engine_config.engine(runtime, _LOCAL))
        await unless_dead(failed, _ask(way, runtime, args, distributed_runtime.closing))


async def _ask(way: str, runtime: DistributedRuntime, args: EntrypointArgs, until: asyncio.Event) -> None:
    options = _of_frontend(args)
    if way in ("http", "grpc"):
        # It takes SIGTERM itself: were the runtime shut down first, running answers would be cut.
        serve, grpc = http_frontend(f"run_input({way!r})"), list[str]()
        options |= _of_ports(args, way)
        await serve(
            runtime, options, on_ready=lambda url: _say_ready(url, *grpc), until=until, signals=True,
            on_grpc=grpc.append,
        )  # fmt: skip
    else:
        await talk(f"run_input({way!r})")(runtime, way, options, args.values["model_name"] or "")


def _of_ports(args: EntrypointArgs, way: str) -> dict[str, Any]:
    port = args.values["http_metrics_port"]
    if way == "grpc":
        return {"kserve_grpc_server": True} | ({} if port is None else {"grpc_metrics_port": port})
    if port:
        raise InvalidArgument(f"EntrypointArgs(http_metrics_port={port}): with 'http', /metrics is on the HTTP port")
    return {}


def _say_ready(url: str, grpc: str = "") -> None:
    place = {"url": url} | ({"grpc": grpc} if grpc else {})
    sys.stdout.write(f"ready {json.dumps(place)}\n")
    sys.stdout.flush()


def _way(text: str) -> str:
    """Return the word of an input."""
    if text.startswith(_DYN):
        return _DYN
    word = text.partition(":")[0]
    if word not in _WAYS:
        known = f"known are {', '.join(_WAYS)} and dyn://N.C.E"
        raise InvalidArgument(f"run_input({text!r}): {_INSTEAD.get(word, known)}")
    return word


def _of_worker(args: EntrypointArgs) -> dict[str, Any]:
    """Return the arguments, with options of the worker where these are called otherwise there."""
    values = args.values
    extra, file = values["mocker_engine_args"], values["extra_engine_args"]
    return _as_options(args) | {
        "engine": args.engine_type.value,
        "context_length": values["context_length"] or (values["runtime_config"] or ModelRuntimeConfig()).context_length,
        "chat_template": _plain(values["template_file"]),
        "engine_args": json.dumps(dict(extra)) if extra else f"@{file}" if file else None,
        "role": "prefill" if values["is_prefill"] else "decode" if values["is_decode"] else None,
    }  # fmt: skip


def _of_frontend(args: EntrypointArgs) -> dict[str, Any]:
    """Return the arguments, with options of the frontend where these are called otherwise there."""
    values, router = args.values, args.values["router_config"]
    options = _as_options(args) | {"tokenizer": values.get("tokenizer_backend")}
    if args.engine_type is EngineType.Dynamic:
        options["namespace"] = values["namespace"] or _namespace(values["endpoint_id"])
    else:  # the engine's own runtime has no other
        options |= {"namespace": None, "namespace_prefix": None, "worker_wait_timeout_secs": _HOLD_SECONDS}
    return options | ({} if router is None else _of_router(router))


def _as_options(args: EntrypointArgs) -> dict[str, Any]:
    """Return the arguments as plain values; the layer above takes those that are options of its own."""
    options = {name: _plain(value) for name, value in args.values.items()}
    # NVIDIA Dynamo's default is 0, which says here that the frontend's own counts.
    return options | {"migration_limit": options["migration_limit"] or None}


def _of_router(config: RouterConfig) -> dict[str, Any]:
    options = vars(config) | {
        "router_mode": mode_word(config.router_mode),
        "router_session_affinity_ttl_secs": config.session_affinity_ttl_secs,
    }
    if config.session_affinity_ttl_secs is not None:
        options["router_session_affinity_mode"] = config.session_affinity_mode
    kv = config.kv_router_config
    return options if kv is None else options | kv.frontend_options()


def _namespace(endpoint_id: str | None) -> str | None:
    return None if endpoint_id is None else EndpointPath.parse(endpoint_id).namespace


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
