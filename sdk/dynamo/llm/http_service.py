"""`HttpService`: OpenAI routes from functions of this process, without workers, etcd or NATS.

Each model is an endpoint of a runtime in memory, registered as a program's model is; a real frontend serves it. So a
function here is validated, streamed, cancelled and measured as any worker's.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

from dynamo.llm.handlers.calling import call, passes_context
from dynamo.llm.model_kinds import ModelInput, ModelType
from dynamo.llm.parts import http_frontend
from dynamo.llm.registration import register_model, unregister_model
from dynamo.runtime.component import Endpoint
from dynamo.runtime.context import Context
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.runtime import DistributedRuntime

log = logging.getLogger(__name__)

PORT: Final = 8080
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
        self._passes = passes_context(generator)

    def open(self, request: Any, context: Context) -> Any:
        """The answer to one request, not begun."""
        return call(self.generator, self._passes, request, context)


HttpAsyncEngine = PythonAsyncEngine


class HttpService:
    """See the module. Models may come and go while it runs.

    `port` 0 picks a free one; it listens on `host`, else on DYN_HTTP_HOST, else on this machine only (the original: on
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
            raise InvalidArgument("this HttpService runs already")
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
        serve = http_frontend("HttpService")
        options = {"http_port": self._port, "drain_seconds": 0.0, "grace_seconds": 5.0, "namespace": ""}
        options |= {"http_host": self._host or _host()}
        watch = asyncio.ensure_future(_ended(until, self._stop))
        async with await DistributedRuntime.in_memory() as runtime:
            models = asyncio.ensure_future(self._serve_models(runtime))
            try:
                await serve(runtime, options, on_ready=self._ready, until=self._stop, signals=until is None)
            finally:
                self.url = ""
                for task in (watch, models):
                    task.cancel()
                await asyncio.gather(watch, models, return_exceptions=True)

    def _ready(self, url: str) -> None:
        self.url = url
        log.info("serving on %s/v1", url)

    async def _serve_models(self, runtime: DistributedRuntime) -> None:
        """Keep the runtime's endpoints as the models are."""
        served: dict[str, tuple[Endpoint, asyncio.Task[None]]] = {}
        number = 0
        while True:
            self._changed.clear()
            wanted = {name: types for name in self._models if (types := self._types(name))}
            for name in [name for name in served if name not in wanted]:
                endpoint, task = served.pop(name)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await unregister_model(endpoint)
            for name, types in wanted.items():
                if name in served:
                    await unregister_model(served[name][0])
                    await register_model(ModelInput.Text, types, served[name][0], "", name)
                    continue
                number += 1
                endpoint = runtime.namespace("http").component(f"model-{number}").endpoint("generate")
                await register_model(ModelInput.Text, types, endpoint, "", name)
                served[name] = endpoint, asyncio.ensure_future(endpoint.serve_endpoint(self._answering(name)))
            await self._changed.wait()

    def _types(self, name: str) -> ModelType:
        found = ModelType.Empty
        for kind in self._models[name]:
            if kind not in self._off:
                found |= _KINDS[kind]
        return found

    def _answering(self, name: str) -> Callable[..., AsyncIterator[Any]]:
        async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[Any]:
            engine = self._models[name]["chat" if "messages" in request else "completions"]
            if engine.event_loop not in (None, asyncio.get_running_loop()):
                raise InvalidArgument("the engine belongs to another event loop than HttpService.run was called on")
            output = engine.open(request, context)
            if inspect.isawaitable(output):
                output = await output
            try:
                async for item in output:
                    yield item
            finally:
                if (close := getattr(output, "aclose", None)) is not None:
                    await close()

        return generate


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
    import os

    return os.environ.get("DYN_HTTP_HOST") or "127.0.0.1"
