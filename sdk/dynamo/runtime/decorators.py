"""`@dynamo_worker` and `@dynamo_endpoint`, as programs written for the original use them.

@dynamo_worker()
async def worker(runtime): await runtime.endpoint("ns.comp.ep").serve_endpoint(generate)

asyncio.run(worker())
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from dynamo.runtime.context import Context
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.runtime import DistributedRuntime

T = TypeVar("T")

log = logging.getLogger(__name__)


def dynamo_worker(
    static: bool = False, enable_nats: bool | None = None
) -> Callable[[Callable[..., Awaitable[T]]], Callable[..., Coroutine[Any, Any, T]]]:
    """Give the decorated coroutine a runtime made from the environment, and close it afterwards.

    SIGTERM shuts the runtime down in order, which ends `serve_endpoint`; a second one ends
    the process. `enable_nats` is taken for compatibility and has no effect; `static=True` is refused.
    """
    if static:
        raise InvalidArgument(
            "dynamo_worker(static=True) is not supported: set DYN_DISCOVERY_BACKEND=mem to run without etcd"
        )

    def decorate(work: Callable[..., Awaitable[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
        @functools.wraps(work)
        async def run(*args: Any, **kwargs: Any) -> T:
            runtime = await DistributedRuntime.create()
            try:
                with _leaving_on_sigterm(runtime):
                    return await work(runtime, *args, **kwargs)
            finally:
                await runtime.shutdown()

        return run

    return decorate


@contextlib.contextmanager
def _leaving_on_sigterm(runtime: DistributedRuntime) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    leaving: list[asyncio.Task[None]] = []

    def leave() -> None:
        log.info("leaving on SIGTERM; a second one ends the process now")
        loop.remove_signal_handler(signal.SIGTERM)
        leaving.append(loop.create_task(runtime.shutdown(), name="leave on SIGTERM"))

    loop.add_signal_handler(signal.SIGTERM, leave)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def dynamo_endpoint(request_model: Any, response_model: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Parse the request into a pydantic model before the decorated generator sees it.

    A request that does not fit is an `InvalidArgument`. `response_model` is not enforced; items
    that are models are sent as dictionaries.
    """

    def decorate(generate: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        @functools.wraps(generate)
        async def run(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            parsed = _with_model(request_model, args)
            async for item in generate(*parsed, **kwargs):
                yield item.model_dump() if hasattr(item, "model_dump") else item

        return run

    return decorate


def _with_model(model: Any, args: tuple[Any, ...]) -> list[Any]:
    """`args` with the request (the last one that is no context) as a `model`."""
    found = list(args)
    at = len(found) - (2 if found and isinstance(found[-1], Context) else 1)
    if at < 0 or not hasattr(model, "model_validate") or isinstance(found[at], model):
        return found
    try:
        request = found[at]
        found[at] = (
            model.model_validate_json(request) if isinstance(request, str | bytes) else model.model_validate(request)
        )
    except ValueError as error:
        raise InvalidArgument(f"Invalid request: {error}") from error
    return found
