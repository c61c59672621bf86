"""As of March 2025: a service made by hand, pydantic models, uvloop put in first."""

import asyncio
import sys
from collections.abc import AsyncIterator

import uvloop
from pydantic import BaseModel

from dynamo.runtime import DistributedRuntime, dynamo_endpoint, dynamo_worker


class Request(BaseModel):
    data: str


class Response(BaseModel):
    char: str


class RequestHandler:
    @dynamo_endpoint(Request, Response)
    async def generate(self, request: Request) -> AsyncIterator[str]:
        for char in request.data:
            yield char


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    component = runtime.namespace(sys.argv[1]).component("backend")
    await component.create_service()
    endpoint = component.endpoint("generate")
    print("lease", endpoint.lease_id(), flush=True)
    await endpoint.serve_endpoint(RequestHandler().generate)
    print("left", flush=True)


uvloop.install()
asyncio.run(worker())
