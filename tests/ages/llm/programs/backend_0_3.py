"""Mid 2025 (0.2, 0.3), as its README shows it: `ModelType.Backend`, tokens in and out. Arguments: model path, name."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvloop

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import DistributedRuntime, dynamo_worker


class Engine:
    """Answers a prompt with itself."""

    async def generate(self, token_ids: list[int]) -> AsyncIterator[int]:
        for token in token_ids:
            await asyncio.sleep(0)
            yield token


class RequestHandler:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def generate(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        assert request["sampling_options"]["temperature"] in (None, 0.5), "every name is there"
        async for token in self.engine.generate(request["token_ids"]):
            yield {"token_ids": [token], "tokens": None, "text": None, "finish_reason": None}
        yield {"token_ids": [], "finish_reason": "stop"}


@dynamo_worker(static=False)
async def worker(runtime: DistributedRuntime) -> None:
    component = runtime.namespace("test").component("component")
    await component.create_service()
    model_path, model_name = sys.argv[1], sys.argv[2]
    endpoint = component.endpoint("endpoint")
    await register_llm(ModelType.Backend, endpoint, model_path, model_name, context_length=60, kv_cache_block_size=8)
    await endpoint.serve_endpoint(RequestHandler(Engine()).generate)


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
