"""A simulated engine: continuous batching, KV blocks and step times of a real one, harmless text.

The decisions are in `mock/`; this shell sleeps each step's simulated time and pushes what
the step produced, so that all of one step's tokens leave in one message per client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dynamo.llm.protocols import CACHED_TOKENS, EOS, LENGTH, STOP, STOP_REASON, PreprocessedRequest
from dynamo.runtime.errors import EngineShutdown, InvalidArgument
from dynamo.worker.engine import Abort, EngineFacts, EngineLoad, KvListener, Sink, nothing_wanted
from dynamo.worker.engines.mock.answers import TextAnswer
from dynamo.worker.engines.mock.arguments import MockArguments, read_arguments
from dynamo.worker.engines.mock.scheduler import Scheduler, Sequence
from dynamo.worker.engines.mock.stepper import Output, Step, Stepper

if TYPE_CHECKING:
    from dynamo.llm import LocalModel
    from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)
_DEFAULT_MAX_TOKENS: Final = 16
_TEXT: Final = (
    " The quick brown fox jumps over the lazy dog while five boxing wizards watch from a quiet hill,"
    " and every good worker sends its tokens one step at a time."
)


@dataclass(slots=True, eq=False)
class _Request:
    """One request, from the shell's side."""

    sink: Sink
    answer: TextAnswer
    stops: dict[int, str]
    silent: bool = True
    """No token has left yet."""
    sequence: Sequence[_Request] = field(init=False)


class MockRank:
    """One data-parallel rank: a scheduler, its cache and the task that steps it."""

    def __init__(self, number: int, arguments: MockArguments) -> None:
        self.number = number
        self._stepper: Stepper[_Request] = Stepper(arguments.limits, arguments.timing)
        self.scheduler = self._stepper.scheduler
        self._wake = asyncio.Event()
        self.on_kv: KvListener | None = None
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Step from now on, as long as there is something to do."""
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"mocker rank {self.number}")

    def add(self, request: _Request, token_ids: list[int]) -> None:
        """Queue a request; raises `ValueError` for what isn't a token id."""
        request.sequence = self.scheduler.add(request, token_ids)
        self._wake.set()

    async def _run(self) -> None:
        due = time.monotonic()
        while True:
            step = self._stepper.begin()
            if step is None:
                self._wake.clear()
                await self._wake.wait()
                due = time.monotonic()
                continue
            due += step.seconds
            now = time.monotonic()
            await asyncio.sleep(due - now)
            # A machine that can't keep up is slower than the simulated one; it does not catch up in bursts.
            due = max(due, now)
            self._produce(step)
            self._tell()

    def _produce(self, step: Step[_Request]) -> None:
        """Push one token of every sequence that is still there."""
        for output in self._stepper.end(step):
            _push(output)

    def _tell(self) -> None:
        changes = self.scheduler.pool.take_changes()
        if changes is not None and self.on_kv is not None:
            self.on_kv(changes._replace(dp_rank=self.number) if self.number else changes)


class Mocker:
    """See the module."""

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        self._arguments = read_arguments(settings.arguments(), settings.kv_cache_block_size)
        self._model = model
        self.ranks = [MockRank(number, self._arguments) for number in range(self._arguments.dp_size)]
        self._text: list[int] = []

    async def start(self) -> EngineFacts:
        from dynamo.llm import load_tokenizer

        await asyncio.sleep(self._arguments.startup_time)
        tokenizer = await asyncio.to_thread(load_tokenizer, self._model.card, self._model.files)
        self._text = tokenizer.encode(_TEXT, add_special=False)
        for rank in self.ranks:
            rank.start()
        limits = self._arguments.limits
        return EngineFacts(
            context_length=self._context(), kv_cache_block_size=limits.block_size,
            total_kv_blocks=limits.num_gpu_blocks, max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens, data_parallel_size=len(self.ranks),
            kv_events=limits.enable_prefix_caching,
        )  # fmt: skip

    def on_kv(self, listener: KvListener) -> None:
        for rank in self.ranks:
            rank.on_kv = listener

    def kv_names(self, dp_rank: int = 0) -> set[int]:
        """The blocks that one of its ranks has cached now, by name."""
        return set(self.ranks[dp_rank].scheduler.pool.names())

    def _context(self) -> int:
        limits = [self._arguments.limits.longest, self._arguments.max_model_len, self._model.card.context_length]
        return min(n for n in limits if n)

    async def failed(self) -> BaseException:
        done, _ = await asyncio.wait(self._tasks(), return_when=asyncio.FIRST_COMPLETED)
        return done.pop().exception() or EngineShutdown()

    async def stop(self) -> None:
        for task in self._tasks():
            task.cancel()
        await asyncio.gather(*self._tasks(), return_exceptions=True)
        for scheduler in self._schedulers():
            for request in scheduler.owners():
                scheduler.remove(request.sequence)
                request.sink.fail(EngineShutdown())

    def load(self) -> EngineLoad:
        """Of all ranks together."""
        each = self._schedulers()
        return EngineLoad(
            running=sum(one.running for one in each), waiting=sum(one.waiting for one in each),
            used_kv_blocks=sum(one.pool.used for one in each),
            kv_usage=sum(one.pool.usage for one in each) / len(each),
            preemptions=sum(one.preemptions for one in each),
        )  # fmt: skip

    def _schedulers(self) -> list[Scheduler[_Request]]:
        return [rank.scheduler for rank in self.ranks]

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [rank.task for rank in self.ranks if rank.task is not None]

    def _rank(self, request: PreprocessedRequest) -> MockRank:
        """The one that the request names, else the least busy."""
        wanted = request.wanted_rank
        if wanted is None:
            return min(self.ranks, key=lambda rank: rank.scheduler.burden)
        if not 0 <= wanted < len(self.ranks):
            there = f"0 to {len(self.ranks) - 1}" if len(self.ranks) > 1 else "0 only"
            raise InvalidArgument(f"dp_rank: there is no data-parallel rank {wanted}; this engine has {there}")
        return self.ranks[wanted]

    def submit(self, request: PreprocessedRequest, sink: Sink) -> Abort:
        room = self._context() - len(request.token_ids)
        if room <= 0 or not request.token_ids:
            raise InvalidArgument(
                f"a prompt of {len(request.token_ids)} tokens: this engine takes 1 to {self._context() - 1}"
            )
        conditions = request.stop_conditions
        if conditions.max_tokens == 0:
            return nothing_wanted(sink)
        stops = {} if conditions.ignore_eos else dict.fromkeys(request.eos_token_ids, EOS)
        stops |= dict.fromkeys(conditions.stop_token_ids, STOP)
        made, rank = _Request(sink, self._answer(request, room, stops), stops), self._rank(request)
        try:
            rank.add(made, request.token_ids)
        except ValueError as error:
            raise InvalidArgument(str(error)) from error
        return lambda: rank.scheduler.remove(made.sequence)

    def _answer(self, request: PreprocessedRequest, room: int, stops: dict[int, str]) -> TextAnswer:
        conditions, arguments = request.stop_conditions, self._arguments
        wanted = min(_DEFAULT_MAX_TOKENS if conditions.max_tokens is None else conditions.max_tokens, room)
        start = (request.sampling_options.seed or 0) + arguments.seed
        marks = arguments.reasoning.marks(wanted) if arguments.reasoning else None
        return TextAnswer(
            self._text, start % len(self._text), wanted, floor=conditions.min_tokens or 0, stops=stops, marks=marks
        )


def _push(output: Output[_Request]) -> None:
    """One token on its way, and the end of the answer where it was the last."""
    request = output.sequence.owner
    if request.silent:
        request.silent = False
        request.sink.push([output.token], {CACHED_TOKENS: output.sequence.cached_tokens})
    else:
        request.sink.push([output.token])
    if not output.over:
        return
    if request.answer.stopped_by is None:
        request.sink.finish(LENGTH)
        return
    reason = request.stops[output.token]
    request.sink.finish(reason, {STOP_REASON: output.token} if reason == STOP else None)
