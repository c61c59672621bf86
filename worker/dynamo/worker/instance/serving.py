"""An engine as an instance: requests in, deltas out, card and files for the frontends, readiness.

`main.py` calls `serve_engine` with a runtime of its own, `dynamo-run` with the runtime
of its process. Per token the way is `Sink.push` -> `Incoming.send`, one append.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from dynamo.llm import FileServer, LocalModel, ModelCard
from dynamo.llm.kv_events.publisher import KvPublisher
from dynamo.llm.model_card import EMBEDDING
from dynamo.llm.models.file_cache import OPERATION
from dynamo.runtime.context import Context
from dynamo.runtime.endpoint import Served
from dynamo.runtime.http.engine_routes import PREFIX
from dynamo.runtime.http.system_server import SystemServer, runtime_health
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engine import (
    Absent,
    Adapting,
    Engine,
    EngineFacts,
    KvCaching,
    KvHanding,
    Node,
    Remarking,
    Routed,
    Stepping,
)
from dynamo.worker.engines import takes_text
from dynamo.worker.instance.absence import Absence
from dynamo.worker.instance.adapters import AdapterEndpoints, adapter_path
from dynamo.worker.instance.canary import EngineWatch
from dynamo.worker.instance.handlers import Handlers
from dynamo.worker.instance.kv_transfers import KvTransfers
from dynamo.worker.instance.load_endpoint import serve_load
from dynamo.worker.instance.metadata import ROUTE, Metadata
from dynamo.worker.instance.metrics import WorkerMetrics
from dynamo.worker.instance.node_group import NodeGroup
from dynamo.worker.instance.sinks import WorkTrace
from dynamo.worker.settings import WorkerSettings

CLOSE_SECONDS: Final = 5.0


class Serving:
    """One engine, served, or one node of a group. `stop` leaves in order; it may be called twice."""

    def __init__(
        self, engine: Engine | Node, served: Served, system: SystemServer | None, kv: KvPublisher | None = None,
        transfers: KvTransfers | None = None, load_endpoint: Served | None = None, group: NodeGroup | None = None,
        handlers: Handlers | None = None, adapters: AdapterEndpoints | None = None,
    ) -> None:  # fmt: skip
        self.engine: Any = engine
        self.served, self.system, self.kv, self.transfers = served, system, kv, transfers
        self.load_endpoint, self.group, self.handlers, self.adapters = load_endpoint, group, handlers, adapters
        self.absence = Absence(engine, served) if isinstance(engine, Absent) else None
        self._stopped = False

    @property
    def watch(self) -> EngineWatch | None:
        """Return what asks the engine whether it works, where it is asked."""
        return None if self.handlers is None else self.handlers.watch

    @property
    def system_port(self) -> int | None:
        return self.system.port if self.system is not None else None

    async def failed(self) -> BaseException:
        """Wait until the engine dies by itself, or a node that it can't do without is lost; why."""
        waits = [asyncio.ensure_future(part.failed()) for part in (self.engine, self.group) if part is not None]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            reason: BaseException = done.pop().result()
            return reason
        finally:
            for wait in waits:
                wait.cancel()

    async def stop(self, grace: float) -> None:
        """Leave routing, let streams end within `grace` seconds, withdraw, stop the engine."""
        if self._stopped:
            return
        self._stopped, began = True, time.monotonic()
        try:
            if self.group is not None:
                await self.group.leave(grace)
            if self.watch is not None:
                await self.watch.stop()
            if self.absence is not None:
                await self.absence.stop()
            gone = [] if self.adapters is None else [self.adapters.stop(grace)]
            await asyncio.gather(self.served.drain(grace), *gone)
            if self.transfers is not None:
                await self.transfers.leave(grace - (time.monotonic() - began))
            await self.served.stop()
            if self.load_endpoint is not None:
                await self.load_endpoint.stop()
        finally:
            await self._end()

    async def _end(self) -> None:
        if self.group is not None:
            await self.group.stop()
        if self.handlers is not None:
            await self.handlers.stop()
        await self.engine.stop()
        if self.kv is not None:
            self.kv.stop()
        if self.transfers is not None:
            await self.transfers.stop()
        if self.system is not None:
            await self.system.stop()


async def serve_engine(
    runtime: DistributedRuntime, engine: Engine, model: LocalModel, settings: WorkerSettings
) -> Serving:
    """Start `engine` and serve it; registered when this returns (readiness: `Serving.served.readiness()`).

    Raises `InvalidArgument` with one sentence where the model or an argument is bad.
    """
    path = settings.path()
    async with contextlib.AsyncExitStack() as undo:
        metrics = WorkerMetrics(path, runtime.id, model.card.name)
        metadata = Metadata(model, lambda: runtime.engine_routes.names)
        # Probes are answered while a large model loads.
        system = await _system(runtime, metrics, settings, metadata, engine)
        if system is not None:
            undo.push_async_callback(system.stop)
        undo.push_async_callback(engine.stop)
        group, facts = await _started(runtime, engine, settings, undo)
        facts = msgspec.structs.replace(facts, lost_streams=_lost_streams(facts, settings))
        metrics.watch(engine)
        _connect(runtime, engine)
        kv = _events(runtime, path, engine, facts, undo)
        transfers = await _transfers(runtime, path, engine, facts, undo)
        card = _card(model.card, facts, settings)
        handlers = Handlers(engine, facts, settings, card, metrics, _traces(runtime, path))
        undo.push_async_callback(handlers.stop)
        figures = msgspec.to_builtins(facts)
        runtime.server.on_control(path, OPERATION, FileServer(model.files).answer)
        served = await runtime.endpoint(path).start(handlers.own(), card=card.to_dict(), figures=figures)
        metadata.serves(served, card)
        undo.push_async_callback(served.stop)
        load_endpoint = await serve_load(runtime, path, engine, facts) if settings.load_metrics else None
        if group is not None:
            group.route(served)
        if handlers.watch is not None:
            handlers.watch.start(served)
        adapters = _adapters(runtime, served, engine, model, handlers)
        undo.pop_all()
    return Serving(engine, served, system, kv, transfers, load_endpoint, group, handlers, adapters)


def _adapters(
    runtime: DistributedRuntime, base: Served, engine: Engine, model: LocalModel, handlers: Handlers
) -> AdapterEndpoints | None:
    """Serve what else the engine serves under names of its own: the model's card, but for the name."""
    if not isinstance(engine, Adapting):
        return None
    figures = {**base.figures, "kv_events": False}  # its events are of the model itself

    async def start(adapter: str) -> Served:
        path = adapter_path(base.path, adapter)
        card = msgspec.structs.replace(handlers.card, name=adapter)
        runtime.server.on_control(path, OPERATION, FileServer(model.files).answer)
        handler = handlers.of(lambda request, sink: engine.submit_to(adapter, request, sink))
        return await runtime.endpoint(path).start(handler, card=card.to_dict(), figures=figures)

    return AdapterEndpoints(engine, start)


async def _started(
    runtime: DistributedRuntime, engine: Engine, settings: WorkerSettings, undo: contextlib.AsyncExitStack
) -> tuple[NodeGroup | None, EngineFacts]:
    """Start the engine, on all nodes of its group where there are several."""
    if settings.num_nodes <= 1:
        return None, await engine.start()
    group = await _joined(runtime, settings, undo)
    return group, await group.start_engine(engine, lambda _: engine.start())


def _connect(runtime: DistributedRuntime, engine: Engine) -> None:
    """Let the engine's steps flush answers, and serve routes of its own."""
    if isinstance(engine, Stepping):
        engine.on_step(runtime.server.flush)
    if isinstance(engine, Routed):
        for name, callback in engine.routes().items():
            runtime.register_engine_route(name, callback)


def _events(
    runtime: DistributedRuntime, path: EndpointPath, engine: Engine, facts: EngineFacts, undo: contextlib.AsyncExitStack
) -> KvPublisher | None:
    """Publish what the engine caches, for whoever asks."""
    if not facts.kv_events or not isinstance(engine, KvCaching):
        return None
    kv = KvPublisher.serve(runtime, path)
    engine.on_kv(kv.step)
    undo.callback(kv.stop)
    return kv


async def _transfers(
    runtime: DistributedRuntime, path: EndpointPath, engine: Engine, facts: EngineFacts, undo: contextlib.AsyncExitStack
) -> KvTransfers | None:
    """Return what moves blocks from and to engines of the other role."""
    if not isinstance(engine, KvHanding):
        return None
    transfers = KvTransfers(runtime, path, engine)
    undo.push_async_callback(transfers.stop)
    await transfers.start(serves=facts.role == "prefill")
    return transfers


async def serve_node(runtime: DistributedRuntime, node: Node, model: LocalModel, settings: WorkerSettings) -> Serving:
    """Be a node of a group that isn't its leader; it serves no requests, so its `served` is the node's record.

    Returns when the group is whole; raises as `serve_engine`.
    """
    async with contextlib.AsyncExitStack() as undo:
        metrics = WorkerMetrics(settings.path(), runtime.id, model.card.name)
        metadata = Metadata(model, lambda: runtime.engine_routes.names)
        system = await _system(runtime, metrics, settings, metadata, node)
        if system is not None:
            undo.push_async_callback(system.stop)
        undo.push_async_callback(node.stop)
        group = await _joined(runtime, settings, undo)
        await group.start_engine(node, node.start)
        undo.pop_all()
    assert group.record is not None, "it has started"
    return Serving(node, group.record, system, group=group)


async def _joined(runtime: DistributedRuntime, settings: WorkerSettings, undo: contextlib.AsyncExitStack) -> NodeGroup:
    group = NodeGroup(runtime, settings)
    undo.push_async_callback(group.stop)
    await group.start()
    return group


def _card(card: ModelCard, facts: EngineFacts, settings: WorkerSettings) -> ModelCard:
    """Return the card as this engine serves the model."""
    changes: dict[str, Any] = {"role": facts.role or settings.role, "kv_cache_block_size": settings.block_size}
    if facts.embedding_dim is None:
        changes["tool_call_parser"] = settings.dyn_tool_call_parser or facts.tool_call_parser or None
        changes["reasoning_parser"] = settings.dyn_reasoning_parser or facts.reasoning_parser or None
    changes |= settings.card_fields()
    if facts.context_length is not None:
        changes["context_length"] = facts.context_length
    if facts.kv_cache_block_size is not None:
        changes["kv_cache_block_size"] = facts.kv_cache_block_size
    if facts.embedding_dim is not None:
        changes["model_types"] = [EMBEDDING]
    changes |= {"images": facts.images, "images_hint": facts.images_hint}
    changes["resumes_constraints"] = facts.resumes_guided
    if takes_text(settings):
        changes |= {"model_input": "text", "tokenizer": "none", "files": {}}
    return msgspec.structs.replace(card, **changes)


def _lost_streams(facts: EngineFacts, settings: WorkerSettings) -> Literal["movable", "ended"]:
    """Return what the frontends can do: they know tokens only of engines that take some."""
    moves = not takes_text(settings) and facts.embedding_dim is None and settings.migration_limit != 0
    return "movable" if moves else "ended"


def _traces(runtime: DistributedRuntime, path: EndpointPath) -> Callable[[Context], WorkTrace] | None:
    tracing = runtime.tracing
    return None if tracing is None else lambda context: WorkTrace(tracing, path, runtime.id, context)


async def _system(
    runtime: DistributedRuntime, metrics: WorkerMetrics, settings: WorkerSettings, metadata: Metadata,
    engine: Engine | Node,
) -> SystemServer | None:  # fmt: skip
    if (port := settings.wanted_system_port) < 0:
        return None
    remarks = engine.remarks if isinstance(engine, Remarking) else list[str]
    server = SystemServer(
        lambda: runtime_health(runtime).with_remarks(remarks()), metrics.registry, host=settings.system_host, port=port,
        trees={PREFIX: runtime.engine_routes.answer, ROUTE: metadata.answer}, open_trees=settings.open_engine_routes,
    )  # fmt: skip
    await server.start()
    return server
