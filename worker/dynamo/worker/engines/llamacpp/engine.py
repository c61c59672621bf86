"""llama.cpp in process (`xllamacpp`): GGUF models, continuous batching over `n_parallel` slots.

llama.cpp's server core blocks one thread per running request and calls back per token
(`support/request_threads.py`). Besides being called, the core opens an HTTP listener of its own: on loopback,
on a port that the system picks; it can't be kept shut, so it gets a random API key that
nobody is told.

More threads than cores is far worse than fewer, since they wait for each other by
spinning; and a container sees all cores of its node, whatever its limit is (`usable_cpus`)."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dynamo.llm.models.gguf_header import read_header
from dynamo.llm.processing.embeddings import EmbeddingRequest, check_dimensions
from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.errors import DynamoException, EngineError, InvalidArgument
from dynamo.runtime.process.extras import install_hint
from dynamo.worker.engine import GUIDED, Abort, EngineFacts, EngineLoad, Sink, VectorSink, nothing_wanted
from dynamo.worker.engines.llamacpp.calls import CallSequence
from dynamo.worker.engines.llamacpp.embeddings import ARGUMENTS, INPUT_TOKENS, own_dimensions, pooling_of, vectors
from dynamo.worker.engines.llamacpp.load_errors import load_again
from dynamo.worker.engines.llamacpp.prompt_scores import PromptScores
from dynamo.worker.engines.llamacpp.requests import (
    ChunkReader,
    CompletionPhase,
    completion,
    grammar_of,
    read_chunk,
    wishes,
)
from dynamo.worker.engines.llamacpp.vocabulary import Vocabulary
from dynamo.worker.engines.support.request_checks import check_inputs, room_for
from dynamo.worker.engines.support.request_threads import RequestThreads, ThreadedRequest
from dynamo.worker.settings import checked_arguments

if TYPE_CHECKING:
    from dynamo.llm import LocalModel
    from dynamo.worker.settings import WorkerSettings


_BEGINS_WITHIN: Final = 0.5
"""Seconds in which the thread of a loaded server begins. A server that is told to end before that waits for ever, and
stops the event loop: xllamacpp did so within 400 ends on a busy machine, three times of three; after half a second not
once in 400."""
LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus(limit: Path = LIMIT) -> int:
    """Count the cores of this process: those it may run on, or its container's limit where that is less."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _quota(limit) or allowed))


def _quota(limit: Path) -> int | None:
    """Return whole cores of a cgroup's `quota period`; None where there is no limit."""
    try:
        quota, period = limit.read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup of version 2, or the word `max`
        return None


log = logging.getLogger(__name__)

DEFAULTS: Final[dict[str, Any]] = {
    "n_parallel": 8,
    "n_ctx": 0,
    "n_threads": 0,
    "n_batch": 512,
    "n_gpu_layers": -1,
    "max_waiting": 256,
    "lora": [],
    **ARGUMENTS,
}
LOWEST: Final = {"n_parallel": 1, "n_batch": 1, "n_gpu_layers": -1}
_QUIET: Final = 1
"""llama.cpp's verbosity for errors only; it has several lines for each request otherwise."""
_SLOT_CONTEXT: Final = 4096
"""Tokens per slot where neither the model nor the user says less or more."""


class LlamaCpp:
    """Run llama.cpp in this process.

    Engine arguments: `n_parallel`, `n_ctx` (all slots together), `n_threads`, `n_batch` (prompt tokens in a step,
    which is as long as a cancel can take), `n_gpu_layers`, `max_waiting`, `lora` (GGUF files of adapters that all
    answers are made with: paths, or {"path": …, "scale": …}); with `embedding` it makes vectors instead of text, by
    `pooling` (`embeddings.py`).
    """

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        if model.path is None or model.path.is_dir():
            raise InvalidArgument("engine llamacpp needs --model-path with a .gguf file (or package://NAME)")
        self._path = model.path
        self._given = checked_arguments("llamacpp", settings.arguments(), DEFAULTS, LOWEST)
        self._adapters = adapters(self._given["lora"])
        slots = self._given["n_parallel"]
        self._pooling = pooling_of(self._given)
        self._bos = model.card.bos_token_id or 0
        own = model.card.context_length or _SLOT_CONTEXT
        usual = INPUT_TOKENS if self._pooling is not None and self._pooling.whole_inputs else _SLOT_CONTEXT
        context = settings.context_length or min(own, usual)
        self._context = (self._given["n_ctx"] or context * slots) // slots
        self._loaded = 0.0
        self._threads = RequestThreads("llama.cpp", slots, self._given["max_waiting"], self._answer)

    async def start(self) -> EngineFacts:
        log.info("loading %s", self._path.name)
        self._vocabulary = Vocabulary(await asyncio.to_thread(read_header, self._path))
        self._server = await asyncio.to_thread(self._load)
        self._loaded = time.monotonic()
        self._dimensions = None
        if self._pooling is not None:
            self._dimensions = await asyncio.to_thread(own_dimensions, self._server.handle_embeddings, self._bos)
        self._threads.start()
        return EngineFacts(
            context_length=self._context, max_num_seqs=self._given["n_parallel"], embedding_dim=self._dimensions,
            guided=() if self._pooling is not None else GUIDED,
        )  # fmt: skip

    def _load(self) -> Any:
        try:
            import xllamacpp
        except ImportError as error:
            hint = f"{install_hint('llamacpp')}, and install the system's libgomp1"
            raise InvalidArgument(f"engine llamacpp can't be loaded ({error}): {hint}") from error
        params = xllamacpp.CommonParams()
        params.model.path = str(self._path)
        params.n_parallel = self._given["n_parallel"]
        params.n_ctx = self._context * self._given["n_parallel"]
        params.n_batch = self._given["n_batch"]
        params.n_gpu_layers = self._given["n_gpu_layers"]
        params.cpuparams.n_threads = self._given["n_threads"] or usable_cpus()
        params.api_keys = [secrets.token_hex(16)]
        params.ui = False
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, scale) for path, scale in self._adapters]
        if self._pooling is not None:
            self._pool(params, xllamacpp.llama_pooling_type)
        if not log.isEnabledFor(logging.DEBUG):
            params.verbosity = _QUIET
        try:
            return xllamacpp.Server(params)
        except Exception as error:  # the extension raises bare exceptions
            return self._again(partial(xllamacpp.Server, params), error)

    def _again(self, load: Callable[[], Any], first: Exception) -> Any:
        try:
            return load_again(load, first)
        except (OSError, RuntimeError) as error:
            raise InvalidArgument(f"llama.cpp can't load {str(self._path)!r}: {error}") from error

    def _pool(self, params: Any, types: Any) -> None:
        assert self._pooling is not None
        params.embedding = True
        # With a cache of its own for each slot, inputs that are computed together are cut, and pooled in part.
        params.kv_unified = True
        if self._pooling.name:
            params.pooling_type = getattr(types, f"LLAMA_POOLING_TYPE_{self._pooling.name.upper()}")
        if self._pooling.whole_inputs:
            params.n_batch = params.n_ubatch = max(self._context, self._given["n_batch"])

    async def failed(self) -> BaseException:
        return await self._threads.failed()

    async def stop(self) -> None:
        await self._threads.stop()
        await asyncio.sleep(max(0.0, self._loaded + _BEGINS_WITHIN - time.monotonic()))
        self._server = None

    def on_step(self, flush: Callable[[], None]) -> None:
        self._threads.on_step(flush)

    def load(self) -> EngineLoad:
        return self._threads.load()

    def submit(self, request: PreprocessedRequest, sink: Sink) -> Abort:
        room = room_for(request, self._context)
        wanted = wishes(request)  # refuses what can't be asked, now
        if request.sampling_options.guided_decoding and request.stop_conditions.min_tokens:
            raise InvalidArgument("min_tokens: llamacpp can't do it together with guided decoding")
        if request.stop_conditions.max_tokens == 0:
            return nothing_wanted(sink)
        best = request.output_options.prompt_logprobs
        scores = None if best is None else PromptScores(request.token_ids, best)
        reader = ChunkReader(self._vocabulary, request.output_options.logprobs, None if scores is None else 0)
        state = _Text(wanted, CallSequence(request, room, reader), scores)
        return self._threads.submit(ThreadedRequest(request, sink, state))

    def embed(self, request: EmbeddingRequest, sink: VectorSink) -> Abort:
        check_inputs(request, self._context)
        assert self._pooling is not None, "its facts say so"
        assert self._dimensions is not None, "it has been started"
        check_dimensions(request.dimensions, self._dimensions, cut=self._pooling.may_cut)
        return self._threads.submit(ThreadedRequest(request, sink))

    # -- in the threads

    def _answer(self, job: ThreadedRequest) -> None:
        if self._pooling is None:
            self._generate(job)
        else:
            self._vectors(job)

    def _vectors(self, job: ThreadedRequest) -> None:
        request, ask = job.request, self._server.handle_embeddings
        for index, vector in vectors(ask, request.token_ids, self._given["n_parallel"], request.dimensions):
            if not job.wanted:
                return
            self._threads.push(job, index, vector)
        self._threads.finish(job)

    def _generate(self, job: ThreadedRequest) -> None:
        """Make the calls of a request; each continues with what the ones before produced."""
        sampling, calls, scores = job.state
        if scores is not None:
            self._score(job, scores)
        grammar = grammar_of(job.request.sampling_options.guided_decoding)
        while job.wanted and (phase := calls.next_call()) is not None:
            hear = partial(self._hear, job, partial(self._take, job, calls, phase))
            body = completion(sampling, calls.tokens, phase, self._given["n_batch"], grammar)
            self._server.handle_completions(body, hear)
        if job.wanted:
            self._threads.finish(job, *calls.end)

    def _score(self, job: ThreadedRequest, scores: PromptScores) -> None:
        """Push the prompt's log probabilities."""

        def take(data: bytes) -> bool:
            scores.hear(read_chunk(data))
            return False

        while job.wanted and (body := scores.next_call()) is not None:
            self._server.handle_completions(body, partial(self._hear, job, take))
        if job.wanted:
            self._threads.push(job, [], scores.extras())

    def _hear(self, job: ThreadedRequest, take: Callable[[bytes], bool], data: bytes) -> bool:
        """Take a chunk; True cancels at llama.cpp. Its package would keep an exception to itself."""
        if not job.wanted:
            return True
        try:
            return take(data)
        except DynamoException as error:
            self._threads.fail(job, error)
        except Exception as error:
            self._threads.fail(
                job, EngineError(f"llama.cpp's chunk could not be taken: {type(error).__name__}: {error}")
            )
        return True

    def _take(self, job: ThreadedRequest, calls: CallSequence, phase: CompletionPhase, data: bytes) -> bool:
        ids, extras = calls.hear(read_chunk(data), phase)
        produced = (ids, extras) if ids else None
        if calls.end is not None:
            self._threads.finish(job, *calls.end, produced=produced)
            return True
        if produced:
            self._threads.push(job, *produced)
        return False


class _Text(NamedTuple):
    """A request for text on its way."""

    wishes: dict[str, Any]
    calls: CallSequence
    scores: PromptScores | None


def adapters(given: list[Any]) -> list[tuple[str, float]]:
    """Return files and scales of the argument `lora`; `InvalidArgument` names the first that is none."""
    scales = []
    for adapter in given:
        path, scale = (adapter.get("path"), adapter.get("scale", 1.0)) if isinstance(adapter, dict) else (adapter, 1.0)
        if not isinstance(path, str) or type(scale) not in (int, float):
            raise InvalidArgument(f'llamacpp argument \'lora\': expected paths or {{"path", "scale"}}, got {adapter!r}')
        if not Path(path).is_file():
            raise InvalidArgument(f"llamacpp argument 'lora': there is no file {path!r}")
        scales.append((path, float(scale)))
    return scales
