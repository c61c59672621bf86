"""A program's own engine as a model of this deployment: `register_model`, `unregister_model`, `fetch_model`.

The model goes the way of every worker's: its card into the instance's record, its small files by digest from this
process to the frontends, its figures beside them. `register_model` may come before or after `serve_endpoint`; what the
two of them say together is what frontends see.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, overload

import msgspec

from dynamo.llm.model_card import ModelCard, card_from_dict
from dynamo.llm.models.file_cache import OPERATION, FileServer
from dynamo.llm.models.local_model import LocalModel
from dynamo.llm.models.sources import open_model
from dynamo.llm.serving.handler import adapter
from dynamo.llm.serving.model_runtime_config import ModelRuntimeConfig
from dynamo.llm.serving.model_types import ModelInput, ModelType, WorkerType
from dynamo.llm.serving.register_arguments import SIGNATURE, Wanted, read
from dynamo.llm.serving.router_options import RouterConfig, RouterMode
from dynamo.runtime.endpoint import Endpoint, ModelOffer
from dynamo.runtime.errors import InvalidArgument


@overload
async def register_model(
    model_input: ModelInput, model_type: ModelType, endpoint: Endpoint, model_path: str | Path | None,
    model_name: str | None = None, context_length: int | None = None, kv_cache_block_size: int | None = None,
    router_mode: RouterMode | None = None, migration_limit: int | None = None,
    runtime_config: ModelRuntimeConfig | None = None, user_data: Mapping[str, Any] | None = None,
    custom_template_path: str | Path | None = None, lora_name: str | None = None, base_model_path: str | None = None,
    *, worker_type: WorkerType | None = None, router_config: RouterConfig | None = None,
    tensor_model_config: Any = None, media_decoder: Any = None, media_fetcher: Any = None,
    needs: Sequence[Sequence[WorkerType]] | None = None, self_host_metadata: bool | None = None,
    ignore_weights: bool = False, max_gpu_lora_count: int | None = None, model_aliases: Sequence[str] | None = None,
    skip_model_assets: bool = False,
) -> None: ...  # fmt: skip


@overload
async def register_model(
    model_type: ModelType, endpoint: Endpoint, model_path: str | Path | None, model_name: str | None = None,
    context_length: int | None = None, kv_cache_block_size: int | None = None, router_mode: RouterMode | None = None,
    migration_limit: int | None = None, user_data: Mapping[str, Any] | None = None,
) -> None: ...  # fmt: skip


async def register_model(*args: Any, **kwargs: Any) -> None:
    """Have the frontends serve `endpoint` as a model; read in all versions' forms (`register_arguments.py`).

    `model_path` is a folder, a GGUF file, a model of the hub (fetched first, which may take long) or "" for the
    built-in byte-level model; a model that takes text needs nothing of it but a name. `model_name` defaults to its
    last part, of the hub's models to ORG/REPO. `context_length` lowers the model's own. `needs` and
    `self_host_metadata` have no effect. Raises `InvalidArgument` with one sentence where something can't be meant, or
    isn't served here; nothing is registered then. Called again with the same name it replaces what it said, and adds
    routes to those that were there.
    """
    wanted = read(args, kwargs)
    model = await _opened(wanted)
    runtime, path = wanted.endpoint.runtime, wanted.endpoint.path
    card = _card(model.card, wanted, runtime.offers.card(path))
    runtime.server.on_control(path, OPERATION, FileServer(model.files).answer)
    length = {} if card.context_length is None else {"context_length": card.context_length}
    runtime.announce(path, {"kv_cache_block_size": card.kv_cache_block_size, **length, **wanted.figures})
    await runtime.offer(path, ModelOffer(card.to_dict(), adapter(wanted.model_input)))


cast("Any", register_model).__signature__ = SIGNATURE  # `help` would show *args, **kwargs


async def unregister_model(endpoint: Endpoint, lora_name: str | None = None) -> None:
    """Take the model back; requests that run go on, the endpoint is served as before. Without a model: nothing.

    `InvalidArgument` for a `lora_name`: there are no adapters in this version.
    """
    if lora_name is not None:
        raise InvalidArgument(f"unregister_model(lora_name={lora_name!r}): there are no adapters in this version")
    await endpoint.runtime.offer(endpoint.path, None)


async def fetch_model(remote_name: str, ignore_weights: bool = False) -> str:
    """Fetch a model; returns its folder, or GGUF file: that of a local one, else fetched from the hub into its cache.

    Raises as `open_model`. Cancelled, it stops soon, and what has come stays.
    """
    from dynamo.llm.hub.fetch import fetch
    from dynamo.llm.models.paths import find_path, is_of_hub

    if not is_of_hub(remote_name):
        return str(find_path(remote_name))
    stop = threading.Event()
    try:
        weights = "none" if ignore_weights else "any"
        return str(await asyncio.to_thread(fetch, remote_name, weights=weights, stop=stop))  # type: ignore[arg-type]
    finally:
        stop.set()


async def update_model_taints(endpoint: Endpoint, taints: set[str]) -> None:
    """Refuse taints where there are any: no router here reads them."""
    if taints:
        raise InvalidArgument(
            f"update_model_taints of {endpoint.path}: no router here reads taints; give workers that aren't for "
            "everybody a namespace of their own"
        )


register_llm = register_model
unregister_llm = unregister_model
fetch_llm = fetch_model


async def _opened(wanted: Wanted) -> LocalModel:
    """Open the model's description; of one that takes text only the name."""
    if wanted.model_input == "text":
        name = wanted.model_name or Path(wanted.model_path).name
        if not name:
            raise InvalidArgument("register_model: a model that takes text needs a model_name (or a model_path)")
        return LocalModel(ModelCard(name=wanted.model_name or _name_of(wanted.model_path), tokenizer="none"))
    stop = threading.Event()
    try:
        return await asyncio.to_thread(
            open_model, wanted.model_path or None, name=wanted.model_name, context_length=wanted.context_length,
            chat_template=wanted.template, weights="none" if wanted.ignore_weights else "any", stop=stop,
        )  # fmt: skip
    finally:
        stop.set()


def _name_of(model_path: str) -> str:
    """Name it as a model of tokens would be called: ORG/REPO of the hub, else the last part."""
    from dynamo.llm.hub.names import parse
    from dynamo.llm.models.paths import is_of_hub

    named = parse(model_path) if is_of_hub(model_path) else None
    return Path(model_path).name if named is None else named.repo


def _card(opened: ModelCard, wanted: Wanted, before: Mapping[str, Any] | None) -> ModelCard:
    """Return the card as this program serves the model."""
    types = wanted.model_types
    if before is not None:
        known = card_from_dict(before)
        if known.name != opened.name:
            raise InvalidArgument(
                f"{wanted.endpoint.path} is registered as {known.name!r}: serve {opened.name!r} at an endpoint of "
                "its own, or unregister_model first"
            )
        types = list(dict.fromkeys([*known.model_types, *types]))
    changes: dict[str, Any] = {
        "model_input": wanted.model_input, "model_types": types, "role": wanted.role, "user_data": wanted.user_data,
        "migration_limit": wanted.migration_limit, "router_mode": wanted.router_mode,
        "tool_call_parser": wanted.tool_call_parser, "reasoning_parser": wanted.reasoning_parser,
    }  # fmt: skip
    for name in ("kv_cache_block_size", "context_length"):
        if (value := getattr(wanted, name)) is not None:
            changes[name] = value
    return msgspec.structs.replace(opened, **changes)
