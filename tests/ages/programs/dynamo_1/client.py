"""As of 1.x: a runtime from today's constructor, metadata, one answer from `UnaryClient`."""

import asyncio
import sys

from dynamo.runtime import Context, DistributedRuntime, UnaryClient


async def main() -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), "etcd", "tcp", event_plane="zmq", response_plane="tcp")
    client = await runtime.endpoint(f"{sys.argv[1]}.backend.generate").client("random")
    await client.wait_for_instances()
    instance = client.instances()[0]
    print("instance", instance.namespace == sys.argv[1], instance.component, instance.endpoint)
    context = Context("id", metadata={"tenant": "a"})
    for value in (None, "text", 1.5, [1, "b"], {"k": [True]}, b"bytes"):
        stream = await client.generate(value, annotated=False, context=context.detached("other"))
        print([item async for item in stream])
    unary = UnaryClient(await runtime.endpoint(f"{sys.argv[1]}.backend.add").client())
    print("sum", await unary.complete([1, 2, 3], context=Context()))
    await runtime.shutdown()


asyncio.run(main())
