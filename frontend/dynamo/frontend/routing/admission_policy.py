"""Whether a request may be routed now: busy thresholds, and the queue in front of routing.

Pure: loads and time are arguments, `gate.py` waits. The words and the meaning of the thresholds are the original's:
a worker over one of them gets nothing new, and where all are, requests are refused; over the queue's own threshold
requests wait until one worker has room.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Annotated, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")
QUEUE_POLICIES: Final = ("fcfs", "lcfs", "wspt")


class Load(NamedTuple):
    """One worker, as far as this frontend knows."""

    prefill_tokens: int = 0
    """Of prompts that have no first token yet."""
    blocks: int = 0
    """KV blocks in use."""
    total_blocks: int = 0
    """0: unknown."""
    batched_tokens: int = 0
    """`max_num_batched_tokens` of its engine; 0: unknown."""


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Above which a worker is busy; None: never. What a worker doesn't publish can't be over anything."""

    active_decode_blocks_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Share of its KV blocks in use."""
    active_prefill_tokens_threshold: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    active_prefill_tokens_threshold_frac: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    """Multiple of `batched_tokens`."""

    @property
    def any(self) -> bool:
        """One of them is set."""
        return self != NO_THRESHOLDS

    def limits(self, total_blocks: int, batched_tokens: int) -> tuple[float, float]:
        """Blocks and prompt tokens over which a worker with these figures is busy; infinite where none holds."""
        blocks = tokens = float("inf")
        if self.active_decode_blocks_threshold is not None and total_blocks:
            blocks = self.active_decode_blocks_threshold * total_blocks
        if self.active_prefill_tokens_threshold is not None:
            tokens = self.active_prefill_tokens_threshold
        if self.active_prefill_tokens_threshold_frac is not None and batched_tokens:
            tokens = min(tokens, self.active_prefill_tokens_threshold_frac * batched_tokens)
        return blocks, tokens

    def busy(self, load: Load) -> bool:
        """Tell whether a worker with this load gets nothing new."""
        blocks, tokens = self.limits(load.total_blocks, load.batched_tokens)
        return load.blocks > blocks or load.prefill_tokens > tokens


NO_THRESHOLDS: Final = Thresholds()


def over(load: Load, frac: float) -> bool:
    """More prompt tokens to prefill than this multiple of one engine step's."""
    return load.batched_tokens > 0 and load.prefill_tokens > frac * load.batched_tokens


class Place(Generic[T]):
    """One that waits; `owner` is whoever asked."""

    __slots__ = ("deadline", "entered", "key", "number", "owner", "tokens")

    def __init__(self, owner: T, number: int, tokens: int, entered: float, deadline: float) -> None:
        self.owner, self.number, self.tokens = owner, number, tokens
        self.entered, self.deadline = entered, deadline
        self.key: tuple[float, float, int] = (0.0, 0.0, number)


class Queue(Generic[T]):
    """Those that wait, in the order of their turn: at most `limit`, each until its deadline.

    Orders, as the original's: `fcfs`, a `priority` of n as if it had come n seconds earlier; `lcfs`; `wspt`, few
    tokens and high priority first. A higher `strict_priority` goes before all of them.
    """

    def __init__(self, limit: int, policy: str = "fcfs") -> None:
        self.limit, self._policy = limit, policy
        self._numbers = 0
        self._order: list[tuple[tuple[float, float, int], Place[T]]] = []
        self._deadlines: list[tuple[float, int, Place[T]]] = []
        self.tokens = 0
        """Of all prompts that wait."""

    def __len__(self) -> int:
        return len(self._order)

    @property
    def deadline(self) -> float:
        """The next one; infinite where nobody waits."""
        return self._deadlines[0][0] if self._deadlines else float("inf")

    def enter(
        self, owner: T, now: float, deadline: float, *, tokens: int = 0, priority: int = 0, strict_priority: int = 0
    ) -> Place[T] | None:
        """Take a place; None where there is none left."""
        if len(self._order) >= self.limit:
            return None
        self._numbers += 1
        place = Place(owner, self._numbers, tokens, now, deadline)
        place.key = (-float(strict_priority), self._turn(now, tokens, priority), self._numbers)
        insort(self._order, (place.key, place))
        insort(self._deadlines, (deadline, place.number, place))
        self.tokens += tokens
        return place

    def leave(self, place: Place[T]) -> bool:
        """Give a place up; False where it is given up already."""
        at = bisect_left(self._order, (place.key,))
        if at == len(self._order) or self._order[at][1] is not place:
            return False
        del self._order[at]
        del self._deadlines[bisect_left(self._deadlines, (place.deadline, place.number))]
        self.tokens -= place.tokens
        return True

    def next(self) -> Place[T]:
        """Whose turn it is, whose place is given up with that; there must be one."""
        place = self._order[0][1]
        self.leave(place)
        return place

    def expired(self, now: float) -> list[Place[T]]:
        """Those whose deadline has passed; they don't wait any more."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now:
            found.append(self._deadlines[0][2])
            self.leave(found[-1])
        return found

    def _turn(self, now: float, tokens: int, priority: int) -> float:
        if self._policy == "lcfs":
            return -now
        if self._policy == "wspt":
            return tokens / max(1.0, 1.0 + priority)
        return now - priority


class Verdict(enum.Enum):
    """What is to happen to a request that comes."""

    GO = "go"
    WAIT = "wait"
    BUSY = "busy"
    """Refused: every worker is over a busy threshold."""


class Admission(Generic[T]):
    """The decisions of one model: who goes, who waits, who is refused."""

    def __init__(self, thresholds: Thresholds, queue_threshold: float | None, queue: Queue[T]) -> None:
        self.thresholds, self.queue_threshold, self.queue = thresholds, queue_threshold, queue

    def ask(self, loads: Iterable[Load]) -> Verdict:
        """For a request that comes now; where no worker is, it goes on, and routing says so."""
        free, none = False, True
        for load in loads:
            none = False
            if self.thresholds.busy(load):
                continue
            free = True
            if self.has_room(load):
                # Nobody overtakes those who wait: their turn is now.
                return Verdict.WAIT if len(self.queue) else Verdict.GO
        if none:
            return Verdict.GO
        return Verdict.WAIT if free else Verdict.BUSY

    def room(self, loads: Iterable[Load]) -> bool:
        """Tell whether the next one of the queue may go."""
        none = True
        for load in loads:
            none = False
            if not self.thresholds.busy(load) and self.has_room(load):
                return True
        return none

    def has_room(self, load: Load) -> bool:
        """Tell whether a worker can take one of those who wait."""
        return self.queue_threshold is None or not over(load, self.queue_threshold)
