"""Three stages, each a process: `frontend` asks `middle`, which asks `backend`; every stage adds its word."""

import asyncio
import sys
from collections.abc import AsyncIterator

import uvloop
from pydantic import BaseModel

from dynamo.runtime import Client, Context, DistributedRuntime, dynamo_endpoint, dynamo_worker


class Words(BaseModel):
    text: str


class Stage:
    """One stage, with the client of the next one where there is one."""

    def __init__(self, name: str, following: Client | None) -> None:
        self.name, self.following = name, following

    @dynamo_endpoint(Words, str)
    async def generate(self, request: Words, context: Context) -> AsyncIterator[str]:
        text = f"{request.text}-{self.name}"
        if self.following is None:
            for word in text.split("-"):
                yield word
            return
        stream = await self.following.round_robin(Words(text=text).model_dump_json(), context=context)
        async for word in stream:
            yield f"{self.name}:{word.data()}"


@dynamo_worker()
async def serve(runtime: DistributedRuntime, name: str, following: str) -> None:
    namespace = runtime.namespace(sys.argv[1])
    client = None
    if following:
        client = await namespace.component(following).endpoint("generate").client()
        await client.wait_for_instances()
    component = namespace.component(name)
    await component.create_service()
    await component.endpoint("generate").serve_endpoint(Stage(name, client).generate)


@dynamo_worker()
async def ask(runtime: DistributedRuntime) -> None:
    client = await runtime.namespace(sys.argv[1]).component("frontend").endpoint("generate").client()
    await client.wait_for_instances()
    async for word in await client.round_robin({"text": "start"}):
        print(word.data())


FOLLOWING = {"frontend": "middle", "middle": "backend", "backend": ""}
uvloop.install()
asyncio.run(ask() if sys.argv[2] == "ask" else serve(sys.argv[2], FOLLOWING[sys.argv[2]]))
