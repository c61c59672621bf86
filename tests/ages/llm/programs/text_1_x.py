"""2026 (1.x): a text engine that refuses with a status, and takes its model back when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from dynamo.llm import (
    HttpError,
    ModelInput,
    ModelType,
    RouterConfig,
    RouterMode,
    WorkerType,
    register_model,
    unregister_model,
)
from dynamo.llm.exceptions import EngineShutdown
from dynamo.runtime import Context, DistributedRuntime, dynamo_worker


def chunk(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    endpoint = runtime.endpoint("dyn://test.text.generate")

    async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        match request["messages"][-1]["content"]:
            case "no":
                raise HttpError(422, "not that word")
            case "broken":
                raise HttpError(200, "there is no such answer")
            case "value":
                raise ValueError("not a number")
            case "stop":
                raise EngineShutdown("for a moment")
            case "odd":
                yield {"text": "neither a chunk nor tokens"}
            case "leave":
                await unregister_model(endpoint)
        yield chunk("one ")
        yield chunk("two", "stop")
        yield {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}

    serving = asyncio.create_task(endpoint.serve_endpoint(generate, graceful_shutdown=True))
    await register_model(
        ModelInput.Text, ModelType.Chat, endpoint, "Some/Text-Model", worker_type=WorkerType.Aggregated,
        router_config=RouterConfig(RouterMode.LeastLoaded), ignore_weights=True,
    )  # fmt: skip
    await serving


if __name__ == "__main__":
    asyncio.run(worker())
