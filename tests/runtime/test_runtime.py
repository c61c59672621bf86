"""Whole runtimes, over memory and over real servers: serving, calling, leaving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.waiting import until

from dynamo.runtime import (
    Annotated,
    Cancelled,
    Context,
    DistributedRuntime,
    DynamoException,
    InvalidArgument,
    MemoryWorld,
    NatsConfig,
    NoInstances,
    RuntimeConfig,
    StreamIncomplete,
    UnaryClient,
)
from dynamo.runtime.client import BUFFER
from dynamo.runtime.names import new_id


class Deployment:
    """Makes runtimes that see each other; closes them all."""

    def __init__(self, config: RuntimeConfig | None) -> None:
        self._config = config
        self._world = MemoryWorld()
        self._made: list[DistributedRuntime] = []
        self.namespace = f"t{new_id():x}"

    async def runtime(self) -> DistributedRuntime:
        if self._config is None:
            made = await DistributedRuntime.in_memory(self._world)
        else:
            made = await DistributedRuntime.create(self._config)
        self._made.append(made)
        return made

    @property
    def path(self) -> str:
        return f"{self.namespace}.backend.generate"

    async def close(self) -> None:
        await asyncio.gather(*(runtime.shutdown(0) for runtime in self._made))


Play = Callable[[Callable[[Deployment], Awaitable[None]]], None]


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.servers)])
def play(request: pytest.FixtureRequest) -> Play:
    config = None
    if request.param == "real":
        etcd = request.getfixturevalue("etcd_server").config()
        config = RuntimeConfig(etcd=etcd, nats=NatsConfig(servers=(request.getfixturevalue("nats_server").url,)))

    def run(case: Callable[[Deployment], Awaitable[None]]) -> None:
        async def main() -> None:
            deployment = Deployment(config)
            try:
                async with asyncio.timeout(60):
                    await case(deployment)
            finally:
                await deployment.close()

        asyncio.run(main())

    return run


async def count(request: int) -> AsyncIterator[int]:
    for number in range(request):
        yield number


def test_hello(play: Play) -> None:
    """An endpoint served by a generator is found and called, annotated as NVIDIA Dynamo's items or plain."""

    async def case(site: Deployment) -> None:
        server, caller = await site.runtime(), await site.runtime()
        component = server.namespace(site.namespace).component("backend")
        with pytest.warns(DeprecationWarning, match="create_service"):
            await component.create_service()
        serving = asyncio.create_task(component.endpoint("generate").serve_endpoint(count))
        client = await caller.endpoint(f"dyn://{site.path}").client()
        assert await client.wait_for_instances() == [server.id]
        assert client.instance_ids() == [server.id]
        assert client.instances()[0].endpoint == "generate"
        stream = await client.random(3)
        items = [item async for item in stream]
        assert [type(item) for item in items] == [Annotated] * 3
        assert [item.data() for item in items] == [0, 1, 2]
        assert [item async for item in client.round_robin(2, annotated=False)] == [0, 1]
        assert await UnaryClient(client).complete(1) == 0
        await server.shutdown(1)
        await asyncio.wait_for(serving, 5)

    play(case)


def test_the_context_reaches_the_handler(play: Play) -> None:
    """A handler with two arguments gets the request's context: its id and its metadata."""

    async def handler(request: str, context: Context) -> AsyncIterator[list[Any]]:
        yield [request, context.id(), context.metadata["who"]]

    async def case(site: Deployment) -> None:
        server = await site.runtime()
        serving = asyncio.create_task(server.endpoint(site.path).serve_endpoint(handler))
        client = await (await site.runtime()).endpoint(site.path).client()
        await client.wait_for_instances()
        context = Context("my-id", {"who": "me"})
        assert [i async for i in client.generate("hi", annotated=False, context=context)] == [["hi", "my-id", "me"]]
        await server.shutdown(1)
        await serving

    play(case)


def test_modes_spread_requests(play: Play) -> None:
    """Round robin takes turns, direct picks, and the others reach somebody."""

    def named(name: str) -> Callable[[Any], AsyncIterator[str]]:
        async def handler(request: Any) -> AsyncIterator[str]:
            yield name

        return handler

    async def case(site: Deployment) -> None:
        first, second, caller = [await site.runtime() for _ in range(3)]
        servings = [
            asyncio.create_task(r.endpoint(site.path).serve_endpoint(named(str(r.id)))) for r in (first, second)
        ]
        client = await caller.endpoint(site.path).client("least-loaded")
        await until("both are known", lambda: len(client.instance_ids()) == 2)
        ask = UnaryClient(client)
        turns = [await anext(client.round_robin(0, annotated=False)) for _ in range(4)]
        assert sorted(turns) == sorted([str(first.id), str(second.id)] * 2)
        assert turns[:2] == turns[2:]
        for how in (client.random, client.power_of_two, client.least_loaded):
            assert await anext(how(0, annotated=False)) in turns
        assert await ask.complete(0) in turns
        assert [i async for i in client.direct(0, second.id, annotated=False)] == [str(second.id)]
        with pytest.raises(NoInstances, match="instance_id=12345 not found for endpoint"):
            client.direct(0, 12345)
        await asyncio.gather(first.shutdown(1), second.shutdown(1), *servings)

    play(case)


def test_nobody_there(play: Play) -> None:
    """Calling, or waiting for, an endpoint that nobody serves is one clear error."""

    async def case(site: Deployment) -> None:
        client = await (await site.runtime()).endpoint(site.path).client()
        with pytest.raises(NoInstances, match=r"nobody serves .*\.backend\.generate now"):
            client.random(1)
        with pytest.raises(NoInstances, match=r"nobody has served"):
            await client.wait_for_instances(timeout=0.05)

    play(case)


def test_an_error_in_the_handler(play: Play) -> None:
    """What was sent before an error arrives, then the error is raised once."""

    async def handler(request: Any) -> AsyncIterator[int]:
        yield 1
        raise InvalidArgument("no such thing")

    async def case(site: Deployment) -> None:
        server = await site.runtime()
        serving = asyncio.create_task(server.endpoint(site.path).serve_endpoint(handler))
        client = await (await site.runtime()).endpoint(site.path).client()
        await client.wait_for_instances()
        stream = client.random(0, annotated=False)
        assert await anext(stream) == 1
        with pytest.raises(InvalidArgument, match="no such thing"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await server.shutdown(1)
        await serving

    play(case)


async def _endless(site: Deployment, stopped: asyncio.Event) -> tuple[DistributedRuntime, asyncio.Task[None], Any]:
    async def handler(request: Any, context: Context) -> AsyncIterator[int]:
        try:
            number = 0
            while True:
                yield number
                number += 1
                await asyncio.sleep(0.01)
        finally:
            stopped.set()

    server = await site.runtime()
    serving = asyncio.create_task(server.endpoint(site.path).serve_endpoint(handler))
    client = await (await site.runtime()).endpoint(site.path).client()
    await client.wait_for_instances()
    return server, serving, client


@pytest.mark.parametrize("how", ["close", "with", "drop", "context"])
def test_a_reader_that_leaves_stops_the_worker(play: Play, how: str) -> None:
    """However a reader leaves, the handler's generator is closed."""

    async def case(site: Deployment) -> None:
        stopped = asyncio.Event()
        server, serving, client = await _endless(site, stopped)
        context = Context()
        if how == "with":
            async with client.random(0, context=context) as stream:
                await anext(stream)
        else:
            stream = client.random(0, context=context)
            await anext(stream)
            if how == "close":
                await stream.aclose()
            elif how == "context":
                context.stop_generating()
                with pytest.raises(Cancelled):
                    [item async for item in stream]
        del stream
        async with asyncio.timeout(5):
            await stopped.wait()
        assert client._loads == {}
        await server.shutdown(1)
        await serving

    play(case)


async def test_a_reader_that_does_not_read() -> None:
    """Items that nobody takes are bounded: the request is cancelled and the reader told."""

    async def handler(request: Any) -> AsyncIterator[int]:
        for number in range(4 * BUFFER):
            yield number
            if number % 100 == 0:
                await asyncio.sleep(0)

    async with await DistributedRuntime.in_memory() as runtime:
        serving = asyncio.create_task(runtime.endpoint("a.b.c").serve_endpoint(handler))
        client = await runtime.endpoint("a.b.c").client()
        await client.wait_for_instances()
        stream = client.random(0, annotated=False)
        await until("given up", lambda: not client._loads)
        assert [await anext(stream) for _ in range(BUFFER)] == list(range(BUFFER))
        with pytest.raises(StreamIncomplete, match="behind"):
            await anext(stream)
    await serving


def test_shutdown_waits_for_running_streams(play: Play) -> None:
    """A stream that runs when the shutdown begins is finished; the instance has left routing before."""

    async def case(site: Deployment) -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handler(request: Any) -> AsyncIterator[int]:
            begun.set()
            yield 1
            await go_on.wait()
            yield 2

        server = await site.runtime()
        serving = asyncio.create_task(server.endpoint(site.path).serve_endpoint(handler))
        client = await (await site.runtime()).endpoint(site.path).client()
        await client.wait_for_instances()
        stream = client.random(0, annotated=False)
        await begun.wait()
        closing = asyncio.ensure_future(server.shutdown(20))
        await until("left routing", lambda: client.instance_ids() == [])
        assert not closing.done()
        go_on.set()
        assert [item async for item in stream] == [1, 2]
        await closing
        await serving

    play(case)


def test_shutdown_does_not_wait_longer_than_its_grace(play: Play) -> None:
    """Streams that outlive the grace end with a retryable error."""

    async def case(site: Deployment) -> None:
        stopped = asyncio.Event()
        server, serving, client = await _endless(site, stopped)
        stream = client.random(0, annotated=False)
        await anext(stream)
        await server.shutdown(0.1)
        with pytest.raises(DynamoException) as caught:
            [item async for item in stream]
        assert caught.value.retryable
        await serving

    play(case)


def test_a_taken_id_gives_way(play: Play) -> None:
    """A process whose id is taken gets another one, and both serve."""

    async def case(site: Deployment) -> None:
        first, second = await site.runtime(), await site.runtime()
        await first.endpoint(site.path).start(lambda incoming: incoming.finish("one"))
        second.id = first.id
        second.server.worker_id = first.id
        second.server.on_control(second.endpoint(site.path).path, "who", lambda body: second.id)
        served = await second.endpoint(site.path).start(lambda incoming: incoming.finish("two"))
        assert served.instance_id == second.id != first.id
        client = await first.endpoint(site.path).client()
        await until("both are known", lambda: client.instance_ids() == sorted([first.id, second.id]))
        assert (
            await first.caller.control(client.instances()[0].key._replace(id=second.id), "who", None, timeout=5)
            == second.id
        )
        assert [i async for i in client.direct(0, second.id, annotated=False)] == ["two"]
        assert [i async for i in client.direct(0, first.id, annotated=False)] == ["one"]

    play(case)


def test_leave_and_rejoin(play: Play) -> None:
    """`unregister_endpoint_instance` takes an endpoint out of routing without ending it."""

    async def case(site: Deployment) -> None:
        server = await site.runtime()
        endpoint = server.endpoint(site.path)
        served = await endpoint.start(lambda incoming: incoming.finish("here"))
        client = await (await site.runtime()).endpoint(site.path).client()
        await client.wait_for_instances()
        await endpoint.unregister_endpoint_instance()
        await until("left", lambda: client.instance_ids() == [])
        assert not served.readiness().ready
        await endpoint.register_endpoint_instance()
        assert await client.wait_for_instances() == [endpoint.connection_id()]
        assert await UnaryClient(client).complete(0) == "here"

    play(case)


async def test_a_cancelled_serve_endpoint_leaves() -> None:
    """Cancelling `serve_endpoint` takes the instance away."""
    async with await DistributedRuntime.in_memory() as runtime:
        serving = asyncio.create_task(runtime.endpoint("a.b.c").serve_endpoint(count))
        client = await runtime.endpoint("a.b.c").client()
        await client.wait_for_instances()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await until("gone", lambda: client.instance_ids() == [])
        assert runtime.served == []


def test_two_clients_and_readiness(play: Play) -> None:
    """A worker is ready only when both frontends can use it, and says which one can't and why."""

    async def case(site: Deployment) -> None:
        fronts = [await site.runtime(), await site.runtime()]
        views = [
            await fronts[0].registry.watch(site.namespace, "frontend"),
            await fronts[1].registry.watch(site.namespace, "frontend"),
        ]
        for view in views:
            await view.wait_synced(10)
        for view in views:
            _mark_pending(view)
        worker = await site.runtime()
        served = await worker.endpoint(site.path).start(lambda incoming: incoming.finish())
        key = worker.endpoint(site.path).path, served.instance_id
        await until("joined", lambda: all(key in view.instances for view in views))
        assert not served.readiness().ready
        views[0].loaded(next(iter(views[0].instances)))
        views[1].failed(next(iter(views[1].instances)), "its tokenizer is broken")
        await until("told why", lambda: "its tokenizer is broken" in str(served.readiness().reasons))
        assert not served.readiness().ready
        views[1].loaded(next(iter(views[1].instances)))
        await until("ready", lambda: served.readiness().ready)

    play(case)


def _mark_pending(view: Any) -> None:
    class Loading:
        def joined(self, instance: Any) -> None:
            view.pending(instance.key)

        def changed(self, instance: Any) -> None: ...

        def left(self, key: Any) -> None: ...

    view.listen(Loading())


async def test_the_memory_backend_by_configuration() -> None:
    """`DYN_DISCOVERY_BACKEND=mem` makes a runtime that needs no servers."""
    config = RuntimeConfig.from_env({"DYN_DISCOVERY_BACKEND": "mem"})
    async with await DistributedRuntime.create(config) as runtime:
        assert runtime.endpoint("a.b.c").path == ("a", "b", "c")


async def test_nothing_is_left_behind() -> None:
    """After a shutdown no task runs, and a second shutdown is no error."""
    runtime = await DistributedRuntime.in_memory()
    await runtime.endpoint("a.b.c").start(lambda incoming: incoming.finish())
    await runtime.endpoint("a.b.c").client()
    await runtime.shutdown(1)
    await runtime.shutdown(1)
    assert asyncio.all_tasks() == {asyncio.current_task()}
