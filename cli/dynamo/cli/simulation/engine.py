"""One mock engine in simulated time: whole nanoseconds, so that steps add up to the same however they are taken."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dynamo.cli.simulation.routing import Placed
from dynamo.llm.kv.messages import KvStep
from dynamo.worker.engines.mocker.arguments import MockArguments
from dynamo.worker.engines.mocker.scheduler import Sequence
from dynamo.worker.engines.mocker.stepper import Output, Step, Stepper

_NS: Final = 1_000_000_000
_NEVER: Final = -1


class TraceAnswer:
    """An answer whose tokens and end are known."""

    __slots__ = ("_at", "_tokens", "over")

    def __init__(self, tokens: list[int]) -> None:
        self._tokens, self._at, self.over = tokens, 0, False

    @property
    def sure(self) -> int:
        return len(self._tokens) - self._at - 1

    def take(self) -> int:
        token = self._tokens[self._at]
        self._at += 1
        self.over = self._at == len(self._tokens)
        return token

    def take_many(self, count: int) -> list[int]:
        self._at += count
        return self._tokens[self._at - count : self._at]


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request inside an engine."""

    number: int
    sent: int
    answer: TraceAnswer
    placed: Placed
    first: int = _NEVER
    """When its first token came."""
    waits_since: int = _NEVER
    """It was preempted; its last token came then."""


class Seen:
    """Figures that clients saw, added up."""

    def __init__(self) -> None:
        self.first = array("q")
        """Nanoseconds to the first token, a request each."""
        self.gaps: Counter[int] = Counter()
        """How often so many nanoseconds lay between two tokens of a request."""
        self.requests = self.tokens_in = self.tokens_cached = self.tokens_out = self.refused = 0
        self.last = 0
        """When the last token came."""


class Engine:
    """Run one engine in simulated time. `due` is when its step ends; None while it is idle."""

    __slots__ = (
        "_gaps", "_length", "_on_end", "_on_kv", "_quiet", "_seen", "_skips", "_start", "_step", "due", "stepper",
    )  # fmt: skip

    def __init__(
        self, arguments: MockArguments, seen: Seen, on_kv: Callable[[KvStep], None],
        on_end: Callable[[SimulatedRequest, int], None], skips: bool = True,
    ) -> None:  # fmt: skip
        self.stepper: Stepper[SimulatedRequest] = Stepper(arguments.limits, arguments.timing)
        self._seen, self._gaps, self._on_kv, self._on_end, self._skips = seen, seen.gaps, on_kv, on_end, skips
        self._step: Step[SimulatedRequest] | None = None
        self._start = self._length = self._quiet = 0
        self.due: int | None = None

    @property
    def burden(self) -> tuple[int, int]:
        """Return how busy it is, to be compared."""
        return self.stepper.scheduler.burden

    def submit(self, job: SimulatedRequest, names: list[int], tail: list[int], now: int) -> None:
        """Take a request; a step that is under way is not touched by it."""
        self.stepper.scheduler.add_named(job, names, tail)
        if self._step is None:
            self._begin(now)
        elif self._quiet:
            self._pass(min(self._quiet, (now - self._start) // self._length))
            self._quiet, self.due = 0, self._start + self._length

    def end(self) -> None:
        """End the step, which is over at `due`: tokens, and the next one."""
        step, now = self._step, self.due
        assert step is not None
        assert now is not None
        self._pass(self._quiet)
        preemptions = self.stepper.scheduler.preemptions
        outputs = self.stepper.end(step)
        self._tell(outputs, now)
        if self.stepper.scheduler.preemptions != preemptions:
            self._preempted(step, {output.sequence for output in outputs}, now)
        changes = self.stepper.scheduler.pool.take_changes()
        if changes is not None:
            self._on_kv(changes)
        self._begin(now)

    def _begin(self, now: int) -> None:
        self._step = step = self.stepper.begin()
        if step is None:
            self.due = None
            return
        self._start, self._length = now, round(step.seconds * _NS)
        self._quiet = self.stepper.quiet(step) if self._skips and self._length else 0
        self.due = now + (self._quiet + 1) * self._length

    def _pass(self, count: int) -> None:
        """Skip so many quiet steps."""
        if count:
            assert self._step is not None
            self.stepper.skip(self._step, count)
            self._gaps[self._length] += count * len(self._step.plan.producing)
            self._start += count * self._length

    def _tell(self, outputs: list[Output[SimulatedRequest]], now: int) -> None:
        following = 0
        for sequence, _, over in outputs:
            job = sequence.owner
            if job.first == _NEVER:
                self._began(job, sequence.cached_tokens, now)
            elif job.waits_since == _NEVER:
                following += 1
            else:
                self._gaps[now - job.waits_since] += 1
                job.waits_since = _NEVER
            if over:
                job.placed.close()
                self._seen.last = now
                self._on_end(job, now)
        if following:
            self._gaps[self._length] += following

    def _began(self, job: SimulatedRequest, cached: int, now: int) -> None:
        job.first = now
        job.placed.prefilled()
        self._seen.first.append(now - job.sent)
        self._seen.tokens_cached += cached

    def _preempted(self, step: Step[SimulatedRequest], producing: set[Sequence[SimulatedRequest]], now: int) -> None:
        """Note who was sent back to the queue, with this step's token or without."""
        for sequence in step.plan.producing:
            job = sequence.owner
            if not sequence.running and not job.answer.over and job.first != _NEVER and job.waits_since == _NEVER:
                job.waits_since = now if sequence in producing else self._start
