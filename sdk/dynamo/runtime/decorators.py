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
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from dynamo.runtime.context import Context
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.program import system_server
from dynamo.runtime.runtime import DistributedRuntime

T = TypeVar("T")

log = logging.getLogger(__name__)


def dynamo_worker(
    *unnamed: bool, static: bool = False, enable_nats: bool | None = None
) -> Callable[[Callable[..., Awaitable[T]]], Callable[..., Coroutine[Any, Any, T]]]:
    """Give the decorated coroutine function a runtime made from the environment, and close it afterwards.

    Call the result without the runtime: `asyncio.run(worker())`, `uvloop.run(worker())`, or on a loop of one's own.
    SIGTERM shuts the runtime down in order, which ends `serve_endpoint`; a second one ends the process. With
    `DYN_SYSTEM_PORT`, `/health`, `/live`, `/metrics` and `/engine/…` are served meanwhile.

    `static=True` (0.1 to 0.3): workers are found over NATS, no etcd is needed. `enable_nats` (0.4 on) changes nothing.
    A bare `dynamo_worker(True)` means the one in 0.3 and the other in 0.8, and is refused: `InvalidArgument`.
    """
    if any(map(callable, unnamed)):
        raise InvalidArgument("write @dynamo_worker() with its parentheses")
    if any(unnamed):
        raise InvalidArgument("dynamo_worker(True) was static=True up to 0.3 and enable_nats=True from 0.4 on: name it")
    if enable_nats is not None:
        warnings.warn("enable_nats changes nothing: requests always travel over NATS", DeprecationWarning, stacklevel=2)

    def decorate(work: Callable[..., Awaitable[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
        @functools.wraps(work)
        async def run(*args: Any, **kwargs: Any) -> T:
            runtime = await DistributedRuntime.create(static=static)
            try:
                async with system_server(runtime):
                    with _leaving_on_sigterm(runtime):
                        return await work(runtime, *args, **kwargs)
            finally:
                await runtime.shutdown()

        return run

    return decorate


@contextlib.contextmanager
def _leaving_on_sigterm(runtime: DistributedRuntime) -> Iterator[None]:
    """A program that listens for signals itself takes the place of this; a loop of another thread can't listen."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def leave() -> None:
        log.info("leaving on SIGTERM; a second one ends the process now")
        loop.remove_signal_handler(signal.SIGTERM)
        runtime.shutdown()

    loop.add_signal_handler(signal.SIGTERM, leave)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def dynamo_endpoint(request_model: Any, response_model: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Parse the request into a pydantic model before the decorated generator sees it.

    For functions and methods, with and without a context. A request that does not fit is an `InvalidArgument` that
    begins with "Invalid request". `response_model` is not enforced; items that are models are sent as dictionaries.
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
