"""Handlers that fail, each in its way."""

import asyncio
import sys
from collections.abc import AsyncIterator

from pydantic import BaseModel

from dynamo.llm.exceptions import EngineShutdown, InvalidArgument
from dynamo.runtime import DistributedRuntime, dynamo_endpoint, dynamo_worker


class Request(BaseModel):
    how: str


@dynamo_endpoint(Request, str)
async def generate(request: Request) -> AsyncIterator[object]:
    yield "begun"
    if request.how == "value":
        raise ValueError("boom")
    if request.how == "runtime":
        raise RuntimeError("boom")
    if request.how == "argument":
        raise InvalidArgument("not like this")
    if request.how == "shutdown":
        raise EngineShutdown("bye")
    if request.how == "cancelled":
        raise asyncio.CancelledError
    if request.how == "object":
        yield object()
    yield "ended"


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    await runtime.namespace(sys.argv[1]).component("backend").endpoint("generate").serve_endpoint(generate)


asyncio.run(worker())
