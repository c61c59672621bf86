"""The public names as a strictly typed program uses them: mypy --strict, which `make check` runs, must find nothing.

`assert_type` says what users get. It is also run (`test_typed.py`), over a runtime in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, assert_type

from dynamo.llm import (
    ApproxKvIndexer,
    EngineConfig,
    EngineType,
    EntrypointArgs,
    ForwardPassMetrics,
    HttpAsyncEngine,
    HttpError,
    HttpService,
    KvEventPublisher,
    KvRouter,
    KvRouterConfig,
    KvStats,
    LLMUnaryClient,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    OverlapScores,
    PythonAsyncEngine,
    RadixTree,
    RoutedEngine,
    RouterConfig,
    RouterMode,
    UnaryChatModel,
    WorkerMetricsPublisher,
    WorkerStats,
    WorkerType,
    ZmqKvEventPublisher,
    ZmqKvEventPublisherConfig,
    compute_block_hash_for_seq,
    compute_block_hash_for_seq_py,
    fetch_llm,
    fetch_model,
    lora_name_to_id,
    make_engine,
    register_llm,
    register_model,
    run_input,
    unregister_llm,
    unregister_model,
    with_engine_data,
)
from dynamo.llm.exceptions import DynamoException, InvalidArgument, Unknown
from dynamo.runtime import Context, DistributedRuntime, Endpoint


async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
    if context.is_stopped():
        raise HttpError(499, "gone")
    yield {"token_ids": request["token_ids"], "finish_reason": "stop"}


async def registered(endpoint: Endpoint) -> None:
    """All three ages' calls, each with what it may say."""
    config = ModelRuntimeConfig()
    config.total_kv_blocks = 100
    config.set_engine_specific("build", {"of": "a test"})
    both = ModelType.Chat | ModelType.Completions
    assert_type(both, ModelType)
    assert_type(both.supports_chat(), bool)
    await register_llm(ModelType.Backend, endpoint, "", "m", 2048, 16, RouterMode.RoundRobin, 3, {"x": 1})
    await register_llm(
        ModelInput.Tokens, both, endpoint, "", "m", 2048, 16, None, 3, config, {"x": 1}, custom_template_path=None
    )
    await register_model(
        ModelInput.Tokens, both, endpoint, Path("").name, model_name="m", worker_type=WorkerType.Decode,
        router_config=RouterConfig(RouterMode.KV), needs=[[WorkerType.Prefill]], ignore_weights=True,
    )  # fmt: skip
    assert_type(await unregister_model(endpoint), None)
    await unregister_llm(endpoint)


def kv_parts(endpoint: Endpoint) -> int:
    """Classes of 2.4, as they are called today and in 0.x."""
    events = KvEventPublisher(endpoint, kv_block_size=4)
    hashes = assert_type(compute_block_hash_for_seq([1, 2, 3, 4], 4), list[int])
    assert hashes == compute_block_hash_for_seq_py([1, 2, 3, 4], 4)
    events.publish_stored([1, 2, 3, 4], [4], hashes, parent_hash=None, lora_name="a")
    events.publish_stored(1, [1, 2, 3, 4], [4], hashes, 0, None)
    events.publish_removed(hashes)
    events.publish_removed(2, hashes)
    events.shutdown()
    tree = RadixTree()
    scores = assert_type(tree.find_matches(hashes), OverlapScores)
    assert scores.scores == {}
    indexer = ApproxKvIndexer(endpoint, 4)
    relay = ZmqKvEventPublisherConfig(kv_block_size=4, zmq_endpoint="tcp://127.0.0.1:5557")
    assert relay.zmq_topic == ""
    assert issubclass(ZmqKvEventPublisher, KvEventPublisher)
    return assert_type(indexer.block_size(), int)


def routed(endpoint: Endpoint) -> RoutedEngine:
    """A router by the name of what it does."""
    return KvRouter(endpoint, 16, KvRouterConfig(overlap_score_weight=1.0))


async def measured(endpoint: Endpoint) -> None:
    metrics = WorkerMetricsPublisher()
    await metrics.create_endpoint(endpoint)
    metrics.publish(dp_rank=0, kv_used_blocks=3)
    metrics.publish(ForwardPassMetrics(WorkerStats(1, 8, 0), KvStats(1, 100, 0.01, 0.5)))


async def served(runtime: DistributedRuntime) -> None:
    """A service that is never started, and an engine that is made."""
    service = HttpService(port=0, wait_for_first_item=True)
    service.add_completions_model("m", HttpAsyncEngine(generate, asyncio.get_running_loop()))
    service.add_chat_completions_model("m", "checksum", PythonAsyncEngine(generate))
    assert_type(service.list_completions_models(), list[str])
    args = EntrypointArgs(EngineType.Dynamic, http_port=0, router_config=RouterConfig(RouterMode.LeastLoaded))
    config = assert_type(await make_engine(runtime, args), EngineConfig)
    with contextlib.suppress(InvalidArgument):
        await run_input(runtime, "batch:file", config)


async def asked(runtime: DistributedRuntime) -> dict[str, Any]:
    client = await LLMUnaryClient.connect(runtime, "test.backend.generate")
    done = assert_type(await client.complete({"token_ids": [1, 2]}), dict[str, Any])
    assert UnaryChatModel("", "service").public_model_name is None
    return with_engine_data(done, {"id": assert_type(lora_name_to_id("abc"), int)})


async def main() -> dict[str, Any]:
    assert fetch_llm is fetch_model
    assert issubclass(Unknown, DynamoException)
    async with await DistributedRuntime.in_memory() as runtime:
        endpoint = runtime.endpoint("test.backend.generate")
        serving = asyncio.create_task(endpoint.serve_endpoint(generate))
        await registered(endpoint)
        await measured(endpoint)
        assert kv_parts(endpoint) == 4
        assert routed(endpoint) is not None
        await served(runtime)
        done = await asked(runtime)
        serving.cancel()
        return done


if __name__ == "__main__":
    asyncio.run(main())
