"""Says how each of its requests ended; `passing` hands its context on to `slow`."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

from dynamo.runtime import Client, Context, DistributedRuntime, dynamo_worker


class Handlers:
    def __init__(self, slow: Client) -> None:
        self.client = slow

    async def slow(self, request: str, context: Context) -> AsyncIterator[int]:
        waiting = context.async_killed_or_stopped()
        try:
            for number in range(100_000):
                yield number
                await asyncio.wait([waiting], timeout=0.01)
                if waiting.done():
                    break
        finally:
            print(request, "stopped", context.is_stopped(), "killed", context.is_killed(), flush=True)
            waiting.cancel()

    async def passing(self, request: str, context: Context) -> AsyncIterator[int]:
        await self.client.wait_for_instances()
        with suppress(asyncio.CancelledError):
            async for item in await self.client.round_robin(f"{request}-inner", annotated=False, context=context):
                yield item
        print(request, "passed on", flush=True)


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    component = runtime.namespace(sys.argv[1]).component("backend")
    handlers = Handlers(await component.endpoint("slow").client())
    await asyncio.gather(
        component.endpoint("slow").serve_endpoint(handlers.slow),
        component.endpoint("passing").serve_endpoint(handlers.passing),
    )


asyncio.run(worker())
