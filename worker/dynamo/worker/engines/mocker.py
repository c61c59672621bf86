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
from dynamo.worker.engines.mock.arguments import read_arguments
from dynamo.worker.engines.mock.scheduler import Sequence
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


class Mocker:
    """See the module."""

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        self._arguments = read_arguments(settings.arguments(), settings.kv_cache_block_size)
        self._model = model
        self._stepper: Stepper[_Request] = Stepper(self._arguments.limits, self._arguments.timing)
        self._scheduler = self._stepper.scheduler
        self._text: list[int] = []
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._on_kv: KvListener | None = None

    async def start(self) -> EngineFacts:
        from dynamo.llm import load_tokenizer

        await asyncio.sleep(self._arguments.startup_time)
        tokenizer = await asyncio.to_thread(load_tokenizer, self._model.card, self._model.files)
        self._text = tokenizer.encode(_TEXT, add_special=False)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="mocker")
        limits = self._arguments.limits
        return EngineFacts(
            context_length=self._context(), kv_cache_block_size=limits.block_size,
            total_kv_blocks=limits.num_gpu_blocks, max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens, kv_events=limits.enable_prefix_caching,
        )  # fmt: skip

    def on_kv(self, listener: KvListener) -> None:
        self._on_kv = listener

    def kv_names(self) -> set[int]:
        """The blocks that it has cached now, by name."""
        return set(self._scheduler.pool.names())

    def _context(self) -> int:
        limits = [self._scheduler.longest, self._arguments.max_model_len, self._model.card.context_length]
        return min(n for n in limits if n)

    async def failed(self) -> BaseException:
        assert self._task is not None
        await asyncio.wait([self._task])
        return self._task.exception() or EngineShutdown()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for request in self._scheduler.owners():
            self._scheduler.remove(request.sequence)
            request.sink.fail(EngineShutdown())

    def load(self) -> EngineLoad:
        scheduler = self._scheduler
        return EngineLoad(
            running=scheduler.running, waiting=scheduler.waiting, used_kv_blocks=scheduler.pool.used,
            kv_usage=scheduler.pool.usage, preemptions=scheduler.preemptions,
        )  # fmt: skip

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
        made = _Request(sink, self._answer(request, room, stops), stops)
        try:
            made.sequence = self._scheduler.add(made, request.token_ids)
        except ValueError as error:
            raise InvalidArgument(str(error)) from error
        self._wake.set()
        return lambda: self._scheduler.remove(made.sequence)

    def _answer(self, request: PreprocessedRequest, room: int, stops: dict[int, str]) -> TextAnswer:
        conditions, arguments = request.stop_conditions, self._arguments
        wanted = min(_DEFAULT_MAX_TOKENS if conditions.max_tokens is None else conditions.max_tokens, room)
        start = (request.sampling_options.seed or 0) + arguments.seed
        marks = arguments.reasoning.marks(wanted) if arguments.reasoning else None
        return TextAnswer(
            self._text, start % len(self._text), wanted, floor=conditions.min_tokens or 0, stops=stops, marks=marks
        )

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
            changes = self._scheduler.pool.take_changes()
            if changes is not None and self._on_kv is not None:
                self._on_kv(changes)

    def _produce(self, step: Step[_Request]) -> None:
        """Push one token of every sequence that is still there."""
        for output in self._stepper.end(step):
            _push(output)


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
