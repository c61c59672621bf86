"""Mid 2025 (0.3): one model at two endpoints, `ModelType.Chat` and `ModelType.Completion`; OpenAI dicts in and out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import DistributedRuntime, dynamo_worker


async def chat(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    text = request["messages"][-1]["content"]
    for at, word in enumerate(text.split()):
        yield {"id": "1", "choices": [{"index": 0, "delta": {"content": f" {word}" if at else word}}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


async def completion(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield {"id": "1", "object": "text_completion", "choices": [{"index": 0, "text": request["prompt"].upper()}]}
    yield {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}


@dynamo_worker(static=False)
async def worker(runtime: DistributedRuntime) -> None:
    component = runtime.namespace("test").component("both")
    await component.create_service()
    chats, completions = component.endpoint("chat"), component.endpoint("completion")
    await register_llm(ModelType.Chat, chats, "Some/Model", "both")
    await register_llm(ModelType.Completion, completions, "Some/Model", model_name="both")
    await asyncio.gather(chats.serve_endpoint(chat), completions.serve_endpoint(completion))


if __name__ == "__main__":
    asyncio.run(worker())
