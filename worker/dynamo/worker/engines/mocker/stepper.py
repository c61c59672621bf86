"""The mock engine without a clock: what one step computes, how long it takes, which tokens come of it. Pure.

`begin` starts a step; when its seconds have passed, `end` gives the tokens and `scheduler.pool.take_changes` what
that did to the cache. The mocker sleeps in between, `dynamo simulate` does not. Steps in which every
sequence only gets a further token into a block that it has are alike: `quiet` says how many follow, `skip` takes
them at once. What comes out is the same, and tests/worker/test_stepper.py holds it to that.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

from dynamo.worker.engines.mock.answers import Answer
from dynamo.worker.engines.mock.scheduler import Limits, Plan, Scheduler, Sequence
from dynamo.worker.engines.mock.timing import Timing


class Owner(Protocol):
    """A request as its shell knows it."""

    @property
    def answer(self) -> Answer: ...


T = TypeVar("T", bound=Owner)


class Step(NamedTuple, Generic[T]):
    """A step that has begun."""

    plan: Plan[T]
    seconds: float


class Output(NamedTuple, Generic[T]):
    """One token of one request."""

    sequence: Sequence[T]
    token: int
    over: bool
    """It was the last; the sequence is gone."""


class Stepper(Generic[T]):
    """See the module. Requests come and go by `scheduler.add` and `.remove`, at any time.

    `holds`: the blocks of a sequence that is over stay until `scheduler.release`, as a prefill engine needs it.
    """

    def __init__(self, limits: Limits, timing: Timing, *, holds: bool = False) -> None:
        self.scheduler: Scheduler[T] = Scheduler(limits)
        self._timing, self._over = timing, self.scheduler.hold if holds else self.scheduler.remove
        self._block_size = limits.block_size

    def begin(self) -> Step[T] | None:
        """Plan a step; None where there is nothing to do."""
        plan = self.scheduler.plan()
        if not plan.producing and not plan.prefill_tokens:
            return None
        usage = self.scheduler.pool.usage
        return Step(plan, self._timing.step_seconds(plan.prefill_tokens, usage, plan.decoding))

    def end(self, step: Step[T]) -> list[Output[T]]:
        """The tokens of a step whose time has passed, of the sequences that are still there."""
        found = []
        for sequence in step.plan.producing:
            if not sequence.running:
                continue  # removed, or preempted by one before it in this very step
            answer = sequence.owner.answer
            token = answer.take()
            if answer.over:
                self._over(sequence)
            else:
                self.scheduler.advance(sequence, token)
            found.append(Output(sequence, token, answer.over))
        return found

    def quiet(self, step: Step[T]) -> int:
        """How many steps like this one can be skipped before one in which something happens; nobody may come."""
        producing = step.plan.producing
        if step.plan.prefill_tokens or len(producing) != self.scheduler.running:
            return 0
        room = self._block_size - 1
        return max(0, min(min(s.owner.answer.sure, room - len(s.tail) if s.tail else 0) for s in producing))

    def skip(self, step: Step[T], count: int) -> None:
        """Take `count` steps at once, of at most `quiet`."""
        for sequence in step.plan.producing:
            sequence.tail += sequence.owner.answer.take_many(count)
            sequence.length += count
            sequence.computed += count
