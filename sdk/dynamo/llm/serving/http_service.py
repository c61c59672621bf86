"""`HttpService`: OpenAI routes from functions of this process, without workers, etcd or NATS.

Each model is an endpoint of a runtime in memory, registered as a program's model is; a real frontend serves it. So a
function here is validated, streamed, cancelled and measured as any worker's.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import operator
import os
from collections.abc import Awaitable, Callable
from functools import reduce
from typing import Any, Final, NamedTuple, Protocol

from dynamo.llm.serving.model_types import ModelInput, ModelType
from dynamo.llm.serving.registration import register_model, unregister_model
from dynamo.llm.serving.upper_layers import http_frontend
from dynamo.runtime.context import Context
from dynamo.runtime.endpoint import Endpoint, Served
from dynamo.runtime.errors import InvalidArgument, WorkerUnavailable
from dynamo.runtime.request_plane.generator_handler import call, wanted_context
from dynamo.runtime.runtime import DistributedRuntime

log = logging.getLogger(__name__)

PORT: Final = 8080
GRACE_SECONDS: Final = 5.0
"""How long running requests get to end."""
_KINDS: Final = {"chat": ModelType.Chat, "completions": ModelType.Completions}
_ENDPOINTS: Final = {"chat": "chat", "completion": "completions", "completions": "completions"}


class Token(Protocol):
    """What ends a service: a runtime's cancellation token."""

    def cancelled(self) -> Any: ...


class PythonAsyncEngine:
    """A function as an engine: `generator(request)` or `generator(request, context)` gives an async generator.

    `request` is the OpenAI body, the pieces are OpenAI chunks. `HttpError` raised in it is the client's answer.
    """

    def __init__(self, generator: Callable[..., Any], event_loop: asyncio.AbstractEventLoop | None = None) -> None:
        if not callable(generator):
            raise InvalidArgument(f"an engine's generator is a function, not {type(generator).__name__}")
        self.generator, self.event_loop = generator, event_loop
        self._wants = wanted_context(generator, starred=False)

    def open(self, request: Any, context: Context) -> Any:
        """The answer to one request, not begun."""
        return call(self.generator, self._wants, request, context)


HttpAsyncEngine = PythonAsyncEngine


class HttpService:
    """Serve OpenAI routes from functions of this process, without workers, etcd or NATS.

    Each model is an endpoint of a runtime in memory, registered as a program's model is; a real frontend serves it. So
    a function here is validated, streamed, cancelled and measured as any worker's. Models may come and go.

    `port` 0 picks a free one; it listens on `host`, else on DYN_HTTP_HOST, else on this machine only (NVIDIA Dynamo: on
    all interfaces). `wait_for_first_item` has no effect: a status is never sent before the first item is there.
    """

    def __init__(self, port: int | None = None, *, wait_for_first_item: bool = False, host: str | None = None) -> None:
        self._port, self._host = PORT if port is None else port, host
        self._models: dict[str, dict[str, PythonAsyncEngine]] = {}
        self._off: set[str] = set()
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.url = ""
        """Where it serves, once it does; empty before."""
        self.address = ""
        """HOST:PORT of its gRPC, if it has some."""

    def add_chat_completions_model(self, model: str, *checksum_and_engine: Any) -> None:
        """Serve `model` at /v1/chat/completions: `(model, engine)`, or `(model, checksum, engine)` as 1.x has it."""
        self._add("chat", model, checksum_and_engine)

    def add_completions_model(self, model: str, *checksum_and_engine: Any) -> None:
        """The same at /v1/completions."""
        self._add("completions", model, checksum_and_engine)

    def remove_chat_completions_model(self, model: str) -> None:
        """Serve it there no more; running requests end well. `InvalidArgument` where it wasn't served."""
        self._remove("chat", model)

    def remove_completions_model(self, model: str) -> None:
        """The same at /v1/completions."""
        self._remove("completions", model)

    def list_chat_completions_models(self) -> list[str]:
        """Names, in the order they came."""
        return [name for name, kinds in self._models.items() if "chat" in kinds]

    def list_completions_models(self) -> list[str]:
        """The same of /v1/completions."""
        return [name for name, kinds in self._models.items() if "completions" in kinds]

    def enable_endpoint(self, endpoint: str, enabled: bool = True) -> None:
        """Turn the route `chat` or `completion` on or off for all models; both are on from the start."""
        if endpoint not in _ENDPOINTS:
            raise InvalidArgument(f"there is no endpoint {endpoint!r} to enable; known are {', '.join(_ENDPOINTS)}")
        (self._off.discard if enabled else self._off.add)(_ENDPOINTS[endpoint])
        self._changed.set()

    def run(self, runtime: DistributedRuntime | Token | None = None) -> asyncio.Task[None]:
        """Start serving; the task ends after `shutdown`, or with the runtime (1.x) or token (0.x) that is given.

        Without either, SIGTERM and SIGINT end it too. It fails with `InvalidArgument` where the port can't be had.
        """
        if self._running is not None and not self._running.done():
            raise InvalidArgument(f"this {type(self).__name__} runs already")
        self._stop.clear()
        self._running = asyncio.get_running_loop().create_task(self._run(runtime), name="http service")
        return self._running

    def shutdown(self) -> None:
        """Stop taking requests, let running ones end, and end `run`."""
        self._stop.set()

    def _add(self, kind: str, model: str, arguments: tuple[Any, ...]) -> None:
        engine = arguments[-1] if arguments else None
        if len(arguments) > 2 or not isinstance(engine, PythonAsyncEngine):
            raise InvalidArgument(f"add a model as (name, engine) with an HttpAsyncEngine, got {(model, *arguments)!r}")
        if kind in self._models.get(model, {}):
            raise InvalidArgument(f"{model!r} is served already; remove_…_model it first")
        self._models.setdefault(model, {})[kind] = engine
        self._changed.set()

    def _remove(self, kind: str, model: str) -> None:
        kinds = self._models.get(model, {})
        if kinds.pop(kind, None) is None:
            raise InvalidArgument(f"{model!r} is not served")
        if not kinds:
            del self._models[model]
        self._changed.set()

    async def _run(self, until: DistributedRuntime | Token | None) -> None:
        serve = http_frontend(type(self).__name__)
        options = {"http_port": self._port, "http_host": self._host or _host(), "namespace": "", **self._more()}
        options |= {"shutdown_delay_secs": 0.0, "graceful_shutdown_timeout_secs": GRACE_SECONDS}
        async with await DistributedRuntime.in_memory() as runtime:
            models = _Models(runtime, self)
            await models.follow()  # so that the first request finds them
            front = serve(
                runtime, options, on_ready=self._ready, until=self._stop, signals=until is None, on_grpc=self._answers
            )
            tasks = [asyncio.ensure_future(work) for work in (front, self._follow(models), _ended(until, self._stop))]
            try:
                await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
                for task in tasks[:2]:
                    if task.done():
                        task.result()
            finally:
                self.url = self.address = ""
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, models: _Models) -> None:
        """Until it fails, or is cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await models.follow()

    def _more(self) -> dict[str, Any]:
        """Other fields of the frontend's settings."""
        return {}

    def _answers(self, address: str) -> None:
        self.address = address

    def _ready(self, url: str) -> None:
        self.url = url
        log.info("serving on %s/v1", url)

    def wanted(self) -> dict[str, ModelType]:
        """The models that are to be served now, and at which routes."""
        models = {}
        for name, kinds in self._models.items():
            routes = [_KINDS[kind] for kind in kinds if kind not in self._off]
            if routes:
                models[name] = reduce(operator.or_, routes)
        return models

    def answering(self, name: str) -> Callable[..., Awaitable[Any]]:
        """What its endpoint is served with."""

        async def generate(request: dict[str, Any], context: Context) -> Any:
            engine = self._models.get(name, {}).get("chat" if "messages" in request else "completions")
            if engine is None:
                raise WorkerUnavailable(f"{name!r} has just been removed")
            if engine.event_loop not in (None, asyncio.get_running_loop()):
                raise InvalidArgument("the engine belongs to another event loop than HttpService.run was called on")
            output = engine.open(request, context)
            return await output if inspect.isawaitable(output) else output

        return generate


class _Model(NamedTuple):
    endpoint: Endpoint
    served: Served
    types: ModelType


class _Models:
    """The endpoints of a service, one for each model."""

    def __init__(self, runtime: DistributedRuntime, service: HttpService) -> None:
        self._runtime, self._service = runtime, service
        self._served: dict[str, _Model] = {}
        self._number = itertools.count(1)

    async def follow(self) -> None:
        """Have them be what the service wants."""
        wanted = self._service.wanted()
        for name in [name for name in self._served if name not in wanted]:
            gone = self._served.pop(name)
            await unregister_model(gone.endpoint)
            await gone.served.stop()
        for name, types in wanted.items():
            known = self._served.get(name)
            if known is None:
                await self._add(name, types)
            elif known.types != types:
                if known.types & ~types:  # a route goes, and registering only adds
                    await unregister_model(known.endpoint)
                await register_model(ModelInput.Text, types, known.endpoint, "", name)
                self._served[name] = known._replace(types=types)

    async def _add(self, name: str, types: ModelType) -> None:
        component = self._runtime.namespace("http").component(f"model-{next(self._number)}")
        endpoint = component.endpoint("generate")
        await register_model(ModelInput.Text, types, endpoint, "", name)
        handler = self._runtime.offers.handler(endpoint.path, self._service.answering(name))
        self._served[name] = _Model(endpoint, await endpoint.start(handler), types)


async def _ended(until: DistributedRuntime | Token | None, stop: asyncio.Event) -> None:
    """Set `stop` when what the service was given ends."""
    if isinstance(until, DistributedRuntime):
        await until.closing.wait()
    elif until is not None and inspect.isawaitable(waiting := until.cancelled()):
        await waiting
    else:
        return
    stop.set()


def _host() -> str:
    return os.environ.get("DYN_HTTP_HOST") or "127.0.0.1"
