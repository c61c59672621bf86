"""The mock engine without a clock: what one step computes, how long it takes, which tokens come of it. Pure.

`begin` starts a step; when its seconds have passed, `end` gives the tokens and `scheduler.pool.take_changes` what
that did to the cache. The mocker sleeps in between, `dynamo simulate` does not. Steps in which every
sequence only gets a further token into a block that it has are alike: `quiet` says how many follow, `skip` takes
them at once. What comes out is the same, and tests/worker/engines/mocker/test_stepper.py holds it to that.

`Timing` is the polynomial timing model of NVIDIA Dynamo's mocker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from dynamo.llm.protocols import LENGTH
from dynamo.worker.engines.mocker.scheduler import Limits, Plan, Scheduler, Sequence


class Timing(NamedTuple):
    """Divisors of the simulated time; 0 turns simulated time off."""

    speedup_ratio: float = 1.0
    decode_speedup_ratio: float = 1.0

    def step_seconds(self, prefill_tokens: int, kv_usage: float, decoding: bool) -> float:
        """Return the seconds of one step: `prefill_tokens` computed anew, then one token of each running sequence.

        `kv_usage` is the share of KV blocks in use, 0 to 1.
        """
        if self.speedup_ratio == 0:
            return 0.0
        ms = prefill_ms(prefill_tokens)
        if decoding and self.decode_speedup_ratio:
            ms += decode_ms(kv_usage) / self.decode_speedup_ratio
        return ms / self.speedup_ratio / 1000


def prefill_ms(tokens: int) -> float:
    """Return the milliseconds that the KV of `tokens` tokens takes to compute (0: nothing to do)."""
    return 0.0 if tokens == 0 else 4.209989e-7 * tokens * tokens + 1.518344e-2 * tokens + 16.50142


def decode_ms(kv_usage: float) -> float:
    """Return the milliseconds of one decode step with this share of the KV cache in use."""
    p = min(1.0, kv_usage)
    return max(1.0, -25.74 * p * p + 54.01 * p + 5.74)


class TokenSource(Protocol):
    """The tokens that one request gets, asked for one by one; `sure` lets a simulation take many at once."""

    over: bool
    """The token taken last was its last."""

    @property
    def sure(self) -> int:
        """Return how many more tokens can be taken before one of them may be the last."""

    def take(self) -> int:
        """Take the next token."""

    def take_many(self, count: int) -> list[int]:
        """Take the next `count` tokens, of which there are at most `sure`."""


class Reasoning(NamedTuple):
    """NVIDIA Dynamo's `reasoning`: answers begin with thinking, marked by two tokens."""

    start_thinking_token_id: int
    end_thinking_token_id: int
    thinking_ratio: float
    """Share of the answer that is thinking, with both marks."""

    def marks(self, wanted: int) -> dict[int, int]:
        """Return which token stands where in an answer of `wanted`; nothing where both don't fit."""
        thinking = min(wanted, int(self.thinking_ratio * wanted))
        if thinking < 2:
            return {}
        return {0: self.start_thinking_token_id, thinking - 1: self.end_thinking_token_id}


class TextAnswer:
    """An endless text from `position` on: at most `wanted` tokens, less where a stop id stands behind the floor."""

    __slots__ = ("_at", "_floor", "_marks", "_position", "_stops", "_text", "_wanted", "end", "over", "stopped_by")

    def __init__(
        self, text: list[int], position: int, wanted: int, *, floor: int = 0,
        stops: Mapping[int, str] | None = None, marks: Mapping[int, int] | None = None, at: int = 0,
        end: str = LENGTH,
    ) -> None:  # fmt: skip
        """Begin at `at`: so many tokens of it were given by somebody else; they count for `wanted` and `floor`.

        `end`: why it ends where no stop id does.
        """
        self._text, self._position, self._wanted, self._floor = text, position, wanted, floor
        self._stops, self._marks = stops or {}, marks or {}
        self._at, self.end = at, end
        self.over = False
        self.stopped_by: int | None = None
        """The stop id that ended it, if one did."""

    @property
    def sure(self) -> int:
        return 0 if self._stops else self._wanted - self._at - 1

    def take(self) -> int:
        token = self._token(self._at)
        self._at += 1
        if token in self._stops and self._at >= self._floor:
            self.over, self.stopped_by = True, token
        elif self._at >= self._wanted:
            self.over = True
        return token

    def take_many(self, count: int) -> list[int]:
        tokens = [self._token(at) for at in range(self._at, self._at + count)]
        self._at += count
        return tokens

    def _token(self, at: int) -> int:
        marked = self._marks.get(at)
        return self._text[(self._position + at) % len(self._text)] if marked is None else marked


class Owner(Protocol):
    """A request as its shell knows it."""

    @property
    def answer(self) -> TokenSource: ...


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
    """Compute the steps of a simulated engine. Requests come and go by `scheduler.add` and `.remove`, at any time.

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
        """Return the tokens of a step whose time has passed, of the sequences that are still there."""
        outputs = []
        for sequence in step.plan.producing:
            if not sequence.running:
                continue  # removed, or preempted by one before it in this very step
            answer = sequence.owner.answer
            token = answer.take()
            if answer.over:
                self._over(sequence)
            else:
                self.scheduler.advance(sequence, token)
            outputs.append(Output(sequence, token, answer.over))
        return outputs

    def quiet(self, step: Step[T]) -> int:
        """Return how many steps like this one can be skipped before one in which something happens; nobody may come."""
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
