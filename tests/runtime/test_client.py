"""A client of one endpoint: whom it picks, what it counts, what it passes on."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

import pytest

from dynamo.runtime import (
    Client,
    Context,
    DistributedRuntime,
    InvalidArgument,
    MemoryWorld,
    NoInstances,
    StreamIncomplete,
    UnaryClient,
)
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.request_plane.server import Incoming
from dynamo.runtime.transport.bus import Verdict

PATH = EndpointPath("ns", "backend", "generate")


def _say_and_hold(what: int, incoming: Incoming) -> None:
    incoming.send(what)


def play(case: Callable[[Client, DistributedRuntime, list[DistributedRuntime]], Awaitable[None]]) -> None:
    """Two workers whose streams answer with the worker's id and stay open, and a client."""

    async def main() -> None:
        world = MemoryWorld()
        caller, *workers = [await DistributedRuntime.in_memory(world) for _ in range(3)]
        try:
            for worker in workers:
                await worker.endpoint(PATH).start(functools.partial(_say_and_hold, worker.id))
            client = await caller.endpoint(PATH).client("least-loaded")
            async with asyncio.timeout(30):
                while len(client.instance_ids()) < 2:
                    await client._view.wait_news()
                await case(client, caller, workers)
        finally:
            for runtime in (caller, *workers):
                await runtime.shutdown(0)

    asyncio.run(main())


def test_loads_are_counted_while_streams_are_open() -> None:
    """Least loaded alternates while streams stay open, and goes back to whoever becomes free."""

    async def case(client: Client, caller: DistributedRuntime, workers: list[DistributedRuntime]) -> None:
        streams = [client.generate(0, annotated=False) for _ in range(4)]
        reached = [await anext(stream) for stream in streams]
        assert sorted(reached) == sorted([worker.id for worker in workers] * 2)
        free = reached[0]
        for stream, worker in zip(streams, reached, strict=True):
            if worker == free:
                await stream.aclose()
        async with client.generate(0, annotated=False) as stream:
            assert await anext(stream) == free

    play(case)


@pytest.mark.parametrize("verdict", [Verdict.DEAD, Verdict.SILENT])
def test_suspects_are_not_picked(verdict: Verdict) -> None:
    """An instance that traffic calls dead or silent is left out until it answers; `direct` still reaches it."""

    async def case(client: Client, caller: DistributedRuntime, workers: list[DistributedRuntime]) -> None:
        suspect, other = workers
        caller.registry.observe(InstanceKey(PATH, suspect.id), verdict)
        for _ in range(4):
            async with client.round_robin(0, annotated=False) as stream:
                assert await anext(stream) == other.id
        assert suspect.id in client.instance_ids()
        async with client.direct(0, suspect.id, annotated=False) as stream:
            assert await anext(stream) == suspect.id
        seen = set()
        while suspect.id not in seen:
            async with client.round_robin(0, annotated=False) as stream:
                seen.add(await anext(stream))

    play(case)


def test_only_suspects_left() -> None:
    """With nobody left who answers, the error says that some are known."""

    async def case(client: Client, caller: DistributedRuntime, workers: list[DistributedRuntime]) -> None:
        for instance in client.instances():
            caller.registry.observe(instance.key, Verdict.DEAD)
        with pytest.raises(NoInstances, match="those that are known don't answer"):
            client.random(0)

    play(case)


def test_a_request_that_can_not_be_sent_leaves_no_load() -> None:
    """An unencodable request is the caller's mistake and is not counted."""

    async def case(client: Client, caller: DistributedRuntime, workers: list[DistributedRuntime]) -> None:
        with pytest.raises(InvalidArgument):
            client.random(object())
        assert client._loads == {}

    play(case)


async def test_a_stream_without_an_answer() -> None:
    """A unary call that ends without an item says so."""
    async with await DistributedRuntime.in_memory() as runtime:
        await runtime.endpoint(PATH).start(lambda incoming: incoming.finish())
        client = await runtime.endpoint(PATH).client()
        await client.wait_for_instances()
        with pytest.raises(StreamIncomplete, match="without an answer"):
            await UnaryClient(client).complete(0)


def test_a_worker_that_leaves_is_not_picked() -> None:
    """A draining instance gets nothing new while its open stream goes on."""

    async def case(client: Client, caller: DistributedRuntime, workers: list[DistributedRuntime]) -> None:
        leaving, other = workers
        stream = client.direct(0, leaving.id, annotated=False, context=Context())
        assert await anext(stream) == leaving.id
        await leaving.served[0].drain(0)
        while leaving.id in client.instance_ids():
            await client._view.wait_news()
        for _ in range(3):
            async with client.round_robin(0, annotated=False) as another:
                assert await anext(another) == other.id
        await stream.aclose()

    play(case)
