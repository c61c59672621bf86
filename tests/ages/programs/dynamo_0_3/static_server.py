"""As of mid 2025: no etcd."""

import asyncio
import sys
from collections.abc import AsyncIterator

from dynamo.runtime import DistributedRuntime, dynamo_worker


async def generate(request: str) -> AsyncIterator[str]:
    for word in request.split():
        yield word.upper()


@dynamo_worker(static=True)
async def worker(runtime: DistributedRuntime) -> None:
    assert runtime.etcd_client() is None
    component = runtime.namespace(sys.argv[1]).component("backend")
    await component.create_service()
    endpoint = component.endpoint("generate")
    print("id", endpoint.lease_id(), flush=True)
    await endpoint.serve_endpoint(generate)


asyncio.run(worker())
