"""`register_model` as three ages call it, read: what is wanted, and what is refused with which sentence."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, RouterConfig, RouterMode, WorkerType, register_model
from dynamo.llm.kv_router.config import KvRouterConfig
from dynamo.llm.serving.register_arguments import read
from dynamo.runtime import DistributedRuntime, Endpoint, InvalidArgument
from dynamo.runtime import RouterMode as RuntimeMode

BOTH = ModelType.Chat | ModelType.Completions


async def left(runtime: DistributedRuntime) -> None:
    await runtime.shutdown(0)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with asyncio.Runner() as runner:
        runtime = runner.run(DistributedRuntime.in_memory())
        yield runtime.endpoint("test.backend.generate")
        runner.run(left(runtime))


def wanted(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """What a call asks for, without its endpoint."""
    fields = vars(read(args, kwargs)) | {}
    fields.pop("endpoint")
    return fields


def test_positional_and_named_are_the_same_of_0_3(endpoint: Endpoint) -> None:
    """Backend takes tokens, Chat and Completion take text; seven arguments may stand by position."""
    backend = wanted(ModelType.Backend, endpoint, "a/model", "name", 2048, 32, RouterMode.KV, 2, {"x": 1})
    assert backend == wanted(
        model_type=ModelType.Backend, endpoint=endpoint, model_path="a/model", model_name="name", context_length=2048,
        kv_cache_block_size=32, router_mode=RouterMode.KV, migration_limit=2, user_data={"x": 1},
    )  # fmt: skip
    assert (backend["model_input"], backend["model_types"]) == ("tokens", ["chat", "completions"])
    assert (backend["router_mode"], backend["migration_limit"], backend["role"]) == ("kv", 2, "aggregated")
    chat = wanted(ModelType.Chat, endpoint, "a/model")
    assert (chat["model_input"], chat["model_types"], chat["model_name"]) == ("text", ["chat"], None)
    assert wanted(ModelType.Completion, endpoint, "m")["model_types"] == ["completions"]
    assert wanted(ModelType.Chat | ModelType.Completion, endpoint, "m")["model_types"] == ["chat", "completions"]


def test_fourteen_positions_of_0_8(endpoint: Endpoint) -> None:
    """In the order that 0.8.1 had."""
    config = ModelRuntimeConfig()
    config.total_kv_blocks, config.context_length = 100, 512
    config.tool_call_parser, config.reasoning_parser = "hermes", "qwen3"
    kind = wanted(
        ModelInput.Tokens, BOTH, endpoint, "a/model", "name", None, 8, RouterMode.Random, 1, config, {"x": 1}, "t.jinja"
    )
    assert (kind["kv_cache_block_size"], kind["router_mode"], kind["template"]) == (8, "random", "t.jinja")
    assert kind["context_length"] == 512
    assert kind["figures"]["total_kv_blocks"] == 100
    assert (kind["tool_call_parser"], kind["reasoning_parser"]) == ("hermes", "qwen3")


def test_words_of_1_x(endpoint: Endpoint) -> None:
    """Behind the name everything is named; what has no effect here is taken."""
    kind = wanted(
        ModelInput.Text, BOTH, endpoint, None, "name", worker_type=WorkerType.Decode, needs=[[WorkerType.Prefill]],
        router_config=RouterConfig(RouterMode.PowerOfTwoChoices), ignore_weights=True, self_host_metadata=True,
        skip_model_assets=True, lora_name=None, model_aliases=[],
    )  # fmt: skip
    assert (kind["role"], kind["router_mode"], kind["ignore_weights"]) == ("decode", "power-of-two", True)
    assert (kind["model_path"], kind["model_input"]) == ("", "text")


@pytest.mark.parametrize(
    ("types", "worker"),
    [(ModelType.Prefill, None), (ModelType.Empty, WorkerType.Prefill), (ModelType.Prefill, WorkerType.Prefill)],
)
def test_prefill_workers_of_two_ages(endpoint: Endpoint, types: ModelType, worker: WorkerType | None) -> None:
    """0.8 says it by the type, 1.x by the worker, and both together to be understood by both."""
    kind = wanted(ModelInput.Tokens, types, endpoint, "m", worker_type=worker)
    assert (kind["role"], kind["model_types"]) == ("prefill", [])


def test_vectors_are_a_route(endpoint: Endpoint) -> None:
    """Of tokens and of texts, alone and beside others; 0.3's programs take texts for them."""
    for takes in ModelInput.Tokens, ModelInput.Text:
        assert wanted(takes, ModelType.Embedding, endpoint, "m")["model_types"] == ["embedding"]
    both = wanted(ModelInput.Text, ModelType.Chat | ModelType.Embedding, endpoint, "m")
    assert both["model_types"] == ["chat", "embedding"]
    old = wanted(ModelType.Embedding, endpoint, "m")
    assert (old["model_input"], old["model_types"]) == ("text", ["embedding"])


def config_with(**values: Any) -> ModelRuntimeConfig:
    config = ModelRuntimeConfig()
    for name, value in values.items():
        setattr(config, name, value)
    return config


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": ModelType.TensorBased}, "serves chats, completions and embeddings, not tensor; register ModelType"),
    ({"model_type": ModelType.Embedding | ModelType.Rerank}, "not rerank;"),
    ({"model_type": ModelType.Empty}, "is for prefill workers: add worker_type=WorkerType.Prefill"),
    ({"model_type": "chat"}, "model_type='chat'.*a dynamo.llm ModelType is meant"),
    ({"model_input": ModelInput.Tensor}, "use Text or Tokens"),
    ({"model_input": "tokens"}, "a dynamo.llm ModelInput is meant"),
    ({"endpoint": "test.backend.generate"}, "a dynamo.llm Endpoint is meant"),
    ({"worker_type": WorkerType.Encode}, "leave encoders out"),
    ({"model_type": ModelType.Prefill, "worker_type": WorkerType.Decode}, "contradict each other"),
    ({"lora_name": "x", "base_model_path": "y"}, "serve the merged model under a name of its own"),
    ({"max_gpu_lora_count": 4}, "there are no adapters"),
    ({"model_aliases": ["other"]}, "at an endpoint of its own"),
    ({"media_decoder": object()}, "this version serves text"),
    ({"tensor_model_config": {"name": "x"}}, "this version serves text"),
    ({"skip_model_assets": True}, "frontends need a tokenizer"),
    ({"context_length": 1}, "a whole number of at least 2"),
    ({"kv_cache_block_size": 0}, "a whole number of at least 1"),
    ({"migration_limit": -1}, "a whole number of at least 0"),
    ({"context_length": "64"}, "a whole number"),
    ({"router_config": RouterConfig(RouterMode.Direct)}, "x-worker-instance-id"),
    ({"router_config": RouterConfig(RouterMode.DeviceAwareWeighted)}, "LeastLoaded"),
    ({"router_config": RouterConfig(RouterMode.KV, KvRouterConfig())}, "kv_router_config of a RouterConfig"),
    ({"router_config": "nearest"}, "none of kv, least-loaded"),
    ({"user_data": [1]}, "a dict is meant"),
    ({"user_data": {"x": object()}}, "must be plain data"),
    ({"runtime_config": config_with(tool_call_parser="hermis")}, "no tool call parser 'hermis': did you mean 'hermes'"),
    ({"runtime_config": config_with(reasoning_parser="none")}, "no reasoning parser 'none'"),
    ({"runtime_config": config_with(reasoning_parser=True)}, "reasoning_parser is True, not the name"),
    ({"runtime_config": config_with(structural_tag={"x": 1})}, "structural_tag = .*: answers are held to a schema"),
    ({"runtime_config": config_with(taints={"gpu"})}, "a namespace of their own"),
    ({"runtime_config": config_with(total_kv_blocks="many")}, "total_kv_blocks must be a whole number"),
    ({"runtime_config": config_with(data_parallel_size=0)}, "not 1 or more"),
    ({"runtime_config": {"total_kv_blocks": 1}}, "a dynamo.llm ModelRuntimeConfig is meant"),
]


@pytest.mark.parametrize(("said", "sentence"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_meant_is_told(endpoint: Endpoint, said: dict[str, Any], sentence: str) -> None:
    """One sentence, with what to do instead."""
    call = {"model_input": ModelInput.Tokens, "model_type": BOTH, "endpoint": endpoint, "model_path": "m"}
    with pytest.raises(InvalidArgument, match=sentence):
        read((), call | said)


def test_another_argument_is_a_type_error(endpoint: Endpoint) -> None:
    """As Python's own are."""
    with pytest.raises(TypeError, match=r"register_model: .*'colour'"):
        read((ModelInput.Text, BOTH, endpoint, "m"), {"colour": 1})
    with pytest.raises(TypeError, match="register_model: missing a required argument: 'model_path'"):
        read((ModelType.Chat, endpoint), {})


def test_modes_in_all_words(endpoint: Endpoint) -> None:
    """The runtime's own names and plain words are modes, too; None leaves it to the frontend."""
    for mode in (RouterMode.LeastLoaded, RuntimeMode.LEAST_LOADED, "least-loaded", "least_loaded"):
        assert wanted(ModelType.Chat, endpoint, "m", router_mode=mode)["router_mode"] == "least-loaded"
    assert wanted(ModelType.Chat, endpoint, "m")["router_mode"] is None
    assert RuntimeMode.parse(RouterMode.RoundRobin) is RuntimeMode.ROUND_ROBIN  # type: ignore[arg-type]


def test_types_say_what_they_support() -> None:
    """NVIDIA Dynamo's questions and text form."""
    assert str(BOTH) == "chat,completions"
    assert str(ModelType.TensorBased) == "tensor"
    assert (BOTH.supports_chat(), BOTH.supports_embedding(), ModelType.Backend.supports_chat()) == (True, False, True)
    kinds = ModelType.Embedding | ModelType.Classify | ModelType.Pooling | ModelType.Rerank
    assert kinds.supports_embedding()
    assert kinds.supports_classify()
    assert kinds.supports_pooling()
    assert kinds.supports_rerank()
    assert ModelType["Completion"] is ModelType.Completions


def test_help_names_the_parameters() -> None:
    """Those of the newest version."""
    names = list(inspect.signature(register_model).parameters)
    assert names[:5] == ["model_input", "model_type", "endpoint", "model_path", "model_name"]
    assert "worker_type" in names
