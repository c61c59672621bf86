"""A simulated engine: continuous batching, KV blocks and step times of a real one, harmless text.

The decisions are in `scheduler.py` and `stepper.py`; `rank.py` sleeps each step's simulated time and pushes what the
step produced, so that all of one step's tokens leave in one message per client. As a prefill engine it computes
prompts, keeps their blocks and hands them out; any other takes such a prompt, which comes in simulated time, and
decodes (`kv_transfers.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from dynamo.llm.kv.image_blocks import cached_prompt
from dynamo.llm.model_card import CONFIG, ImageTraits
from dynamo.llm.processing.embeddings import EmbeddingRequest
from dynamo.llm.protocols import EOS, PROMPT_TOKENS, STOP, PreprocessedRequest
from dynamo.runtime.errors import EngineShutdown, InvalidArgument
from dynamo.worker.engine import (
    GUIDED,
    Abort,
    EngineFacts,
    EngineLoad,
    Fetch,
    KvListener,
    Nodes,
    Sink,
    VectorSink,
    nothing_wanted,
)
from dynamo.worker.engine import Taker as Stream
from dynamo.worker.engines.constraints.process import ROOM, SEED
from dynamo.worker.engines.mocker.answers import AnswerWriter
from dynamo.worker.engines.mocker.arguments import MockArguments, read_arguments
from dynamo.worker.engines.mocker.embeddings import Batch
from dynamo.worker.engines.mocker.images import traits_for
from dynamo.worker.engines.mocker.kv_transfer_state import bytes_per_token
from dynamo.worker.engines.mocker.kv_transfers import Giver, Taker
from dynamo.worker.engines.mocker.rank import MockRank, MockRequest
from dynamo.worker.engines.mocker.scheduler import Scheduler
from dynamo.worker.engines.mocker.scores import ScoredSink, wants_scores
from dynamo.worker.engines.support.request_checks import check_images, check_inputs, room_for

if TYPE_CHECKING:
    from dynamo.llm import LocalModel
    from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)
_PREFILL: Final = "prefill"


class Mocker:
    """Simulate an engine with scheduling, KV blocks and step times."""

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        self._arguments = _for_vectors(read_arguments(settings.arguments(), settings.block_size))
        self._model = model
        self.role = _role(settings.role, self._arguments.role)
        self._giver, self._taker = Giver(self._arguments), Taker()
        over = self._giver.hand_out if self.role == _PREFILL else None
        self.ranks = [MockRank(number, self._arguments, over) for number in range(self._arguments.dp_size)]
        self._images: ImageTraits | None = None
        self._parsers = {"tools": settings.dyn_tool_call_parser or "", "thoughts": settings.dyn_reasoning_parser or ""}
        self._broken, self._vocabulary = "", 1

    async def start(self) -> EngineFacts:
        await asyncio.sleep(self._arguments.startup_time)
        tokenizer = await asyncio.to_thread(lambda: self._model.tokenizer)
        if self._arguments.images and self._arguments.embedding_dim is None:
            self._images = await asyncio.to_thread(traits_for, self._model)
        self._vocabulary = tokenizer.vocab_size
        self._writer = AnswerWriter(self._arguments, tokenizer, first_only=self.role == _PREFILL, **self._parsers)
        if self.role == _PREFILL:
            self._giver.bytes_per_token = await asyncio.to_thread(self._bytes_per_token)
        for rank in self.ranks:
            rank.start()
        limits = self._arguments.limits
        return EngineFacts(
            context_length=self._context(), kv_cache_block_size=limits.block_size,
            total_kv_blocks=limits.num_gpu_blocks, max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens, data_parallel_size=len(self.ranks),
            role=_as_role(self.role), kv_events=limits.enable_prefix_caching,
            embedding_dim=self._arguments.embedding_dim, images=self._images,
            guided=() if self._arguments.embedding_dim is not None else GUIDED, resumes_guided=True,
            bootstrap_port=self._arguments.bootstrap_port if self.role == _PREFILL else None,
        )  # fmt: skip

    def on_kv(self, listener: KvListener) -> None:
        for rank in self.ranks:
            rank.on_kv = listener

    def hand_over(self, address: Callable[[], str], fetch: Fetch) -> None:
        self._giver.address, self._taker.fetch = address, fetch

    def give(self, name: str, taker: Stream) -> Abort:
        return self._giver.give(name, taker)

    async def all_taken(self) -> None:
        await self._giver.all_taken()

    def kv_names(self, dp_rank: int = 0) -> set[int]:
        """Return the hashes of blocks that one of its ranks has cached now."""
        return set(self.ranks[dp_rank].scheduler.pool.names())

    def _context(self) -> int:
        limits = [self._arguments.limits.longest, self._arguments.max_model_len, self._model.card.context_length]
        return min(n for n in limits if n)

    async def failed(self) -> BaseException:
        done, _ = await asyncio.wait([rank.over for rank in self.ranks], return_when=asyncio.FIRST_COMPLETED)
        over = done.pop()
        return EngineShutdown() if over.cancelled() else over.exception() or EngineShutdown()

    async def stop(self) -> None:
        for rank in self.ranks:
            rank.stop()
        self._giver.stop()
        self._taker.stop()
        for rank in self.ranks:
            for request in rank.scheduler.owners():
                rank.remove(request)
                request.sink.fail(EngineShutdown())

    def broken(self, why: str) -> None:
        self._broken = why
        self._giver.forget()
        self._taker.stop()
        for rank in self.ranks:
            rank.forget(EngineShutdown(why))

    def whole(self) -> None:
        self._broken = ""

    def load(self) -> EngineLoad:
        """Sum the load of all ranks."""
        schedulers = self._schedulers()
        return EngineLoad(
            running=sum(scheduler.running for scheduler in schedulers),
            waiting=sum(scheduler.waiting for scheduler in schedulers) + len(self._taker),
            used_kv_blocks=sum(scheduler.pool.used for scheduler in schedulers),
            kv_usage=sum(scheduler.pool.usage for scheduler in schedulers) / len(schedulers),
            preemptions=sum(scheduler.preemptions for scheduler in schedulers),
        )  # fmt: skip

    def _schedulers(self) -> list[Scheduler[MockRequest]]:
        return [rank.scheduler for rank in self.ranks]

    def _rank(self, request: PreprocessedRequest) -> MockRank:
        """Return the rank that the request names, else the least busy."""
        wanted = request.wanted_rank
        if wanted is None:
            return min(self.ranks, key=lambda rank: rank.burden)
        if not 0 <= wanted < len(self.ranks):
            there = f"0 to {len(self.ranks) - 1}" if len(self.ranks) > 1 else "0 only"
            raise InvalidArgument(f"dp_rank: there is no data-parallel rank {wanted}; this engine has {there}")
        return self.ranks[wanted]

    def submit(self, request: PreprocessedRequest, sink: Sink) -> Abort:
        if self._broken:
            raise EngineShutdown(self._broken)
        check_images(request, "mocker", self._images)
        room = room_for(request, self._context())
        conditions = request.stop_conditions
        if wants_scores(request):
            sink = ScoredSink(sink, request, self._vocabulary)
        if conditions.max_tokens == 0:
            return nothing_wanted(sink)
        stops = {} if conditions.ignore_eos else dict.fromkeys(request.eos_token_ids, EOS)
        stops |= dict.fromkeys(conditions.stop_token_ids, STOP)
        answer, rank = self._writer.answer(request, room, stops), self._rank(request)
        if answer is None:
            sink.finish(EOS)
            return lambda: None
        made = MockRequest(sink, answer, stops)
        if request.images is not None:
            made.extras[PROMPT_TOKENS] = request.prompt_tokens - request.answered_tokens
        try:
            self._queue(made, request, rank)
        except ValueError as error:
            raise InvalidArgument(str(error)) from error
        return lambda: self._abort(made, rank)

    def to_compile(self, request: PreprocessedRequest, wanted: dict[str, Any]) -> dict[str, Any]:
        return {**wanted, SEED: self._writer.seed(request), ROOM: self._writer.room(request)}

    def embed(self, request: EmbeddingRequest, sink: VectorSink) -> Abort:
        if self._broken:
            raise EngineShutdown(self._broken)
        check_inputs(request, self._context())
        assert self._arguments.embedding_dim is not None, "its facts have it"
        rank = min(self.ranks, key=lambda rank: rank.burden)

        def schedule(token_ids: list[int], input_sink: Sink) -> Abort:
            made = MockRequest(input_sink, self._writer.probe(), {})
            rank.add(made, token_ids)
            return lambda: self._abort(made, rank)

        batch = Batch(request, sink, self._arguments.embedding_dim, schedule)
        return batch.start(self._arguments.limits.max_num_seqs)

    def _queue(self, made: MockRequest, request: PreprocessedRequest, rank: MockRank) -> None:
        if self.role != _PREFILL and request.computed_elsewhere:
            self._taker.take(made, request, rank)
            return
        rank.add(made, *cached_prompt(request, self._arguments.limits.block_size))
        if self.role == _PREFILL and request.bootstrap_info is not None:
            made.room = request.bootstrap_info.bootstrap_room
            self._giver.begins(made.room)

    def _abort(self, request: MockRequest, rank: MockRank) -> None:
        self._taker.abort(request, rank)
        rank.remove(request)
        if request.room is not None:
            self._giver.ends(request.room)

    def _bytes_per_token(self) -> int:
        link, size = self._arguments.link, None
        ref = self._model.card.files.get(CONFIG)
        if link.kv_bytes_per_token:
            size = link.kv_bytes_per_token
        elif ref is not None and (path := self._model.files.get(ref.digest)) is not None:
            size = bytes_per_token(json.loads(path.read_bytes()), link.kv_cache_dtype)
        if size is None and link.kv_transfer_bandwidth:
            log.warning("the model doesn't say what a token's KV takes: transfers take no time (kv_bytes_per_token)")
        return size or 0


class MockNode:
    """A node of a simulated group beside the leader: it is there, and that is all."""

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        read_arguments(settings.arguments(), settings.block_size)

    async def start(self, nodes: Nodes) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def failed(self) -> BaseException:
        never: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        return await never

    def broken(self, why: str) -> None:
        pass

    def whole(self) -> None:
        pass


def _for_vectors(arguments: MockArguments) -> MockArguments:
    """Return the arguments for prompts that become vectors: they are computed whole, and leave nothing in a cache."""
    if arguments.embedding_dim is None:
        return arguments
    return replace(arguments, limits=replace(arguments.limits, enable_prefix_caching=False))


def _role(flag: str, argument: str | None) -> str:
    """Return the part that `--role` and the engine's arguments give it; raises `InvalidArgument` where they differ."""
    if argument is not None and flag not in ("aggregated", argument):
        raise InvalidArgument(f"--role {flag}, and the mocker's arguments say {argument}")
    return argument or flag


def _as_role(role: str) -> Any:
    return None if role == "aggregated" else role
