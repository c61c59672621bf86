"""As of March 2025: `endpoint_ids`, `wait_for_endpoints`, and every way to pick a worker."""

import asyncio
import sys

from dynamo.runtime import Client, DistributedRuntime, dynamo_worker


@dynamo_worker(static=False)
async def worker(runtime: DistributedRuntime) -> None:
    endpoint = runtime.namespace(sys.argv[1]).component("backend").endpoint("generate")
    client: Client = await endpoint.client()
    await client.wait_for_endpoints()
    workers = client.endpoint_ids()
    print("workers", *workers)
    for send in (client.generate, client.random, client.round_robin):
        stream = await send({"data": "hello world"})
        print("".join([char.data() async for char in stream]))
    async for item in await client.direct({"data": "!"}, workers[0]):
        print("direct", item.data(), item.event(), item.comments(), item.id(), item.is_error())
    print("plain", [char async for char in await client.random({"data": "hi"}, annotated=False)])
    print("text", [char async for char in await client.random('{"data": "hi"}', False)])


asyncio.run(worker())
