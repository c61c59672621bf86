"""Whether a request may be routed now: busy thresholds, and the queue in front of routing.

Pure: loads and time are arguments, `admission_gate.py` waits. The words and the meaning of the thresholds are NVIDIA
Dynamo's: a worker over one of them gets nothing new, and where all are, requests are refused; over the queue's own
threshold requests wait until one worker has room.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Generic, NamedTuple, TypeVar

from dynamo.runtime.process.settings import out_of_range, setting

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


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Above which a worker is busy; None: never. What a worker doesn't publish can't be over anything."""

    active_decode_blocks_threshold: float | None = setting(
        None, "Share of KV blocks in use above which a worker is busy; requests get 503 while all are.",
        env=("DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD", "DYN_BUSY_THRESHOLD"), flags=("--busy-threshold",),
    )  # fmt: skip
    active_prefill_tokens_threshold: int | None = setting(
        None, "Prompt tokens awaiting prefill above which a worker is busy.",
        env="DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD",
    )  # fmt: skip
    active_prefill_tokens_threshold_frac: float | None = setting(
        None, "The same, as a multiple of the worker's max_num_batched_tokens.",
        env="DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC",
    )  # fmt: skip

    def problem(self) -> str | None:
        """Return why these thresholds can't hold, in one sentence; None where they can."""
        if not 0 <= (self.active_decode_blocks_threshold or 0.0) <= 1:
            return "--active-decode-blocks-threshold is a share: it must be between 0 and 1"
        return out_of_range(self, "active_prefill_tokens_threshold", "active_prefill_tokens_threshold_frac")

    @cached_property
    def any(self) -> bool:
        """Tell whether one of them is set."""
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


@dataclass(frozen=True)
class QueueOptions:
    """How a frontend queues in front of routing."""

    threshold: float | None = setting(
        None, "Requests wait while every worker has more prompt tokens to prefill than this multiple of its "
        "max_num_batched_tokens.", env="DYN_ROUTER_QUEUE_THRESHOLD", name="router_queue_threshold",
    )  # fmt: skip
    policy: str = setting(
        "fcfs", "Order of waiting requests: first come, last come, or shortest prompt weighted by priority.",
        env="DYN_ROUTER_QUEUE_POLICY", choices=QUEUE_POLICIES, name="router_queue_policy",
    )  # fmt: skip
    limit: int = setting(
        1024, "Waiting requests per model; further ones get 503.", env="DYN_ROUTER_QUEUE_LIMIT",
        name="router_queue_limit",
    )  # fmt: skip
    seconds: float = setting(
        30.0, "Seconds a request may wait before it gets 503.", env="DYN_ROUTER_QUEUE_TIMEOUT_SECS",
        name="router_queue_timeout_secs",
    )  # fmt: skip

    def problem(self) -> str | None:
        """Return why these options can't be meant, in one sentence; None where they can."""
        return (
            out_of_range(self, "threshold")
            or out_of_range(self, "limit", least=1)
            or out_of_range(self, "seconds", above=True)
        )


NO_QUEUE: Final = QueueOptions()


def over(load: Load, frac: float) -> bool:
    """Tell whether a worker has more prompt tokens to prefill than this multiple of one engine step's."""
    return load.batched_tokens > 0 and load.prefill_tokens > frac * load.batched_tokens


class QueueEntry(Generic[T]):
    """One that waits; `owner` is whoever asked."""

    __slots__ = ("deadline", "entered", "key", "number", "owner", "tokens")

    def __init__(self, owner: T, number: int, tokens: int, entered: float, deadline: float) -> None:
        self.owner, self.number, self.tokens = owner, number, tokens
        self.entered, self.deadline = entered, deadline
        self.key: tuple[float, float, int] = (0.0, 0.0, number)


class Queue(Generic[T]):
    """Those that wait, in the order of their turn: at most `limit`, each until its deadline.

    Orders, as NVIDIA Dynamo's: `fcfs`, a `priority` of n as if it had come n seconds earlier; `lcfs`; `wspt`, few
    tokens and high priority first. A higher `strict_priority` goes before all of them.
    """

    def __init__(self, limit: int, policy: str = "fcfs") -> None:
        self.limit, self._policy = limit, policy
        self._numbers = 0
        self._order: list[tuple[tuple[float, float, int], QueueEntry[T]]] = []
        self._deadlines: list[tuple[float, int, QueueEntry[T]]] = []
        self.tokens = 0
        """Of all prompts that wait."""

    def __len__(self) -> int:
        return len(self._order)

    @property
    def deadline(self) -> float:
        """Return the next deadline; infinite where nobody waits."""
        return self._deadlines[0][0] if self._deadlines else float("inf")

    def enter(
        self, owner: T, now: float, deadline: float, *, tokens: int = 0, priority: int = 0, strict_priority: int = 0
    ) -> QueueEntry[T] | None:
        """Add an entry; None where the queue is full."""
        if len(self._order) >= self.limit:
            return None
        self._numbers += 1
        entry = QueueEntry(owner, self._numbers, tokens, now, deadline)
        entry.key = (-float(strict_priority), self._turn(now, tokens, priority), self._numbers)
        insort(self._order, (entry.key, entry))
        insort(self._deadlines, (deadline, entry.number, entry))
        self.tokens += tokens
        return entry

    def leave(self, entry: QueueEntry[T]) -> bool:
        """Remove an entry; False where it is gone already."""
        at = bisect_left(self._order, (entry.key,))
        if at == len(self._order) or self._order[at][1] is not entry:
            return False
        del self._order[at]
        del self._deadlines[bisect_left(self._deadlines, (entry.deadline, entry.number))]
        self.tokens -= entry.tokens
        return True

    def next(self) -> QueueEntry[T]:
        """Remove and return the entry whose turn it is; there must be one."""
        entry = self._order[0][1]
        self.leave(entry)
        return entry

    def expired(self, now: float) -> list[QueueEntry[T]]:
        """Remove and return the entries whose deadline has passed."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            expired.append(self._deadlines[0][2])
            self.leave(expired[-1])
        return expired

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
        """Decide on a request that comes now; where no worker is, it goes on, and routing says so."""
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
