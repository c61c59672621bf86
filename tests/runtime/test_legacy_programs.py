"""What only older programs use, part by part, in one process; tests/ages runs such programs whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.fixtures_nats import NatsServer
from tests.waiting import until

from dynamo.runtime import (
    Context,
    DistributedRuntime,
    EtcdKvCache,
    InvalidArgument,
    MemoryWorld,
    NatsConfig,
    NoInstances,
    RuntimeConfig,
)
from dynamo.runtime.backends import asked_config
from dynamo.runtime.decorators import wanted_port
from dynamo.runtime.discovery.membership import Instance, encode_instance
from dynamo.runtime.discovery.static import LOST_AFTER, _Looking
from dynamo.runtime.names import EndpointPath, new_id
from dynamo.runtime.request_plane.generator_handler import Wants, wanted_context
from dynamo.runtime.transport.bus import Message

PATH = EndpointPath("ns", "backend", "generate")


def run(case: Callable[[DistributedRuntime], Awaitable[None]]) -> None:
    """One runtime over memory."""

    async def main() -> None:
        async with asyncio.timeout(30), await DistributedRuntime.in_memory() as runtime:
            await case(runtime)

    asyncio.run(main())


async def say(request: Any) -> AsyncIterator[Any]:
    yield request


# -- constructors


@pytest.mark.parametrize(
    ("backend", "static", "expected"),
    [(False, False, False), (True, False, True), (None, True, True), ("etcd", False, False), ("", False, False)],
)
def test_constructors(backend: Any, static: bool, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second argument is `is_static` or a backend; planes of any age are taken."""
    monkeypatch.setenv("DYN_DISCOVERY_BACKEND", "etcd")
    for plane in (None, "tcp", "nats", "zmq", "http"):
        config, wants_static = asked_config(backend, static, plane)
        assert (config.discovery_backend, wants_static) == ("etcd", expected)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("kubernetes",), "workers are found in etcd"),
        (("file",), "workers are found in etcd"),
        (("consul",), "must be 'etcd' or 'mem'"),
        (("etcd", "pigeon"), "everything travels over NATS"),
    ],
)
def test_constructors_that_ask_for_what_is_not_there(arguments: tuple[Any, ...], says: str) -> None:
    """They say what is there instead."""
    with pytest.raises(InvalidArgument, match=says):
        DistributedRuntime(None, *arguments)


async def test_a_constructed_runtime_connects_when_it_is_used() -> None:
    """Made outside of a loop; serving and calling wait for the connection."""
    runtime = DistributedRuntime(None, "mem")

    serving = asyncio.ensure_future(runtime.endpoint(PATH).serve_endpoint(say))
    client = await runtime.endpoint(PATH).client()
    await client.wait_for_instances()
    assert [item async for item in client.random(1, annotated=False)] == [1]
    runtime.shutdown()
    await serving
    await runtime.shutdown()


# -- the end


def test_shutdown_from_another_thread() -> None:
    """It begins on the runtime's own loop."""

    async def case(runtime: DistributedRuntime) -> None:
        serving = asyncio.ensure_future(runtime.endpoint(PATH).serve_endpoint(say))
        await until("it serves", lambda: runtime.served)
        threading.Thread(target=runtime.shutdown).start()
        await serving

    run(case)


def test_serve_endpoint_returns_when_its_streams_have_ended() -> None:
    """What a program frees after it is no longer used by a handler."""
    order: list[str] = []
    go_on = asyncio.Event()

    async def slow(request: Any) -> AsyncIterator[str]:
        yield "begun"
        await go_on.wait()
        order.append("streamed")

    async def case(runtime: DistributedRuntime) -> None:
        async def serve() -> None:
            await runtime.endpoint(PATH).serve_endpoint(slow)
            order.append("returned")

        serving = asyncio.ensure_future(serve())
        client = await runtime.endpoint(PATH).client()
        await client.wait_for_instances()
        stream = client.random(0, annotated=False)
        assert await anext(stream) == "begun"
        runtime.shutdown(20)
        await until("it drains", lambda: runtime.served[0].draining)
        go_on.set()
        await serving
        await stream.aclose()

    run(case)
    assert order == ["streamed", "returned"]


def test_tokens() -> None:
    """A child ends alone or with the runtime; the primary one ends the runtime; late ones are ended at once."""

    async def case(runtime: DistributedRuntime) -> None:
        alone, child, primary = runtime.child_token(), runtime.child_token(), runtime.primary_token()
        alone.cancel()
        await alone.cancelled()
        assert not runtime.closing.is_set()
        primary.cancel()
        primary.cancel()
        await child.cancelled()
        assert runtime.closing.is_set()
        await runtime.child_token().cancelled()

    run(case)


# -- keys


def test_keys_of_ones_own() -> None:
    """They lie beside the runtime's, which can't be touched; a lease of another's is no lease."""

    async def case(runtime: DistributedRuntime) -> None:
        etcd = runtime.etcd_client()
        assert etcd is not None
        await etcd.kv_create("a/1", b"x", etcd.primary_lease_id())
        await etcd.kv_create_or_validate("a/1", b"x")
        with pytest.raises(InvalidArgument, match="with another value"):
            await etcd.kv_create_or_validate("a/1", b"y")
        with pytest.raises(InvalidArgument, match="name dynamo/instances/x otherwise"):
            await etcd.kv_put("dynamo/instances/x", b"")
        with pytest.raises(InvalidArgument, match="there is no lease 7"):
            await etcd.kv_put("a/2", b"", 7)
        assert [entry["key"] for entry in await etcd.kv_get_prefix("a/")] == ["a/1"]
        again = await EtcdKvCache.create(etcd, "a/", {"1": b"new", "2": "second"})
        assert await again.get_all() == {"1": b"x", "2": b"second"}
        with pytest.raises(Exception, match=r"await EtcdKvCache\.create"):
            EtcdKvCache(etcd, "a/", {})

    run(case)


def test_a_key_that_is_made_is_whole_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its lease in the same step: a process that dies then leaves no key for ever."""

    async def case(runtime: DistributedRuntime) -> None:
        etcd = runtime.etcd_client()
        assert etcd is not None
        await runtime.ready()
        leases: list[object] = []
        put_if = runtime.store.put_if

        async def noted(key: str, value: bytes, expected: bytes | None, lease: Any = None) -> Any:
            leases.append(lease)
            return await put_if(key, value, expected, lease)

        monkeypatch.setattr(runtime.store, "put_if", noted)
        await etcd.kv_create("a/1", b"x")
        assert None not in leases[-1:]

    run(case)


def test_the_primary_lease_given_back() -> None:
    """The endpoints leave, the process runs on."""

    async def case(runtime: DistributedRuntime) -> None:
        serving = asyncio.ensure_future(runtime.endpoint(PATH).serve_endpoint(say))
        client = await runtime.endpoint(PATH).client()
        await client.wait_for_instances()
        etcd = runtime.etcd_client()
        assert etcd is not None
        await etcd.revoke_lease(etcd.primary_lease_id())
        await serving
        await until("nobody serves it", lambda: not client.instance_ids())
        assert not runtime.closing.is_set()

    run(case)


# -- handlers and clients


async def _two(request: Any, context: Context) -> AsyncIterator[Any]:
    yield context


async def _named(request: Any, *, context: Context) -> AsyncIterator[Any]:
    yield context


async def _third(request: Any, retries: int = 3, context: Context | None = None) -> AsyncIterator[Any]:
    yield context


async def _optional(request: Any, retries: int = 3) -> AsyncIterator[Any]:
    yield retries


@pytest.mark.parametrize(
    ("handler", "wants"),
    [
        (say, Wants.NO), (_two, Wants.SECOND), (_named, Wants.NAMED), (_third, Wants.NAMED), (_optional, Wants.NO),
        (lambda *args: args, Wants.SECOND),
    ],
)  # fmt: skip
def test_how_a_handler_takes_its_context(handler: Callable[..., Any], wants: Wants) -> None:
    """By its name, or in a second place that must be filled; a default of its own stays."""
    assert wanted_context(handler) is wants


def test_a_context_in_the_wrong_place() -> None:
    """It is refused: an ignored context would not stop the request."""

    async def case(runtime: DistributedRuntime) -> None:
        await runtime.endpoint(PATH).start(lambda incoming: incoming.finish(1))
        client = await runtime.endpoint(PATH).client()
        await client.wait_for_instances()
        with pytest.raises(InvalidArgument, match="context="):
            client.random(0, Context())  # type: ignore[arg-type]

    run(case)


def test_instances_by_what_they_were_registered_with() -> None:
    """`runtime_data` of a model's registration is looked at; nobody in time is an error."""

    async def case(runtime: DistributedRuntime) -> None:
        await runtime.endpoint(PATH).start(lambda incoming: incoming.finish(1), figures={"runtime_data": {"zone": "a"}})
        client = await runtime.endpoint(PATH).client()
        assert await client.wait_for_instance_by_runtime_data("zone", "a") == runtime.id
        with pytest.raises(NoInstances, match=r"0 instances of ns\.backend\.generate have zone=b"):
            await client.wait_for_instances_by_runtime_data("zone", "b", 1, 0.01)

    run(case)


# -- without etcd


def record(path: EndpointPath = PATH, number: int = 5, **more: Any) -> bytes:
    return encode_instance(Instance(**path._asdict(), id=number, nonce="n", **more))


def test_what_is_heard_of_static_workers() -> None:
    """Answers are written once, and again where they change; who falls silent goes; nonsense is left out."""
    now = [0.0]
    looking = _Looking(PATH, 7, lambda: now[0])
    other = PATH._replace(endpoint="other")
    for data in (b"{", b"", record(other), record(number=7)):
        looking.heard(Message("s", data))
    looking.heard(Message("s", b"", no_responders=True))
    assert (looking.settle(), looking.known) == ([], False)
    looking.heard(Message("s", record()))
    (key, value), *rest = looking.settle()
    assert (value, rest, looking.known) == (record(), [], True)
    looking.heard(Message("s", record()))
    assert looking.settle() == []
    looking.heard(Message("s", record(draining=True)))
    assert looking.settle() == [(key, record(draining=True))]
    now[0] += LOST_AFTER + 0.1
    assert looking.settle() == [(key, None)]
    assert looking.settle() == []


@pytest.mark.servers
async def test_static_runtimes(nats_server: NatsServer) -> None:
    """Two workers and a caller over NATS alone: found, told apart, left."""
    config = RuntimeConfig(nats=NatsConfig(servers=(nats_server.url,)))
    path = PATH._replace(namespace=f"t{new_id():x}")

    first, second, caller = [await DistributedRuntime.create(config, static=True) for _ in range(3)]
    serving = [asyncio.ensure_future(worker.endpoint(path).serve_endpoint(say)) for worker in (first, second)]
    await until("both serve", lambda: first.served and second.served)
    client = await caller.endpoint(path).client()
    await until("both are known", lambda: client.instance_ids() == sorted([first.id, second.id]))
    assert [item async for item in await client.static("hi", annotated=False)] == ["hi"]
    assert caller.etcd_client() is None
    await first.shutdown()
    await until("one has left", lambda: client.instance_ids() == [second.id])
    await asyncio.gather(second.shutdown(), caller.shutdown(), *serving)


async def test_static_belongs_to_static_runtimes() -> None:
    """`Client.static` says what to call instead."""
    async with await DistributedRuntime.in_memory(MemoryWorld()) as runtime:
        client = await runtime.endpoint(PATH).client()
        with pytest.raises(InvalidArgument, match=r"use round_robin\(\)"):
            client.static(0)


# -- the system server


@pytest.mark.parametrize(
    ("port", "switch", "expected"),
    [("", "", -1), ("8081", "", 8081), ("0", "true", 0), ("", "true", 0), ("8081", "false", -1), ("-1", "1", 0)],
)
def test_where_a_program_shows_its_health(port: str, switch: str, expected: int) -> None:
    """`DYN_SYSTEM_PORT`, and the older switch beside it."""
    assert wanted_port({"DYN_SYSTEM_PORT": port, "DYN_SYSTEM_ENABLED": switch}) == expected


@pytest.mark.parametrize("port", ["x", "-2", "65536"])
def test_no_port(port: str) -> None:
    """It is said by the variable's name."""
    with pytest.raises(InvalidArgument, match="DYN_SYSTEM_PORT must be a port"):
        wanted_port({"DYN_SYSTEM_PORT": port})
