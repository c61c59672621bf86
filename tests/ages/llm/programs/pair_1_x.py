"""2026 (1.x): a prefill worker and a decode worker. Arguments: `prefill` or `decode`, model path, name."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime, dynamo_worker


async def prefill(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    assert request["stop_conditions"]["max_tokens"] == 1
    yield {"token_ids": [65], "finish_reason": "stop", "disaggregated_params": {"sum": sum(request["token_ids"])}}


async def decode(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    brought = (request["prefill_result"] or {}).get("disaggregated_params", {"sum": 0})["sum"]
    right = brought == sum(request["token_ids"])
    for byte in b"handed over" if right else b"computed here":
        yield {"token_ids": [byte]}


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    role, model_path, name = sys.argv[1:]
    endpoint = runtime.endpoint(f"test.{role}.generate")
    config = ModelRuntimeConfig()
    config.max_num_batched_tokens = 4096
    if role == "prefill":
        await register_model(
            ModelInput.Tokens, ModelType.Empty, endpoint, model_path, model_name=name, worker_type=WorkerType.Prefill,
            needs=[[WorkerType.Decode]], runtime_config=config,
        )  # fmt: skip
        await endpoint.serve_endpoint(prefill)
    else:
        await register_model(
            ModelInput.Tokens, ModelType.Chat | ModelType.Completions, endpoint, model_path, model_name=name,
            worker_type=WorkerType.Decode, needs=[[WorkerType.Prefill]], runtime_config=config,
        )  # fmt: skip
        await endpoint.serve_endpoint(decode)


if __name__ == "__main__":
    asyncio.run(worker())
