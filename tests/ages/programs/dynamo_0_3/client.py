"""As of autumn 2025: instances, contexts, several endpoints of a namespace."""

import asyncio
import sys

from dynamo.runtime import Client, Context, DistributedRuntime, dynamo_worker


async def client_of(runtime: DistributedRuntime, component: str, endpoint: str) -> Client:
    client = await runtime.namespace(sys.argv[1]).component(component).endpoint(endpoint).client()
    await client.wait_for_instances()
    return client


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    generate = await client_of(runtime, "backend", "generate")
    context = Context("mine")
    async for item in await generate.round_robin({"count": 2}, context=context):
        print("item", item.data())
    metrics = await client_of(runtime, "backend", "load_metrics")
    print("metrics", [item async for item in await metrics.random({}, annotated=False)])
    clear = await client_of(runtime, "backend", "clear_kv_blocks")
    print("clear", [item async for item in await clear.random(None, annotated=False)])
    prefill = await client_of(runtime, "prefill", "generate")
    assert set(prefill.instance_ids()) == set(generate.instance_ids())
    stream = await generate.direct({"count": 1000, "pause": 0.02}, generate.instance_ids()[0], annotated=False)
    last = -1
    async for item in stream:
        last = item["number"]
        if last == 3:
            print("streaming", flush=True)
        if last == 40:
            break
    print("read until", last)


asyncio.run(worker())
