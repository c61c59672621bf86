"""Late 2025 (0.8): a processor before workers of its own: a model whose program asks another program's endpoint.

Argument: `client`, or `router` for routing by KV caches.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from dynamo.llm import KvPushRouter, KvRouterConfig, ModelInput, ModelType, register_llm
from dynamo.runtime import Client, Context, DistributedRuntime, dynamo_worker


class Processor:
    def __init__(self, client: Client, router: KvPushRouter) -> None:
        self.client, self.router = client, router

    async def by_client(self, request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        async for item in await self.client.round_robin({"prompt": request["token_ids"]}, context=context):
            yield {"token_ids": item.data()["token_ids"], "finish_reason": item.data().get("finish_reason")}

    async def by_router(self, request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        stream = await self.router.generate(
            token_ids=request["token_ids"], model=request["model"], stop_conditions=request["stop_conditions"],
            sampling_options=request["sampling_options"],
        )  # fmt: skip
        async for item in stream:
            yield item


async def reverse(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """A worker that nobody else knows: its requests are the processor's own."""
    tokens = request["prompt"] if "prompt" in request else request["token_ids"]
    yield {"token_ids": tokens[::-1], "finish_reason": "stop", "note": "of its own"}


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    inner = runtime.namespace("test").component("inner").endpoint("generate")
    serving = asyncio.create_task(inner.serve_endpoint(reverse))
    client = await inner.client()
    await client.wait_for_instances()
    processor = Processor(client, KvPushRouter(inner, 16, KvRouterConfig(overlap_score_weight=1.0)))
    endpoint = runtime.namespace("test").component("processor").endpoint("generate")
    await register_llm(ModelInput.Tokens, ModelType.Chat | ModelType.Completions, endpoint, "", "processed")
    by = processor.by_router if sys.argv[1] == "router" else processor.by_client
    await asyncio.gather(serving, endpoint.serve_endpoint(by))


if __name__ == "__main__":
    asyncio.run(worker())
