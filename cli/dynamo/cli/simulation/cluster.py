"""The event loop: who comes and whose step ends, in the order of time. Nothing waits; what is drawn is seeded."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from dynamo.cli.simulation.engine import Engine, Seen, SimulatedRequest, TraceAnswer
from dynamo.cli.simulation.prompts import Prompts
from dynamo.cli.simulation.routing import KV, KvPlacing, Placed, Placing, PlainPlacing
from dynamo.cli.simulation.trace import Call
from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.llm.kv.messages import KvStep
from dynamo.worker.engines.mocker.arguments import MockArguments

_STEP_ENDS: Final = 0
"""Before those who come at the same moment: a request that comes at a step's end is in the next but one's plan."""
_COMES: Final = 1
_TELL_EVERY: Final = 256


@dataclass(frozen=True)
class Setup:
    """Setup of a simulation."""

    workers: int
    engine: MockArguments
    kv: KvOptions = field(default_factory=KvOptions)
    use_kv_events: bool = True
    seed: int = 0
    skips: bool = True
    """False: step by step, which takes longer and gives the same."""


class Cluster:
    """One frontend with `setup.workers` workers behind it, each with as many engines as it has data-parallel ranks."""

    def __init__(self, setup: Setup, mode: str, prompts: Prompts) -> None:
        self.seen = Seen()
        self.steps = 0
        """Of engines, those that were skipped left out: what the time that this takes depends on."""
        self._prompts = prompts
        self._longest = min(filter(None, (setup.engine.limits.longest, setup.engine.max_model_len)))
        self._now, self._ranks = 0, setup.engine.dp_size
        self._placing = self._frontend(setup, mode)
        self.engines = [
            Engine(setup.engine, self.seen, partial(self._kv_event, number), self._ended, setup.skips)
            for number in range(setup.workers * self._ranks)
        ]
        """Rank by rank: those of the first worker, of the second, …"""
        self._calls: Sequence[Call] = ()
        self._events: list[tuple[int, int, int]] = []
        """When, what, and who: an engine or a call."""

    def _frontend(self, setup: Setup, mode: str) -> Placing:
        random, limits = Random(setup.seed), setup.engine.limits
        if mode != KV:
            return PlainPlacing(mode, setup.workers, limits.max_num_seqs * self._ranks, random)
        follows = setup.use_kv_events and limits.enable_prefix_caching
        return KvPlacing(
            setup.kv, limits.block_size, setup.workers, limits.num_gpu_blocks if follows else None, random,
            lambda: self._now * 1e-9, self._ranks,
        )  # fmt: skip

    def run(self, calls: Sequence[Call], progress: Callable[[int, int], None] = lambda done, now: None) -> Seen:
        """Send all calls and see them end; `progress` hears of requests that came and of nanoseconds, now and then."""
        self._calls = calls
        events = self._events
        events += [(call.at, _COMES, number) for number, call in enumerate(calls) if call.at is not None]
        heapq.heapify(events)
        come = 0
        while events:
            self._now, kind, number = heapq.heappop(events)
            if kind == _COMES:
                self._come(number)
                come += 1
                if come % _TELL_EVERY == 0:
                    progress(come, self._now)
            elif self.engines[number].due == self._now:
                self.engines[number].end()
                self.steps += 1
                self._await(number)
        return self.seen

    def _await(self, number: int) -> None:
        due = self.engines[number].due
        if due is not None:
            heapq.heappush(self._events, (due, _STEP_ENDS, number))

    def _kv_event(self, number: int, step: KvStep) -> None:
        """Follow an engine's KV event."""
        worker, rank = divmod(number, self._ranks)
        self._placing.follow(worker, step._replace(dp_rank=rank) if rank else step)

    def _engine(self, placed: Placed) -> int:
        """Return where a request goes: the rank that was chosen, else the worker's least busy one, as a worker does."""
        first, rank = placed.worker * self._ranks, placed.dp_rank
        if rank is None:
            rank = (
                min(range(self._ranks), key=lambda candidate: self.engines[first + candidate].burden)
                if self._ranks > 1
                else 0
            )
        return first + rank

    def _come(self, number: int) -> None:
        call, seen = self._calls[number], self.seen
        room = self._longest - call.tokens_in
        if room <= 0:
            seen.refused += 1
            self._follow(call)
            return
        seen.requests += 1
        seen.tokens_in += call.tokens_in
        wanted = min(call.tokens_out, room)
        seen.tokens_out += wanted
        names, tail = self._prompts.prompt(call)
        placed = self._placing.place(number, names, call.tokens_in)
        job = SimulatedRequest(number, self._now, TraceAnswer(self._prompts.answer(call, number, wanted)), placed)
        target = self._engine(placed)
        engine = self.engines[target]
        before = engine.due
        engine.submit(job, list(names), tail, self._now)
        if engine.due != before:
            self._await(target)

    def _ended(self, job: SimulatedRequest, now: int) -> None:
        self._follow(self._calls[job.number])

    def _follow(self, call: Call) -> None:
        """Send the next turn of its session."""
        if call.next >= 0:
            heapq.heappush(self._events, (self._now + self._calls[call.next].delay, _COMES, call.next))
