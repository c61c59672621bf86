"""The public names as a type checker sees them: `make check` reads this with mypy --strict. It runs in one process."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable
from typing import Any, assert_type

from dynamo.runtime import (
    Annotated,
    CancellationToken,
    Client,
    Component,
    Context,
    DistributedRuntime,
    DynamoException,
    Endpoint,
    EngineError,
    EtcdClient,
    EtcdKvCache,
    Instance,
    InvalidRequest,
    ItemStream,
    MemoryWorld,
    Namespace,
    SpanProxy,
    UnaryClient,
    dynamo_worker,
)
from dynamo.runtime.logging import configure_dynamo_logging, get_bool_env_var, log_level_mapping


async def generate(request: int, context: Context) -> AsyncIterator[int]:
    yield request


def of_context(context: Context) -> None:
    assert_type(context.id(), str)
    assert_type(context.is_stopped(), bool)
    assert_type(context.is_killed(), bool)
    assert_type(context.async_killed_or_stopped(), asyncio.Future[bool])
    assert_type(context.detached("other"), Context)
    assert_type(context.metadata, dict[str, str])
    assert_type(context.trace_id, str | None)
    assert_type(context.trace_headers(), dict[str, str] | None)
    with context.start_span("step", {"k": 1}) as span:
        assert_type(span, SpanProxy)
    context.notify_first_token()
    context.stop_generating()


async def of_client(client: Client) -> None:
    assert_type(client.instance_ids(), list[int])
    assert_type(client.endpoint_ids(), list[int])
    assert_type(client.instances(), list[Instance])
    assert_type(await client.wait_for_instances(), list[int])
    stream = await client.round_robin(1, annotated=True, context=Context())
    assert_type(stream, ItemStream)
    async for item in stream:
        assert isinstance(item, Annotated)
        assert_type(item.event(), str | None)
        assert_type(item.comments(), list[str])
        assert_type(item.id(), str | None)
        assert_type(item.is_error(), bool)
    assert_type(await UnaryClient(client).complete(1, context=Context()), Any)


async def of_runtime(runtime: DistributedRuntime) -> None:
    assert_type(runtime.namespace("a"), Namespace)
    assert_type(runtime.namespace("a").component("b"), Component)
    endpoint = runtime.endpoint("a.b.c")
    assert_type(endpoint, Endpoint)
    assert_type(endpoint.connection_id(), int)
    assert_type(endpoint.lease_id(), int)
    assert_type(runtime.etcd_client(), EtcdClient | None)
    assert_type(runtime.child_token(), CancellationToken)
    assert_type(runtime.event_loop(), asyncio.AbstractEventLoop)
    if (etcd := runtime.etcd_client()) is not None:
        assert_type(etcd.primary_lease_id(), int)
        assert_type(await etcd.kv_get_prefix("x"), list[dict[str, Any]])
        cache = await EtcdKvCache.create(etcd, "prefix/", {"a": b"1", "b": "2"})
        assert_type(await cache.get("a"), bytes | None)
    serving = asyncio.ensure_future(
        endpoint.serve_endpoint(generate, graceful_shutdown=True, metrics_labels=[("a", "b")])
    )
    await of_client(await endpoint.client())
    assert_type(runtime.shutdown(), Awaitable[None])
    await serving


@dynamo_worker(static=False)
async def worker(runtime: DistributedRuntime, word: str) -> str:
    try:
        await of_runtime(runtime)
    except (EngineError, InvalidRequest) as error:
        assert_type(error.retryable, bool)
        raise DynamoException(error.message) from error
    return word


async def main() -> None:
    configure_dynamo_logging()
    assert_type(log_level_mapping("debug"), int)
    assert_type(get_bool_env_var("X"), bool)
    of_context(Context("id", {"k": "v"}))
    assert_type(await DistributedRuntime.in_memory(MemoryWorld()), DistributedRuntime)
    assert_type(await worker("done"), str)
    print("typed")


if len(sys.argv) == 2:
    asyncio.run(main())
