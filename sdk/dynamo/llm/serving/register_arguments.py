"""`register_model` in the forms of all versions, read: what is wanted of which model at which endpoint. Pure.

- 0.3: `(model_type, endpoint, model_path, model_name, context_length, kv_cache_block_size, router_mode, …)`
- 0.4 to 0.9: `(model_input, model_type, endpoint, model_path, model_name, context_length, …)`
- 1.x: the same up to `model_name`, everything else by name, with `worker_type`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from dynamo.llm.model_card import CHAT, COMPLETIONS, EMBEDDING
from dynamo.llm.serving.model_runtime_config import ModelRuntimeConfig
from dynamo.llm.serving.model_types import ModelInput, ModelType, WorkerType
from dynamo.llm.serving.router_options import RouterConfig, mode_word
from dynamo.runtime.endpoint import Endpoint
from dynamo.runtime.errors import InvalidArgument

_NO_ADAPTERS: Final = "there are no adapters in this version: serve the merged model under a name of its own"
_TEXT_ONLY: Final = "this version serves text: leave it out"
_REFUSED: Final = {
    "lora_name": _NO_ADAPTERS,
    "base_model_path": _NO_ADAPTERS,
    "max_gpu_lora_count": _NO_ADAPTERS,
    "tensor_model_config": _TEXT_ONLY,
    "media_decoder": _TEXT_ONLY,
    "media_fetcher": _TEXT_ONLY,
    "model_aliases": "a model has one name here: register it a second time, at an endpoint of its own",
}
_SERVED: Final = {ModelType.Chat: CHAT, ModelType.Completions: COMPLETIONS, ModelType.Embedding: EMBEDDING}
_NO_ROUTE: Final = ModelType.Prefill | ModelType.Backend
_RANGES: Final = {"context_length": 2, "kv_cache_block_size": 1, "migration_limit": 0}


@dataclass(frozen=True)
class Wanted:
    """Registration that a program asked for, checked."""

    endpoint: Endpoint
    model_path: str
    model_name: str | None
    model_input: Literal["tokens", "text"]
    model_types: list[str]
    role: Literal["aggregated", "prefill", "decode"]
    context_length: int | None
    kv_cache_block_size: int | None
    migration_limit: int | None
    router_mode: str | None
    user_data: dict[str, Any]
    template: str | None
    ignore_weights: bool
    figures: dict[str, Any]
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None


def read(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Wanted:
    """Read a call of any age; `InvalidArgument` says what is wrong with it, `TypeError` that it is no such call."""
    old = _of_0_3 if _is_of_0_3(args, kwargs) else None
    given = _bound(old or _since_0_4, args, kwargs)
    if old is not None:
        given["model_input"] = _input_of(given["model_type"])
    _check_kinds(given)
    for name, why in _REFUSED.items():
        if given.get(name):
            raise InvalidArgument(f"register_model({name}={given[name]!r}): {why}")
    for name, low in _RANGES.items():
        value = given[name]
        if value is not None and (type(value) is not int or value < low):
            raise InvalidArgument(f"register_model({name}={value!r}): a whole number of at least {low} is meant")
    return _wanted(given)


def _wanted(given: dict[str, Any]) -> Wanted:
    runtime_config: ModelRuntimeConfig = given["runtime_config"] or ModelRuntimeConfig()
    types, worker = given["model_type"], given["worker_type"]
    tool_call_parser, reasoning_parser = runtime_config.parsers()
    if given["skip_model_assets"] and given["model_input"] is ModelInput.Tokens:
        raise InvalidArgument(
            "register_model(skip_model_assets=True): frontends need a tokenizer for ModelInput.Tokens"
        )
    return Wanted(
        endpoint=given["endpoint"],
        model_path="" if given["model_path"] is None else str(given["model_path"]),
        model_name=given["model_name"],
        model_input="text" if given["model_input"] is ModelInput.Text else "tokens",
        model_types=_routes(types, given["model_input"]),
        role=_role(types, worker),
        context_length=given["context_length"] or runtime_config.context_length,
        kv_cache_block_size=given["kv_cache_block_size"],
        migration_limit=given["migration_limit"],
        router_mode=_router_mode(given["router_mode"], given["router_config"]),
        user_data=_user_data(given["user_data"]),
        template=given["custom_template_path"] and str(given["custom_template_path"]),
        ignore_weights=bool(given["ignore_weights"]),
        figures=runtime_config.figures(),
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
    )


def _since_0_4(
    model_input: ModelInput, model_type: ModelType, endpoint: Endpoint, model_path: str | Path | None,
    model_name: str | None = None, context_length: int | None = None, kv_cache_block_size: int | None = None,
    router_mode: Any = None, migration_limit: int | None = None, runtime_config: ModelRuntimeConfig | None = None,
    user_data: Mapping[str, Any] | None = None, custom_template_path: str | Path | None = None,
    lora_name: str | None = None, base_model_path: str | None = None, *, worker_type: WorkerType | None = None,
    router_config: RouterConfig | None = None, tensor_model_config: Any = None, media_decoder: Any = None,
    media_fetcher: Any = None, needs: Any = None, self_host_metadata: bool | None = None, ignore_weights: bool = False,
    max_gpu_lora_count: int | None = None, model_aliases: Sequence[str] | None = None, skip_model_assets: bool = False,
) -> None:  # fmt: skip
    """Read the arguments since 0.4; 1.x names those behind `model_name`."""


SIGNATURE: Final = inspect.signature(_since_0_4)
"""What `help` shows."""


def _of_0_3(
    model_type: ModelType, endpoint: Endpoint, model_path: str | Path | None, model_name: str | None = None,
    context_length: int | None = None, kv_cache_block_size: int | None = None, router_mode: Any = None,
    migration_limit: int | None = None, user_data: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Read the arguments up to 0.3."""


_UNSAID: Final = {
    name: parameter.default for name, parameter in inspect.signature(_since_0_4).parameters.items()
    if parameter.default is not inspect.Parameter.empty
}  # fmt: skip


def _is_of_0_3(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return isinstance(args[0], ModelType) if args else "model_input" not in kwargs


def _bound(form: Callable[..., None], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _UNSAID | inspect.signature(form).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"register_model: {error}") from None


def _input_of(model_type: Any) -> ModelInput:
    """Return what 0.3's types say of it."""
    return ModelInput.Tokens if isinstance(model_type, ModelType) and model_type & _NO_ROUTE else ModelInput.Text


def _check_kinds(given: dict[str, Any]) -> None:
    kinds: dict[str, type[Any]] = {"model_input": ModelInput, "model_type": ModelType, "endpoint": Endpoint}
    optional: dict[str, type[Any]] = {"worker_type": WorkerType, "runtime_config": ModelRuntimeConfig}
    for name, kind in kinds.items() | {(n, k) for n, k in optional.items() if given[n] is not None}:
        if not isinstance(given[name], kind):
            raise InvalidArgument(f"register_model({name}={given[name]!r}): a dynamo.llm {kind.__name__} is meant")
    if given["model_input"] is ModelInput.Tensor:
        raise InvalidArgument(f"register_model(ModelInput.Tensor): {_TEXT_ONLY.partition(':')[0]}: use Text or Tokens")


def _routes(types: ModelType, model_input: ModelInput) -> list[str]:
    """Return the OpenAI routes that are wanted."""
    both = ModelType.Chat | ModelType.Completions
    wanted = (types | both if ModelType.Backend in types else types) & ~_NO_ROUTE
    if unserved := [str(kind) for kind in wanted if kind not in _SERVED]:
        raise InvalidArgument(
            f"register_model: this version serves chats, completions and embeddings, not {', '.join(unserved)}; "
            "register ModelType.Chat | ModelType.Completions, or serve the endpoint without registering it"
        )
    return [word for kind, word in _SERVED.items() if kind in wanted]


def _role(types: ModelType, worker: WorkerType | None) -> Literal["aggregated", "prefill", "decode"]:
    if worker is WorkerType.Encode:
        raise InvalidArgument(
            "register_model(worker_type=WorkerType.Encode): this version serves text; leave encoders out"
        )
    marked = ModelType.Prefill in types
    if marked and worker not in (None, WorkerType.Prefill):
        raise InvalidArgument(f"register_model: ModelType.Prefill and {worker} contradict each other")
    if marked or worker is WorkerType.Prefill:
        return "prefill"
    if not types:
        raise InvalidArgument(
            "register_model(ModelType.Empty) is for prefill workers: add worker_type=WorkerType.Prefill"
        )
    return "decode" if worker is WorkerType.Decode else "aggregated"


def _router_mode(mode: Any, config: Any) -> str | None:
    if isinstance(config, RouterConfig):
        if words := config.of_frontend():
            raise InvalidArgument(
                f"register_model: {', '.join(words)} of a RouterConfig are the frontend's to say, by its flags"
            )
        mode = config.router_mode
    elif config is not None:
        mode = config
    return None if mode is None else mode_word(mode)


def _user_data(data: Any) -> dict[str, Any]:
    """Return it as the record can hold it."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise InvalidArgument(f"register_model(user_data={data!r}): a dict is meant")
    try:
        plain: dict[str, Any] = msgspec.to_builtins(dict(data), str_keys=True)
        msgspec.json.encode(plain)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"register_model(user_data=…) must be plain data: {error}") from error
    return plain
