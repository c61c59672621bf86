"""The event loop: who comes and whose step ends, in the order of time. Nothing waits; what is drawn is seeded."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from dynamo.cli.simulation.engine import Engine, Job, Seen, TraceAnswer
from dynamo.cli.simulation.placing import KV, KvPlacing, Placing, PlainPlacing
from dynamo.cli.simulation.prompts import Prompts
from dynamo.cli.simulation.trace import Call
from dynamo.frontend.kv import KvOptions
from dynamo.worker.engines.mock.arguments import MockArguments

_STEP_ENDS: Final = 0
"""Before those who come at the same moment: a request that comes at a step's end is in the next but one's plan."""
_COMES: Final = 1
_TELL_EVERY: Final = 256


@dataclass(frozen=True)
class Setup:
    """What is simulated."""

    workers: int
    engine: MockArguments
    kv: KvOptions = field(default_factory=KvOptions)
    use_kv_events: bool = True
    seed: int = 0
    skips: bool = True
    """False: step by step, which takes longer and gives the same."""


class Cluster:
    """One frontend with `setup.workers` engines behind it."""

    def __init__(self, setup: Setup, mode: str, prompts: Prompts) -> None:
        self.seen = Seen()
        self.steps = 0
        """Of engines, those that were skipped left out: what the time that this takes depends on."""
        self._prompts = prompts
        self._longest = min(filter(None, (setup.engine.limits.longest, setup.engine.max_model_len)))
        self._now = 0
        self._placing = self._frontend(setup, mode)
        self.engines = [
            Engine(setup.engine, self.seen, partial(self._placing.told, worker), self._ended, setup.skips)
            for worker in range(setup.workers)
        ]
        self._calls: Sequence[Call] = ()
        self._events: list[tuple[int, int, int]] = []
        """When, what, and who: a worker or a call."""

    def _frontend(self, setup: Setup, mode: str) -> Placing:
        random, limits = Random(setup.seed), setup.engine.limits
        if mode != KV:
            return PlainPlacing(mode, setup.workers, limits.max_num_seqs, random)
        follows = setup.use_kv_events and limits.enable_prefix_caching
        return KvPlacing(
            setup.kv, limits.block_size, setup.workers, limits.num_gpu_blocks if follows else None, random,
            lambda: self._now * 1e-9,
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

    def _await(self, worker: int) -> None:
        due = self.engines[worker].due
        if due is not None:
            heapq.heappush(self._events, (due, _STEP_ENDS, worker))

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
        job = Job(number, self._now, TraceAnswer(self._prompts.answer(call, number, wanted)), placed)
        engine = self.engines[placed.worker]
        before = engine.due
        engine.submit(job, list(names), tail, self._now)
        if engine.due != before:
            self._await(placed.worker)

    def _ended(self, job: Job, now: int) -> None:
        self._follow(self._calls[job.number])

    def _follow(self, call: Call) -> None:
        """The next turn of its session."""
        if call.next >= 0:
            heapq.heappush(self._events, (self._now + self._calls[call.next].delay, _COMES, call.next))
