"""As of mid 2025: no etcd; asks until it is told to leave, so that workers may come and go meanwhile."""

import asyncio
import sys

from dynamo.runtime import Client, DistributedRuntime, DynamoException, dynamo_worker


async def ask(client: Client) -> None:
    """Ask again and again; print whoever answers for the first time, and what went wrong."""
    seen: set[int] = set()
    while True:
        try:
            async for word in await client.static("a b", annotated=False):
                assert word in ("A", "B")
            for worker in set(client.instance_ids()) - seen:
                seen.add(worker)
                print("answered by", worker, flush=True)
        except DynamoException as error:
            if not error.retryable:
                raise
        await asyncio.sleep(0.05)


@dynamo_worker(static=True)
async def worker(runtime: DistributedRuntime) -> None:
    endpoint = runtime.namespace(sys.argv[1]).component("backend").endpoint("generate")
    client = await endpoint.client()
    ids = await client.wait_for_instances()
    async for word in await client.static("hello static world"):
        print(word.data(), flush=True)
    async for word in await client.direct("direct", ids[0]):
        print(word.data(), flush=True)
    asking = asyncio.ensure_future(ask(client))
    await runtime.primary_token().cancelled()
    asking.cancel()


asyncio.run(worker())
