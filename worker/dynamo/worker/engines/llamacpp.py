"""llama.cpp in process (`xllamacpp`): GGUF models, continuous batching over `n_parallel` slots.

llama.cpp's server core blocks one thread per running request and calls back per token, so
each slot has a thread here; what the threads hear in one turn of the loop is handed over
together. Besides being called, the core opens an HTTP listener of its own: on loopback,
on a port that the system picks; it can't be kept shut, so it gets a random API key that
nobody is told.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import secrets
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from dynamo.llm.gguf import read_header
from dynamo.llm.protocols import STOP, STOP_REASON, PreprocessedRequest
from dynamo.runtime.errors import CapacityExceeded, EngineError, EngineShutdown, InvalidArgument
from dynamo.worker.cpus import usable_cpus
from dynamo.worker.engine import Abort, EngineFacts, EngineLoad, Sink, nothing_wanted
from dynamo.worker.engines.llamacpp_chunks import ChunkReader, Phase, completion, error_of, phases, stop_reasons
from dynamo.worker.engines.llamacpp_vocabulary import Vocabulary
from dynamo.worker.settings import unknown_name

if TYPE_CHECKING:
    from dynamo.llm import LocalModel
    from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

_ARGUMENTS: Final = {
    "n_parallel": 8,
    "n_ctx": 0,
    "n_threads": 0,
    "n_batch": 512,
    "n_gpu_layers": -1,
    "max_waiting": 256,
}
_QUIET: Final = 1
"""llama.cpp's verbosity for errors only; it has several lines for each request otherwise."""
_SLOT_CONTEXT: Final = 4096
"""Tokens per slot where neither the model nor the user says less or more."""
_JOIN_SECONDS: Final = 10.0


class _Job:
    """One request. Its thread reads `wanted`; the loop alone uses `sink`."""

    def __init__(self, request: PreprocessedRequest, sink: Sink, steps: list[Phase], reader: ChunkReader) -> None:
        self.request, self.sink, self.steps, self.reader = request, sink, steps, reader
        self.wanted = True
        self.ended = False


class LlamaCpp:
    """See the module. Engine arguments: `n_parallel`, `n_ctx` (all slots together), `n_threads`, `n_batch`
    (prompt tokens in a step, which is as long as a cancel can take), `n_gpu_layers`, `max_waiting`."""

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        if model.path is None or model.path.is_dir():
            raise InvalidArgument("engine llamacpp needs --model-path with a .gguf file (or package://NAME)")
        self._path = model.path
        self._given = _arguments(settings.arguments())
        slots = self._given["n_parallel"]
        own = model.card.context_length or _SLOT_CONTEXT
        context = settings.context_length or min(own, _SLOT_CONTEXT)
        self._context = (self._given["n_ctx"] or context * slots) // slots
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._open: set[_Job] = set()
        self._running = 0
        self._threads: list[threading.Thread] = []
        self._heard: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._scheduled = False
        self._death: asyncio.Future[BaseException]

    async def start(self) -> EngineFacts:
        self._loop = asyncio.get_running_loop()
        self._death = self._loop.create_future()
        log.info("loading %s", self._path.name)
        self._vocabulary = Vocabulary(await asyncio.to_thread(read_header, self._path))
        self._server = await asyncio.to_thread(self._load)
        slots = self._given["n_parallel"]
        for number in range(slots):
            thread = threading.Thread(target=self._work, name=f"llamacpp-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return EngineFacts(context_length=self._context, max_num_seqs=slots)

    def _load(self) -> Any:
        try:
            import xllamacpp
        except ImportError as error:
            hint = "pip install 'dynamo-pipelines[llamacpp]', and the system's libgomp1"
            raise InvalidArgument(f"engine llamacpp can't be loaded ({error}); it needs: {hint}") from error
        params = xllamacpp.CommonParams()
        params.model.path = str(self._path)
        params.n_parallel = self._given["n_parallel"]
        params.n_ctx = self._context * self._given["n_parallel"]
        params.n_batch = self._given["n_batch"]
        params.n_gpu_layers = self._given["n_gpu_layers"]
        params.cpuparams.n_threads = self._given["n_threads"] or usable_cpus()
        params.api_keys = [secrets.token_hex(16)]
        params.ui = False
        if not log.isEnabledFor(logging.DEBUG):
            params.verbosity = _QUIET
        try:
            return xllamacpp.Server(params)
        except Exception as error:  # the extension raises bare exceptions
            raise InvalidArgument(f"llama.cpp can't load {str(self._path)!r}: {error}") from error

    async def failed(self) -> BaseException:
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        for job in tuple(self._open):
            job.wanted = False
            self._end(job, job.sink.fail, EngineShutdown())
        for _ in self._threads:
            self._jobs.put(None)
        await asyncio.to_thread(self._join)
        self._threads.clear()
        self._server = None

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def load(self) -> EngineLoad:
        return EngineLoad(running=self._running, waiting=max(0, len(self._open) - self._running))

    def submit(self, request: PreprocessedRequest, sink: Sink) -> Abort:
        room = self._context - len(request.token_ids)
        if room <= 0 or not request.token_ids:
            raise InvalidArgument(
                f"a prompt of {len(request.token_ids)} tokens: this engine takes 1 to {self._context - 1}"
            )
        self._check_room()
        steps = phases(request, room)
        completion(request, (), steps[0])  # refuses what can't be asked, now
        if steps[0].max_tokens == 0:
            return nothing_wanted(sink)
        reader = ChunkReader(self._vocabulary, request.output_options.logprobs)
        job = _Job(request, sink, steps, reader)
        self._open.add(job)
        self._jobs.put(job)

        def abort() -> None:
            job.wanted = False
            job.ended = True
            self._open.discard(job)

        return abort

    def _check_room(self) -> None:
        # The queue itself is counted: what was aborted stays in it until a thread comes by.
        here = self._jobs.qsize() + self._running
        if here >= self._given["n_parallel"] + self._given["max_waiting"]:
            raise CapacityExceeded(f"{here} requests are here already")

    # -- in the threads

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not job.wanted:
                continue
            self._tell(self._count, 1)
            try:
                self._answer(job)
            except Exception as error:  # belongs to this request, whatever the extension raises
                self._tell(self._end, job, job.sink.fail, EngineError(f"llama.cpp: {type(error).__name__}: {error}"))
            self._tell(self._count, -1)

    def _answer(self, job: _Job) -> None:
        """Run a request's phases; each continues with what the ones before produced."""
        tokens = list(job.request.token_ids)
        stops = stop_reasons(job.request)
        floor = len(tokens) + (job.request.stop_conditions.min_tokens or 0)
        for number, phase in enumerate(job.steps):
            last = number == len(job.steps) - 1

            def heard(chunk: dict[str, Any], last: bool = last) -> bool:
                return self._heard_chunk(job, chunk, tokens, stops, floor, last)

            self._server.handle_completions(completion(job.request, tokens, phase), heard)
            if not job.wanted:
                return

    def _heard_chunk(
        self, job: _Job, chunk: dict[str, Any], tokens: list[int], stops: dict[int, str], floor: int, last: bool
    ) -> bool:
        """Take one chunk; True cancels at llama.cpp."""
        if not job.wanted:
            return True
        if error := error_of(chunk):
            job.wanted = False
            self._tell(self._end, job, job.sink.fail, error)
            return True
        ids, extras, finish = job.reader.read(chunk)
        tokens += ids
        if ids:
            self._tell(self._push, job, ids, extras)
        if ids and ids[-1] in stops and len(tokens) >= floor:
            job.wanted = False
            reason = stops[ids[-1]]
            self._tell(self._end, job, job.sink.finish, reason, {STOP_REASON: ids[-1]} if reason == STOP else None)
            return True
        if finish is not None and last:
            job.wanted = False
            self._tell(self._end, job, job.sink.finish, finish, None if ids else extras)
        return False

    def _tell(self, what: Callable[..., None], *arguments: Any) -> None:
        """Hand over to the loop; one wake-up brings all that threads said until it turns."""
        self._heard.append((what, arguments))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._listen)

    # -- on the loop

    def _listen(self) -> None:
        self._scheduled = False
        while self._heard:
            what, arguments = self._heard.popleft()
            what(*arguments)

    def _count(self, change: int) -> None:
        self._running += change

    def _push(self, job: _Job, ids: list[int], extras: dict[str, Any] | None) -> None:
        if not job.ended:
            job.sink.push(ids, extras)

    def _end(self, job: _Job, end: Callable[..., None], *arguments: Any) -> None:
        if not job.ended:
            job.ended = True
            self._open.discard(job)
            end(*arguments)


def _arguments(given: dict[str, Any]) -> dict[str, int]:
    for name, value in given.items():
        if name not in _ARGUMENTS:
            raise unknown_name("llamacpp argument", name, list(_ARGUMENTS))
        low = -1 if name == "n_gpu_layers" else 1 if name in ("n_parallel", "n_batch") else 0
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise InvalidArgument(f"llamacpp argument {name!r} must be a whole number of at least {low}, got {value!r}")
    return {**_ARGUMENTS, **given}
