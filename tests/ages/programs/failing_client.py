"""What a caller sees of them: items that came are kept, errors are raised while iterating."""

import asyncio
import sys

from dynamo.runtime import Client, DistributedRuntime, DynamoException, dynamo_worker


async def attempt(client: Client, request: object, annotated: bool) -> None:
    items = []
    try:
        async for item in await client.round_robin(request, annotated=annotated):
            items += [item.data() if annotated else item]
        print(request, items, "well")
    except Exception as error:
        first_line = str(error).splitlines()[0]
        print(request, items, type(error).__name__, isinstance(error, ValueError), first_line)


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    client = await runtime.namespace(sys.argv[1]).component("backend").endpoint("generate").client()
    await client.wait_for_instances()
    for how in ("well", "value", "runtime", "argument", "shutdown", "cancelled", "object"):
        await attempt(client, {"how": how}, annotated=how != "value")
    await attempt(client, {"what": 1}, annotated=False)
    try:
        await client.direct({"how": "well"}, 12345)
    except DynamoException as error:
        print("direct", type(error).__name__, error)
    nobody = await runtime.endpoint(f"{sys.argv[1]}.nobody.generate").client()
    try:
        await nobody.random({})
    except Exception as error:
        print("nobody", type(error).__name__, str(error).replace(sys.argv[1], "ns"))
    try:
        await client.static({})
    except DynamoException as error:
        print("static", type(error).__name__, error)


asyncio.run(worker())
