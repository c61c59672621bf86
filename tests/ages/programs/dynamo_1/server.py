"""As of 1.x: endpoints by their path, today's constructor, routing left and joined, an engine route."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvloop

from dynamo.runtime import Context, DistributedRuntime, dynamo_worker, serve_unary_endpoint


async def generate(request: Any, context: Context) -> AsyncIterator[Any]:
    yield {"got": request, "metadata": dict(context.metadata)}


async def add(request: list[int], *, context: Context) -> int:
    return sum(request)


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    endpoint = runtime.endpoint(f"dyn://{sys.argv[1]}.backend.generate")

    async def pause(body: dict[str, Any]) -> dict[str, Any]:
        if body["leave"]:
            await endpoint.unregister_endpoint_instance()
        else:
            await endpoint.register_endpoint_instance()
        return {"left": body["leave"]}

    runtime.register_engine_route("pause", pause)
    print("system", runtime.system_status_server_url(), endpoint.connection_id(), flush=True)
    unary = runtime.endpoint(f"{sys.argv[1]}.backend.add")
    await asyncio.gather(endpoint.serve_endpoint(generate), serve_unary_endpoint(unary, add))


if __name__ == "__main__":
    os.environ.setdefault("DYN_REQUEST_PLANE", "tcp")
    uvloop.run(worker())
