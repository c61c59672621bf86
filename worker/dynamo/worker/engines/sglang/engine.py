"""SGLang in process (`sglang` 0.5.23): tokens in, tokens out, through its own engine, on one node or several.

Its engine takes the signals and the loop of the thread that it starts in, SIGTERM among them, so it has a thread and
a loop of its own here; what it says in one turn of that loop is handed over together. Its schedulers are processes,
which end with this one. `arguments.py` has the command line, `requests.py` the requests and outputs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import itertools
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dynamo.llm.processing.embeddings import EmbeddingRequest, check_dimensions
from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.errors import DynamoException, EngineError, InvalidArgument
from dynamo.runtime.process.extras import install_hint
from dynamo.worker.engine import Abort, EngineFacts, EngineLoad, KvListener, Nodes, Sink, VectorSink, nothing_wanted
from dynamo.worker.engines.sglang.arguments import arguments, argv, kv_events
from dynamo.worker.engines.sglang.requests import (
    GenerationPhase,
    OutputReader,
    SgLangRequest,
    Vectors,
    embed,
    generate,
    phases,
    vectors_of,
)
from dynamo.worker.engines.support.loop_bridge import ToLoop
from dynamo.worker.engines.support.open_requests import OpenRequests
from dynamo.worker.engines.support.request_checks import check_ids, check_inputs, check_open
from dynamo.worker.engines.support.zmq_kv_events import NativeKvEvents

if TYPE_CHECKING:
    from prometheus_client import Metric

    from dynamo.llm import LocalModel
    from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)
INSTALL: Final = f"{install_hint('sglang')} on a machine with a CUDA GPU"
_STOP_SECONDS: Final = 60.0
_TRIES: Final = 20


class _Home:
    """The thread and loop in which SGLang lives on this node."""

    def __init__(self, made: Mapping[str, Any]) -> None:
        self._made = made
        self.loop: asyncio.AbstractEventLoop
        self.engine: Any = None
        self._stopped = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name="sglang", daemon=True)
        self._ready: Future[None] = Future()

    async def start(self) -> None:
        """Load the model, and return when that is done.

        Raises `InvalidArgument` where an argument or the package is none.
        """
        server_args = await asyncio.to_thread(read_arguments, argv(self._made))
        self._server_args = server_args
        self._thread.start()
        await asyncio.wrap_future(self._ready)

    def _live(self) -> None:
        try:
            if self._ready.set_running_or_notify_cancel():  # from here on it can't be cancelled, so its end is told
                with asyncio.Runner() as runner:  # in whose loop SGLang has tasks of its own
                    self._run(runner.get_loop())
        finally:
            self._ended.set()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        try:
            from sglang.srt.entrypoints.engine import Engine

            self.engine = Engine(server_args=self._server_args)
        except BaseException as error:  # whatever its start raises, sys.exit among it, is the worker's answer
            self._ready.set_exception(InvalidArgument(f"SGLang can't start: {type(error).__name__}: {error}"))
            return
        self._ready.set_result(None)
        try:
            if not self._stopped:  # while it loaded
                loop.run_forever()
        finally:
            self.engine.shutdown()

    async def stop(self) -> None:
        """Stop; may be called before `start`, and twice."""
        self._stopped = True
        if self.engine is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                self.loop.call_soon_threadsafe(self.loop.stop)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._ended.wait, _STOP_SECONDS)


class SgLang:
    """Run SGLang in this process. Engine arguments: those of SGLang's command line, with hyphens or underscores."""

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        given = settings.arguments()
        made = arguments(settings, _folder(model), model.card.name, given)
        self._role, self._nodes = settings.role, settings.num_nodes
        self._events: NativeKvEvents | None = None
        self._ports = _event_ports(made)
        if self._ports is not None:
            made["kv_events_config"] = kv_events(*self._ports)
        self._made = made
        self._home = _Home(made)
        self._open: OpenRequests[SgLangRequest] = OpenRequests()
        self._names = itertools.count(1)
        self._listener: KvListener | None = None
        self._context, self._vocabulary = 0, 0
        self._vectors: Vectors | None = None

    async def start(self) -> EngineFacts:
        loop = asyncio.get_running_loop()
        self._loop = ToLoop()
        self._death: asyncio.Future[BaseException] = loop.create_future()
        _on_quit(loop, self._death)
        await self._home.start()
        engine = self._home.engine
        resolved, config = engine.server_args.resolved_dict(), engine.tokenizer_manager.model_config
        self._vectors, self._vocabulary = vectors_of(config), int(config.vocab_size)
        # It takes no input that fills the context, as if there were something to answer.
        self._context = int(engine.tokenizer_manager.context_len) - (self._vectors is not None)
        block = int(resolved["page_size"])
        blocks = int(engine._scheduler_init_result.scheduler_infos[0]["max_total_num_tokens"]) // block
        ranks = int(resolved["dp_size"])
        if self._ports is not None and self._vectors is None:
            port, replay = self._ports
            self._events = NativeKvEvents(
                f"tcp://127.0.0.1:{port}", block, replay_endpoint=f"tcp://127.0.0.1:{replay}", total_kv_blocks=blocks,
                ranks=range(ranks),
            )  # fmt: skip
            if self._listener is not None:
                self._events.on_kv(self._listener)
            self._events.start()
        prefill = self._role == "prefill"
        return EngineFacts(
            context_length=self._context, kv_cache_block_size=block, total_kv_blocks=blocks,
            max_num_seqs=resolved.get("max_running_requests"), data_parallel_size=ranks,
            kv_events=self._events is not None, embedding_dim=self._vectors and self._vectors.dimensions,
            bootstrap_host=str(resolved.get("host") or "") if prefill else "",
            bootstrap_port=resolved.get("disaggregation_bootstrap_port") if prefill else None,
        )  # fmt: skip

    def on_kv(self, listener: KvListener) -> None:
        self._listener = listener
        if self._events is not None:
            self._events.on_kv(listener)

    def metrics(self) -> Iterable[Metric]:
        """Return SGLang's own metrics, where `enable-metrics` is among its arguments.

        Its processes leave them in a folder.
        """
        folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        if not folder or not self._made.get("enable_metrics"):
            return ()
        from prometheus_client import multiprocess

        collector: Any = multiprocess.MultiProcessCollector  # has no types
        families: Iterable[Metric] = collector(None, path=folder).collect()
        return families

    async def failed(self) -> BaseException:
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        for job in self._open.end_all():
            job.wanted = False
        await self._home.stop()
        if self._events is not None:
            await self._events.stop()

    def on_step(self, flush: Callable[[], None]) -> None:
        self._loop.after = flush

    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self._open))

    def submit(self, request: PreprocessedRequest, sink: Sink) -> Abort:
        steps = phases(request, self._open.room(request, self._context))
        check_ids(request, self._vocabulary)
        generate(request, (), steps[0], "")  # refuses what can't be asked, now
        if steps[0].max_tokens == 0:
            return nothing_wanted(sink)
        job = SgLangRequest(f"dyn-{next(self._names)}")
        return self._begin(job, sink, self._answer(job, request, steps))

    def embed(self, request: EmbeddingRequest, sink: VectorSink) -> Abort:
        self._open.check_closed()
        check_open(len(self._open))
        check_inputs(request, self._context, self._vocabulary)
        if self._vectors is not None:
            check_dimensions(request.dimensions, self._vectors.dimensions, cut=self._vectors.cut)
        job = SgLangRequest(f"dyn-{next(self._names)}")
        return self._begin(job, sink, self._embed(job, request))

    def _begin(self, job: SgLangRequest, sink: Sink | VectorSink, work: Coroutine[Any, Any, None]) -> Abort:
        self._open.add(job, sink)
        asyncio.run_coroutine_threadsafe(self._told(job, work), self._home.loop)
        return lambda: self._abort(job)

    def _abort(self, job: SgLangRequest) -> None:
        if self._open.drop(job):
            job.wanted = False
            self._home.loop.call_soon_threadsafe(self._drop, job)

    # -- in SGLang's thread

    async def _told(self, job: SgLangRequest, work: Coroutine[Any, Any, None]) -> None:
        """Do a request's work; what it raises is the request's."""
        try:
            await work
        except DynamoException as error:
            self._loop.tell(self._open.fail, job, error)
        except ValueError as error:  # what its checks of a request raise
            self._loop.tell(self._open.fail, job, InvalidArgument(f"SGLang: {error}"))
        except Exception as error:  # belongs to this request, whatever the engine raises
            self._loop.tell(self._open.fail, job, EngineError(f"SGLang: {type(error).__name__}: {error}"))

    async def _embed(self, job: SgLangRequest, request: EmbeddingRequest) -> None:
        if job.wanted:
            manager = self._home.engine.tokenizer_manager
            await embed(manager, request, job, lambda *output: self._loop.tell(self._open.push, job, *output))
            self._loop.tell(self._open.finish, job)

    async def _answer(self, job: SgLangRequest, request: PreprocessedRequest, steps: list[GenerationPhase]) -> None:
        reader = OutputReader(request)
        for number, phase in enumerate(steps):
            if not job.wanted:
                return
            call = f"{job.name}-{number}"
            job.calls = {call}
            made = generate(request, [*request.token_ids, *reader.tokens], phase, call)
            if await self._phase(job, await self._home.engine.async_generate(**made), reader, phase is steps[-1]):
                return

    async def _phase(self, job: SgLangRequest, stream: Any, reader: OutputReader, last: bool) -> bool:
        """Read one call of the engine; True: the request has ended with it."""
        async for output in stream:
            if not job.wanted:
                self._drop(job)
                return True
            piece, over = reader.read(output, last=last)
            self._loop.tell(self._open.hand, job, piece)
            if piece.finish is not None:
                self._drop(job)  # where the end is ours, the engine would go on
                return True
            if over:
                return False
        return False

    def _drop(self, job: SgLangRequest) -> None:
        """Have the engine forget what it still does for a request; fine where that is nothing."""
        for call in tuple(job.calls):
            self._home.engine.tokenizer_manager.abort_request(call)


class SgLangNode:
    """A follower: SGLang's schedulers of this node, which take their work from the leader's."""

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        self._home = _Home(arguments(settings, _folder(model), model.card.name, settings.arguments()))

    async def start(self, nodes: Nodes) -> None:
        loop = asyncio.get_running_loop()
        self._death: asyncio.Future[BaseException] = loop.create_future()
        _on_quit(loop, self._death)
        os.environ["SGLANG_BLOCK_NONZERO_RANK_CHILDREN"] = "0"  # else its engine never returns on such a node
        await self._home.start()
        exits = self._home.engine._scheduler_init_result.block_until_scheduler_exits
        threading.Thread(target=self._watch, args=(exits, loop), name="sglang-schedulers", daemon=True).start()

    def _watch(self, exits: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        exits()
        loop.call_soon_threadsafe(_set, self._death, EngineError("SGLang's schedulers on this node ended"))

    async def failed(self) -> BaseException:
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        await self._home.stop()


def read_arguments(words: list[str]) -> Any:
    """Read a command line into SGLang's own `ServerArgs`; raises `InvalidArgument` in its parser's words."""
    try:
        from sglang.srt.server_args import ServerArgs
    except Exception as error:  # packages for GPUs fail in many ways where there is none
        raise InvalidArgument(f"engine sglang can't be loaded ({error}): {INSTALL}") from error
    parser = _Parser(prog="sglang", add_help=False, allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    try:
        return ServerArgs.from_cli_args(parser.parse_args(words))
    except (ValueError, TypeError, AssertionError) as error:
        raise InvalidArgument(f"SGLang refuses its arguments: {error}") from error


class _Parser(argparse.ArgumentParser):
    """Says what is wrong, and leaves ending the process to others."""

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(f"SGLang refuses its arguments: {message} (--engine-args, --extra-engine-args)")


def _folder(model: LocalModel) -> str:
    """Return the model's folder, where SGLang is there to load it.

    Said before a node waits for the others of its group.
    """
    if importlib.util.find_spec("sglang") is None:
        raise InvalidArgument(f"engine sglang is not installed: {INSTALL}")
    if model.path is None or not model.path.is_dir():
        raise InvalidArgument("engine sglang needs --model-path with a checkout (hf://ORG/REPO or a folder)")
    return str(model.path)


def _event_ports(made: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return where the events of all ranks and their replays can be published; None where there are none to read.

    Ranks on other nodes would publish there, where nobody listens; and what the user configures is the user's.
    """
    ranks = int(made.get("dp_size") or made.get("data_parallel_size") or made.get("dp") or 1)
    elsewhere = made.get("nnodes", 1) > 1 and ranks > 1
    if made.get("disable_radix_cache") or made.get("kv_events_config") is not None or elsewhere:
        return None
    for _ in range(_TRIES):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            first = probe.getsockname()[1]
        if first + 2 * ranks < 65536 and all(_free(port) for port in range(first, first + 2 * ranks)):
            return first, first + ranks
    raise EngineError(f"no {2 * ranks} ports beside each other are free on 127.0.0.1 for SGLang's KV events")


def _free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def _on_quit(loop: asyncio.AbstractEventLoop, death: asyncio.Future[BaseException]) -> None:
    """Say why: its processes send SIGQUIT when they fail, which would end this one without a word."""
    loop.add_signal_handler(signal.SIGQUIT, _set, death, EngineError("a process of SGLang failed; its log says why"))


def _set(death: asyncio.Future[BaseException], error: BaseException) -> None:
    if not death.done():
        death.set_result(error)
