"""`@dynamo_worker` and `@dynamo_endpoint`, as programs written for NVIDIA Dynamo use them.

    @dynamo_worker()
    async def worker(runtime): await runtime.endpoint("ns.comp.ep").serve_endpoint(generate)

    asyncio.run(worker())

`DYN_SYSTEM_PORT=8081 python worker.py` starts the system server of such a program, as NVIDIA Dynamo's runtime does.
`dynamo-worker` and the frontend have theirs by flags."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, TypeVar

from dynamo.runtime.context import Context
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.runtime import DistributedRuntime

_ON: Final = ("1", "true", "yes", "on")
_OFF: Final = ("0", "false", "no", "off")

log = logging.getLogger(__name__)


def wanted_port(env: Mapping[str, str]) -> int:
    """Return the port of `DYN_SYSTEM_PORT`, and of the older switch `DYN_SYSTEM_ENABLED`; -1: none.

    `InvalidArgument`: no port.
    """
    text, switch = env.get("DYN_SYSTEM_PORT", "").strip(), env.get("DYN_SYSTEM_ENABLED", "").strip().lower()
    try:
        port = int(text or -1)
    except ValueError:
        port = -2
    if not -1 <= port <= 65535:
        raise InvalidArgument(f"DYN_SYSTEM_PORT must be a port, 0 for a free one or -1 for none, not {text!r}")
    if switch in _OFF:
        return -1
    return 0 if port < 0 and switch in _ON else port


@contextlib.asynccontextmanager
async def system_server(runtime: DistributedRuntime, env: Mapping[str, str] | None = None) -> AsyncIterator[None]:
    """Serve health and engine routes of `runtime` meanwhile, where the environment asks for it.

    `/metrics` shows what the program keeps with prometheus_client.
    """
    env = os.environ if env is None else env
    if (port := wanted_port(env)) < 0:
        yield
        return
    from prometheus_client import REGISTRY

    from dynamo.runtime.http.engine_routes import PREFIX
    from dynamo.runtime.http.local_callers import OPEN_VARIABLE
    from dynamo.runtime.http.system_server import SystemServer, runtime_health

    host = env.get("DYN_SYSTEM_HOST", "").strip() or "127.0.0.1"
    trees = {PREFIX: runtime.engine_routes.answer}
    server = SystemServer(
        lambda: runtime_health(runtime), REGISTRY, host=host, port=port, trees=trees,
        open_trees=env.get(OPEN_VARIABLE, "").strip().lower() in _ON,
    )  # fmt: skip
    runtime.system_url = f"http://{f'[{host}]' if ':' in host else host}:{await server.start()}"
    log.info("health is on %s/health", runtime.system_url)
    try:
        yield
    finally:
        runtime.system_url = None
        await server.stop()


T = TypeVar("T")


def dynamo_worker(
    *unnamed: bool, static: bool = False, enable_nats: bool | None = None
) -> Callable[[Callable[..., Awaitable[T]]], Callable[..., Coroutine[Any, Any, T]]]:
    """Give the decorated coroutine function a runtime made from the environment, and close it afterwards.

    Call the result without the runtime: `asyncio.run(worker())`, `uvloop.run(worker())`, or on a loop of your own.
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
    """End on SIGTERM.

    A program that listens for signals itself takes the place of this; a loop of another thread can't listen.
    """
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
    """Return `args` with the request (the last one that is no context) as a `model`."""
    values = list(args)
    at = len(values) - (2 if values and isinstance(values[-1], Context) else 1)
    if at < 0 or not hasattr(model, "model_validate") or isinstance(values[at], model):
        return values
    try:
        request = values[at]
        values[at] = (
            model.model_validate_json(request) if isinstance(request, str | bytes) else model.model_validate(request)
        )
    except ValueError as error:
        raise InvalidArgument(f"Invalid request: {error}") from error
    return values
