"""vLLM: tokens in, tokens out, through its asynchronous engine (`AsyncLLM`, v1).

The engine's core runs in processes that vLLM starts; here live its client, one task per request that hands on what the
core has produced, and a task that looks whether the core still lives. vLLM is imported when the engine is started, in a
thread, so that probes are answered while it loads. What is asked and answered is `requests.py`'s, what vLLM is
told at its start `arguments.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Coroutine, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import prometheus_client

from dynamo.engine_catalog import EngineName
from dynamo.llm.kv.image_blocks import salt_of
from dynamo.llm.model_card import ImageTraits
from dynamo.llm.processing.embeddings import EmbeddingRequest
from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.errors import (
    CapacityExceeded,
    Disconnected,
    DynamoException,
    EngineError,
    EngineShutdown,
    InvalidArgument,
)
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.worker.engine import GUIDED, Abort, EngineFacts, EngineLoad, KvListener, Sink, VectorSink, nothing_wanted
from dynamo.worker.engines.support.request_checks import check_images, check_inputs, room_for
from dynamo.worker.engines.support.zmq_kv_events import NativeKvEvents
from dynamo.worker.engines.vllm.arguments import (
    INSTALL,
    EventSockets,
    check,
    merged,
    one_line,
    parsed,
    prepare,
)
from dynamo.worker.engines.vllm.embeddings import TASK, dimensions_of, embed
from dynamo.worker.engines.vllm.figures import figures_into
from dynamo.worker.engines.vllm.images import ImagePrompts, traits_for
from dynamo.worker.engines.vllm.node_plan import group_of, plan_node
from dynamo.worker.engines.vllm.parent_death import kill_tethered, tethering
from dynamo.worker.engines.vllm.requests import ImagesLost, OutputReader, constraint, own_defaults, sampling
from dynamo.worker.engines.vllm.sidecar import SidecarProcess

if TYPE_CHECKING:
    from dynamo.llm import LocalModel
    from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

_PULSE_SECONDS: Final = 0.5
"""How often the core's life is looked at where no request notices."""
_LEAVE_SECONDS: Final = 5.0
"""For the aborts of what is open when the engine is stopped, and for a start that is given up."""


class Vllm:
    """Run vLLM in this process. Engine arguments are those of `vllm serve`, as a JSON object with either spelling."""

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        check(settings, model)
        self._folder = Path(tempfile.gettempdir()) / f"dynamo-vllm-{secrets.token_hex(8)}"
        given = merged(settings, model, EventSockets.within(self._folder))
        self._plan = plan_node(group_of(settings), given)
        self._sidecar = SidecarProcess(self._plan.sidecar) if self._plan.sidecar else None
        # What vLLM starts ends with the thread that it is started in.
        self._home = ThreadPoolExecutor(1, thread_name_prefix="vllm")
        self._loading: asyncio.Future[None] | None = None
        self._name, self._role, self._model = model.card.name, settings.role, model
        self._image_prompts = ImagePrompts()
        self._images: ImageTraits | None = None
        self._llm: Any = None
        self._native: NativeKvEvents | None = None
        self._tasks = TaskOwner(log)
        self._open: dict[asyncio.Task[None], Any] = {}
        """Of `_tasks` those whose sinks may be used; the others are on their way out."""
        self._figures: dict[int, EngineLoad] = {}
        self._count = 0
        self._background = TaskOwner(log)
        self._death: asyncio.Future[BaseException]
        self.facts: EngineFacts

    # -- its life

    async def start(self) -> EngineFacts:
        loop = asyncio.get_running_loop()
        self._death = loop.create_future()
        self._folder.mkdir(mode=0o700)
        if self._sidecar is not None:
            await self._sidecar.start(self._plan.opens)
        log.info("loading %s", self._name)
        began = time.monotonic()
        self._loading = loop.run_in_executor(self._home, self._load)
        await asyncio.shield(self._loading)
        log.info("vLLM has loaded %s in %.0f s", self._name, time.monotonic() - began)
        self._dimensions = await dimensions_of(self._llm, self._llm.vllm_config)
        self.facts = self._facts(self._llm.vllm_config)
        self._background.start(self._watch(), "the life of vLLM's core")
        if self._sidecar is not None:
            self._background.start(self._watch_sidecar(self._sidecar), "the life of what runs beside vLLM")
        return self.facts

    def _load(self) -> None:
        """Import vLLM, judge the arguments and start the core; in a thread.

        The engine isn't returned: something of vLLM's keeps frames of this thread, and with them what a future
        holds, and an engine that lives until the interpreter ends complains then.
        """
        prepare(os.environ, log.isEnabledFor(logging.DEBUG))
        if self._role != "aggregated":
            _prepare_handing(os.environ)
        try:
            from vllm import PoolingParams, SamplingParams
            from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
            from vllm.usage.usage_lib import UsageContext
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise InvalidArgument(f"engine vllm can't be loaded ({error}): {INSTALL}") from error
        self._params, self._constraints, self._pooling = SamplingParams, StructuredOutputsParams, PoolingParams
        self._deltas = RequestOutputKind.DELTA
        assert self._plan.engine is not None, "that of the leader, or of the only node"
        arguments = parsed(self._plan.engine)
        try:
            config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
        except Exception as error:  # of many kinds, and all about what it was told
            raise InvalidArgument(f"vLLM does not take its arguments: {one_line(error)}") from error
        try:
            with tethering():
                self._llm = AsyncLLM.from_vllm_config(
                    config,
                    usage_context=UsageContext.ENGINE_CONTEXT,
                    stat_loggers=[figures_into(self._figures)],
                    disable_log_stats=arguments.disable_log_stats,
                )
        except Exception as error:  # likewise, and of the core in its own process
            raise EngineError(f"vLLM did not start: {one_line(error)} (what it wrote before says more)") from error

    def _facts(self, config: Any) -> EngineFacts:
        cache, scheduler = config.cache_config, config.scheduler_config
        ranks = config.parallel_config.data_parallel_size
        self._context: int = config.model_config.max_model_len
        self._defaults = own_defaults(config.model_config.get_diff_sampling_param())
        self._ranks: int = ranks
        self._blocks = (cache.num_gpu_blocks or 0) // ranks  # vLLM's is the sum over the ranks
        events = config.kv_events_config
        self._images = traits_for(config, self._model) if self._dimensions is None else None
        caches = events is not None and events.enable_kv_cache_events and cache.enable_prefix_caching
        if caches and self._dimensions is None:
            self._native = NativeKvEvents(
                events.endpoint, cache.block_size, replay_endpoint=events.replay_endpoint, topic=events.topic,
                total_kv_blocks=self._blocks or None, ranks=range(ranks),
            )  # fmt: skip
        return EngineFacts(
            context_length=self._context,
            kv_cache_block_size=cache.block_size,
            total_kv_blocks=self._blocks or None,
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            data_parallel_size=ranks,
            guided=GUIDED if self._dimensions is None else (),
            embedding_dim=self._dimensions,
            images=self._images,
            kv_events=self._native is not None,
        )

    async def failed(self) -> BaseException:
        return await asyncio.shield(self._death)

    async def _watch(self) -> None:
        while not self._llm.errored:  # noqa: ASYNC110 - vLLM tells nobody
            await asyncio.sleep(_PULSE_SECONDS)
        if not (how := _how(self._llm)):
            await asyncio.sleep(_PULSE_SECONDS)  # it said that it would end, and is about to
            how = _how(self._llm)
        self._died(EngineError(f"vLLM's core process has ended{how}; what it wrote before says why"))

    async def _watch_sidecar(self, sidecar: SidecarProcess) -> None:
        self._died(await sidecar.failed())

    def _died(self, why: BaseException) -> None:
        if not self._death.done():
            self._death.set_result(why)
        self._end_all(Disconnected("vLLM has died"))  # it may be one of them that killed it: a lost worker

    def _end_all(self, why: DynamoException) -> None:
        for task, sink in tuple(self._open.items()):
            del self._open[task]
            task.cancel()
            sink.fail(why)

    async def stop(self) -> None:
        self._background.cancel()
        self._end_all(EngineShutdown())
        await self._tasks.ended(_LEAVE_SECONDS)
        if self._native is not None:
            await self._native.stop()
        await self._give_up_loading()
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.get_running_loop().run_in_executor(self._home, llm.shutdown)
        if self._sidecar is not None:
            await self._sidecar.stop()
        await self._background.ended()
        self._home.shutdown(wait=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _give_up_loading(self) -> None:
        """Give up: without its core a start fails, wherever it is."""
        loading, self._loading = self._loading, None
        deadline = time.monotonic() + _LEAVE_SECONDS
        while loading is not None and not loading.done() and time.monotonic() < deadline:
            kill_tethered()
            await asyncio.wait([loading], timeout=_PULSE_SECONDS)
        if loading is not None and loading.done() and not loading.cancelled():
            loading.exception()  # looked at, or asyncio says that nobody did

    # -- what it tells

    def load(self) -> EngineLoad:
        every = tuple(self._figures.values())
        usage = sum(load.kv_usage for load in every) / max(1, len(every))
        return EngineLoad(
            running=sum(load.running for load in every),
            waiting=sum(load.waiting for load in every),
            used_kv_blocks=sum(round(load.kv_usage * self._blocks) for load in every),
            kv_usage=usage,
            preemptions=sum(load.preemptions for load in every),
        )

    def metrics(self) -> Iterator[prometheus_client.Metric]:
        """Return vLLM's own metrics, which it keeps in the process's registry."""
        for family in prometheus_client.REGISTRY.collect():
            if family.name.startswith("vllm:"):
                yield family

    def on_kv(self, listener: KvListener) -> None:
        """Listen as `KvCaching` has it."""
        assert self._native is not None
        self._native.on_kv(listener)
        self._native.start()

    # -- requests

    def submit(self, request: PreprocessedRequest, sink: Sink) -> Abort:
        if self._llm is None or self._death.done():
            raise EngineShutdown()
        check_images(request, EngineName.VLLM, self._images)
        room = room_for(request, self._context)
        arguments = sampling(request, room, self._defaults, self._role)
        if arguments["max_tokens"] == 0:
            return nothing_wanted(sink)
        rank = request.wanted_rank
        if rank is not None and not 0 <= rank < self._ranks:
            raise InvalidArgument(f"there is no data-parallel rank {rank}: this engine has {self._ranks}")
        params = self._sampling_params(arguments, constraint(request))
        self._count += 1
        return self._begin(self._answer(request, params, f"{self._count:x}", rank), sink)

    def embed(self, request: EmbeddingRequest, sink: VectorSink) -> Abort:
        if self._llm is None or self._death.done():
            raise EngineShutdown()
        check_inputs(request, self._context)
        self._count += 1
        return self._begin(self._vectors(request, sink, f"{self._count:x}"), sink)

    def _begin(self, answer: Coroutine[Any, Any, None], sink: Sink | VectorSink) -> Abort:
        task = self._tasks.start(answer, "request")
        self._open[task] = sink

        def abort() -> None:
            if self._open.pop(task, None) is not None:
                task.cancel()

        return abort

    async def _vectors(self, request: EmbeddingRequest, sink: VectorSink, name: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        params = self._pooling(task=TASK, dimensions=request.dimensions)

        def push(index: int, vector: bytes) -> None:
            if task in self._open:
                sink.push(index, vector)

        try:
            await embed(self._llm, params, request, name, push, self.facts.max_num_seqs or 1)
        except Exception as error:  # whatever it is, it is this request's answer
            if self._open.pop(task, None) is not None:
                sink.fail(self._told(error))
        else:
            del self._open[task]
            sink.finish()

    def _sampling_params(self, arguments: dict[str, Any], constraints: dict[str, Any] | None) -> Any:
        try:
            if constraints is not None:
                arguments["structured_outputs"] = self._constraints(**constraints)
            return self._params(output_kind=self._deltas, **arguments)
        except Exception as error:  # msgspec's, pydantic's and its own
            raise InvalidArgument(one_line(error)) from error

    async def _answer(self, request: PreprocessedRequest, params: Any, name: str, rank: int | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            try:
                await self._stream(task, request, params, name, rank)
            except ImagesLost:
                await self._stream(task, request, params, f"{name}-again", rank, whole=True)
        except Exception as error:  # whatever it is, it is this request's answer
            if (sink_left := self._open.pop(task, None)) is not None:
                sink_left.fail(self._told(error))

    async def _stream(
        self, task: asyncio.Task[None], request: PreprocessedRequest, params: Any, name: str, rank: int | None, *,
        whole: bool = False,
    ) -> None:  # fmt: skip
        reader, prompt = OutputReader(request, resends=not whole), await self._prompt(request, whole)
        outputs = self._llm.generate(prompt, params, name, data_parallel_rank=rank)
        async for output in outputs:
            piece = reader.read(output)
            sink = self._open[task]
            if piece.ids:
                sink.push(piece.ids, piece.extras)
            if piece.error is not None:
                raise piece.error
            if piece.finish is not None:
                del self._open[task]
                extras = piece.ending if piece.ids else {**(piece.extras or {}), **(piece.ending or {})} or None
                sink.finish(piece.finish, extras)

    async def _prompt(self, request: PreprocessedRequest, whole: bool) -> Any:
        prompt: Any = {"type": "token", "prompt_token_ids": request.token_ids}
        if request.images:
            prompt = await self._image_prompts.rendered(self._llm, request, whole=whole)
        if (salt := salt_of(request)) is not None:
            prompt["cache_salt"] = salt
        return prompt

    def _told(self, error: Exception) -> DynamoException:
        """Return our word for what vLLM raised."""
        if isinstance(error, DynamoException):
            return error
        if self._llm is None:
            return EngineShutdown()
        if self._llm.errored:
            return Disconnected("vLLM has died")
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "VLLMClientError" in kinds or isinstance(error, ValueError):
            return InvalidArgument(one_line(error))
        if "GracefulHTTPError" in kinds:  # its queue is full
            return CapacityExceeded(one_line(error))
        cause = error.__cause__ or error
        return EngineError(f"vLLM: {type(cause).__name__}: {one_line(cause)}")


def _how(llm: Any) -> str:
    """Say which process went first and how, as far as vLLM tells: ` (EngineCore, SIGKILL)`."""
    manager: Any = getattr(llm.engine_core.resources, "engine_manager", None)
    name = getattr(manager, "failed_proc_name", None)
    code = manager.finished_procs().get(name) if manager is not None and name is not None else None
    if code is None:
        return ""
    return f" ({name}, {signal.Signals(-code).name if code < 0 else f'exit code {code}'})"


def _prepare_handing(environment: MutableMapping[str, str]) -> None:
    """Say where NIXL's agents find this one: a pod's address, and a port for each of several workers on one machine."""
    if "POD_IP" in environment:
        environment.setdefault("VLLM_NIXL_SIDE_CHANNEL_HOST", environment["POD_IP"])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        environment.setdefault("VLLM_NIXL_SIDE_CHANNEL_PORT", str(probe.getsockname()[1]))
