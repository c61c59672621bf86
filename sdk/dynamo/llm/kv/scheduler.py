"""The KV-aware choice: `KvScheduler` puts hashes, index, activity and cost together. Pure; time comes as an argument.

One router for the instances that serve one model. Whoever uses it says what happens to a request: `place` when it is
sent, `prefilled` at its first token, `ended` however it ends. What an instance caches is predicted from what was sent
there, until somebody `follow`s its events and hands them on (`apply`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from dynamo.llm.kv.active_requests import Activity
from dynamo.llm.kv.block_hash import SEED, block_hashes, sequence_hashes
from dynamo.llm.kv.cost import Weights, choose, costs
from dynamo.llm.kv.index import MOST_RANKS, KvIndex, Predicted, Rank
from dynamo.llm.kv.messages import KvStep

EXPIRE_EVERY: Final = 1.0


class Prompt(NamedTuple):
    """A request as routing sees it."""

    hashes: list[int]
    """Of its beginnings, one per whole block."""
    tokens: int


class Decision(NamedTuple):
    """Decision where a request goes, and why."""

    rank: Rank
    overlap_blocks: int
    """How much of the prompt is probably cached there."""
    cost: float
    to_prefill: int
    """Tokens of the prompt that are probably not cached there."""
    position: int
    """Of `rank` among those to choose from."""
    prices: Sequence[float] = ()
    """What each of `ranks` would have cost, less what decoding this prompt costs wherever it goes."""
    ranks: Sequence[Rank] = ()


class KvScheduler:
    """Choose a rank for each request, by caches and load."""

    def __init__(
        self, block_size: int, weights: Weights, temperature: float, draw: Callable[[], float], predict_seconds: float
    ) -> None:
        self.block_size = block_size
        self.index, self.activity = KvIndex(), Activity()
        self._weights, self._temperature, self._draw = weights, temperature, draw
        self._predicted = Predicted(self.index, predict_seconds)
        self._expired_at = 0.0
        self._followed: set[int] = set()
        self._instances: Sequence[int] = ()
        self._ranks: list[Rank] = []
        self.spread: dict[int, int] = {}
        """How many data-parallel ranks an instance has, of those with several."""

    def prompt(self, tokens: Sequence[int], seed: int = SEED, media: Sequence[Sequence[int]] = ()) -> Prompt:
        """Hash a prompt's blocks; raises `ValueError` for what isn't a token id. `media`: as `block_hashes` has it."""
        return Prompt(sequence_hashes(block_hashes(tokens, self.block_size, seed=seed, media=media)), len(tokens))

    def ranks(self, instances: Sequence[int]) -> Sequence[Rank]:
        """Return where requests to these instances go.

        Made anew only when they are others than those asked for last.
        """
        if instances != self._instances:
            self._instances, several = instances, self.spread
            if several:
                self._ranks = [
                    Rank(instance, number) for instance in instances for number in range(several.get(instance, 1))
                ]
            else:
                self._ranks = [Rank(instance) for instance in instances]
        return self._ranks

    def has_ranks(self, instance: int, count: int) -> None:
        """Note how many data-parallel ranks an instance has, each with a cache of its own.

        One where this isn't said.
        """
        if count != self.spread.get(instance, 1):
            self.spread.pop(instance, None)
            if count > 1:
                self.spread[instance] = count
            self._instances = ()

    def place(
        self, request: str, prompt: Prompt, ranks: Sequence[Rank], now: float,
        weighing: tuple[Weights, float] | None = None,
    ) -> Decision:  # fmt: skip
        """Choose one of `ranks` and count the request there; raises `ValueError` where there is none.

        `weighing`: weights and temperature of this request, where they aren't the router's.
        """
        self._expire(now)
        decision = self.query(prompt, ranks, weighing)
        self.activity.add(request, decision.rank, prompt.hashes, decision.to_prefill)
        if decision.rank.instance not in self._followed:
            self._predicted.sent(decision.rank, prompt.hashes, now)
        return decision

    def query(self, prompt: Prompt, ranks: Sequence[Rank], weighing: tuple[Weights, float] | None = None) -> Decision:
        """Return what `place` would choose now; nothing is counted. Raises `ValueError` where there is no rank."""
        weights, temperature = weighing or (self._weights, self._temperature)
        hashes = prompt.hashes
        overlaps = self.index.overlaps(hashes, ranks)
        prefill, used, requests, shared = self.activity.loads(ranks, hashes)
        if shared is not None:
            # What is being computed there will be cached when this one's turn comes, though no event says so yet.
            overlaps = [max(both) for both in zip(overlaps, shared, strict=True)]
        prices = costs(
            zip(ranks, prefill, used, requests, overlaps, strict=True), prompt.tokens, self.block_size, weights
        )
        chosen = choose(prices, temperature, self._draw)
        left = max(0, prompt.tokens - overlaps[chosen] * self.block_size)
        # Its own blocks are decoded over wherever it goes.
        return Decision(ranks[chosen], overlaps[chosen], prices[chosen] + len(hashes), left, chosen, prices, ranks)

    def prefilled(self, request: str) -> None:
        """Note that its first token came."""
        self.activity.prefilled(request)

    def ended(self, request: str) -> None:
        """Note that it is over; also where that was said already."""
        self.activity.free(request)

    def follow(self, instance: int, blocks: int | None = None) -> None:
        """Follow an instance that says itself what it caches: `blocks` per rank at most, where that is known."""
        if instance not in self._followed:
            self._followed.add(instance)
            self._forget(instance)
        self.index.limit(instance, blocks)

    def apply(self, instance: int, step: KvStep) -> bool:
        """Apply what one of its engine steps did; False where it stores more than it may have."""
        rank, before = Rank(instance, step.dp_rank), self.index.refused
        if step.cleared:
            self.index.drop(rank)
        self.index.remove(rank, step.removed)
        self.index.store(rank, step.stored)
        return self.index.refused == before

    def left(self, instance: int) -> None:
        """Drop a worker that is gone, with its cache and with what it ran."""
        for rank in self.activity.ranks_of(instance):
            self.activity.drop(rank)
        self._forget(instance)
        self._followed.discard(instance)
        self.index.limit(instance, None)
        self.has_ranks(instance, 1)

    def _forget(self, instance: int) -> None:
        for rank in [rank for rank in self.index.ranks if rank.instance == instance]:
            self._predicted.drop(rank)

    def _expire(self, now: float) -> None:
        if now - self._expired_at >= EXPIRE_EVERY:
            self._expired_at = now
            self._predicted.expire(now)
        self.index.sweep()


def rivals(decision: Decision, blocks: int, most: int) -> tuple[tuple[int, float], ...]:
    """Return the cheapest instances beside the chosen one, with their costs for a prompt of so many `blocks`."""
    prices, ranks = decision.prices, decision.ranks
    cheapest = nsmallest(most + 1, range(len(prices)), key=prices.__getitem__)
    others = [index for index in cheapest if index != decision.position][:most]
    return tuple((ranks[index].instance, prices[index] + blocks) for index in others)


def rank_count(figures: Mapping[str, Any]) -> int:
    """Return how many data-parallel ranks an instance has, by the figures that it published."""
    return min(max(1, int(figures.get("data_parallel_size") or 1)), MOST_RANKS)
