"""How the simulated frontend chooses: the code of the real one, told what a real one would see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

from dynamo.frontend.routing.candidates import Candidate, load
from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.frontend.routing.kv_routing import KvAttempt, KvRouting
from dynamo.llm.kv.messages import KvStep
from dynamo.llm.kv.scheduler import Prompt
from dynamo.runtime.load_balancing import RouterMode, select

KV: Final = RouterMode.KV.value


class Placed(Protocol):
    """A request that was sent."""

    worker: int
    dp_rank: int | None
    """Of the worker; None: it chooses."""

    def prefilled(self) -> None:
        """Note that its first token came."""

    def close(self) -> None:
        """Note that it ended."""


class Placing(Protocol):
    """One frontend's choice of worker, 0 and up."""

    def place(self, number: int, names: list[int], tokens: int) -> Placed: ...

    def follow(self, worker: int, step: KvStep) -> None:
        """Take a worker's KV event."""


class _KvPlaced:
    __slots__ = ("close", "dp_rank", "prefilled", "worker")

    def __init__(self, ticket: KvAttempt, worker: int) -> None:
        assert ticket.decision is not None
        self.worker = worker
        self.dp_rank: int | None = ticket.decision.rank.dp_rank
        self.prefilled, self.close = ticket.prefilled, ticket.close


class KvPlacing:
    """Router mode kv; `blocks` is the cache of a worker's rank, None where its events aren't followed."""

    def __init__(
        self, options: KvOptions, block_size: int, workers: int, blocks: int | None, random: Random,
        clock: Callable[[], float], ranks: int = 1,
    ) -> None:  # fmt: skip
        self._router = KvRouting(options, block_size, random, clock).router
        self._clock, self._workers = clock, range(workers)
        for worker in self._workers:
            self._router.has_ranks(worker, ranks)
            if blocks is not None:
                self._router.follow(worker, blocks)

    def place(self, number: int, names: list[int], tokens: int) -> Placed:
        ticket = KvAttempt(number, self._router, Prompt(names, tokens), self._clock)
        return _KvPlaced(ticket, ticket.place(self._workers))

    def follow(self, worker: int, step: KvStep) -> None:
        self._router.apply(worker, step)


class _Counted:
    __slots__ = ("_candidate", "dp_rank", "worker")

    def __init__(self, candidate: Candidate) -> None:
        candidate.open_streams += 1
        self.dp_rank: int | None = None
        self._candidate, self.worker = candidate, candidate.id

    def prefilled(self) -> None:
        """Do nothing that these modes look at."""

    def close(self) -> None:
        self._candidate.open_streams -= 1


class PlainPlacing:
    """Every other mode: by what this frontend has open there."""

    def __init__(self, mode: str, workers: int, capacity: int, random: Random) -> None:
        self._mode, self._random, self._turn = RouterMode(mode), random, 0
        self._candidates: Sequence[Candidate] = [Candidate(id=worker, capacity=capacity) for worker in range(workers)]

    def place(self, number: int, names: list[int], tokens: int) -> Placed:
        self._turn += 1
        return _Counted(select(self._mode, self._candidates, load, self._turn, self._random))

    def follow(self, worker: int, step: KvStep) -> None:
        """Do nothing: nobody listens."""
