"""As of 2025: everything from the native module; a worker that serves two requests, and its client, in one process."""

import asyncio
import sys
from collections.abc import AsyncIterator

from dynamo._core import (
    AsyncResponseStream,
    Client,
    DistributedRuntime,
    Endpoint,
    ModelType,
    OverlapScores,
    register_llm,
)


async def generate(request: str) -> AsyncIterator[str]:
    for word in request.split(","):
        yield word


async def ask(client: Client) -> None:
    stream: AsyncResponseStream = await client.round_robin("hello,world")
    print("items", [item.data() async for item in stream], type(stream).__name__)


async def main(runtime: DistributedRuntime) -> None:
    endpoint: Endpoint = runtime.namespace(sys.argv[1]).component("backend").endpoint("generate")
    serving = asyncio.ensure_future(endpoint.serve_endpoint(generate))
    client = await endpoint.client()
    await client.wait_for_instances()
    await ask(client)
    serving.cancel()
    print("names", ModelType.Backend, OverlapScores.__name__, register_llm.__module__)


loop = asyncio.new_event_loop()
made = DistributedRuntime(loop, False)
loop.run_until_complete(main(made))
loop.run_until_complete(made.shutdown())
loop.close()
