"""Stops requests in every way: by the context, by leaving the loop, by a task's cancellation, by dying."""

import asyncio
import os
import sys

from dynamo.runtime import Client, Context, DistributedRuntime, dynamo_worker


async def by_context(client: Client, name: str) -> None:
    context, items = Context(), 0
    try:
        async for _ in await client.generate(name, context=context):
            items += 1
            if items == 3:
                context.stop_generating()
        print(name, "ended well", items >= 3)
    except Exception as error:
        print(name, "ended with", type(error).__name__, items >= 3)


async def by_leaving(client: Client, name: str) -> None:
    async for number in await client.generate(name, annotated=False):
        if number == 2:
            break


async def read(client: Client, name: str, begun: asyncio.Event) -> None:
    async for _ in await client.generate(name):
        begun.set()


async def by_task(client: Client, name: str) -> None:
    begun = asyncio.Event()
    task = asyncio.create_task(read(client, name, begun))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    print(name, "cancelled", task.cancelled())


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    component = runtime.namespace(sys.argv[1]).component("backend")
    slow, passing = await component.endpoint("slow").client(), await component.endpoint("passing").client()
    await slow.wait_for_instances()
    await passing.wait_for_instances()
    await by_context(slow, "context")
    await by_context(passing, "linked")
    await by_leaving(slow, "left")
    await by_task(slow, "task")
    async for _ in await slow.generate("dead"):
        print("dying", flush=True)
        os._exit(0)


asyncio.run(worker())
