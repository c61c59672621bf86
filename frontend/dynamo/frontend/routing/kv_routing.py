"""KV-aware routing of one model's requests: tickets, over `dynamo.llm.kv`.

What a worker caches is predicted from what was sent to it, unless its own events are followed
(`dynamo.llm.kv.followers`).
A `Ticket` is one attempt of one choice. `generation.py` closes it however the attempt ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec

from dynamo.frontend.nvext import RouterConfigOverride
from dynamo.frontend.settings import OVERLAP_CREDIT, OVERLAP_WEIGHT
from dynamo.llm.kv.cost import Weights
from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.predicted import SECONDS
from dynamo.llm.kv.replicas import Shared, Sharing
from dynamo.llm.kv.router import Decision, KvRouter, Prompt
from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.names import InstanceKey

OUTPUTS_EVERY: Final = 0.1


class KvOptions(msgspec.Struct, frozen=True):
    """How a frontend routes in kv mode."""

    overlap_score_weight: float = OVERLAP_WEIGHT
    temperature: float = 0.0
    predict_seconds: float = SECONDS
    overlap_score_credit: float = OVERLAP_CREDIT
    overlap_score_credit_decay: float = 0.0
    decode_request_weight: float = 0.0
    track_output_blocks: bool = False

    def weights(self) -> Weights:
        """The original's older word weighs prefill; 0 takes the credit for caches away too."""
        return Weights(
            overlap_credit=self.overlap_score_credit if self.overlap_score_weight else 0.0,
            overlap_credit_decay=self.overlap_score_credit_decay, prefill_load_scale=self.overlap_score_weight,
            decode_request_weight=self.decode_request_weight,
        )  # fmt: skip

    def with_changes(self, changes: RouterConfigOverride) -> tuple[Weights, float]:
        """Weights and temperature of a request that has its own words on them."""
        weights, weight = self.weights(), changes.overlap_score_weight
        if weight is not None:
            weights = msgspec.structs.replace(self, overlap_score_weight=weight).weights()
        if changes.overlap_score_credit is not None:
            weights = msgspec.structs.replace(weights, overlap_credit=changes.overlap_score_credit)
        if changes.prefill_load_scale is not None:
            weights = msgspec.structs.replace(weights, prefill_load_scale=changes.prefill_load_scale)
        temperature = changes.router_temperature
        return weights, self.temperature if temperature is None else temperature

    def to_decode(self, weighing: tuple[Weights, float] | None) -> tuple[Weights, float]:
        """For prompts that are computed elsewhere: a transfer brings all of it, so caches and prefill save nothing."""
        weights, temperature = weighing or (self.weights(), self.temperature)
        return msgspec.structs.replace(weights, overlap_credit=0.0, prefill_load_scale=0.0), temperature


class Ticket:
    """One attempt, from its choice of worker to its end."""

    __slots__ = (
        "_clock",
        "_elsewhere",
        "_id",
        "_prompt",
        "_router",
        "_shared",
        "_sharing",
        "_weighing",
        "decision",
        "outputs",
        "waits",
    )

    def __init__(
        self, number: int, router: KvRouter, prompt: Prompt, clock: Callable[[], float], sharing: Sharing | None = None,
        weighing: tuple[Weights, float] | None = None, *, elsewhere: bool = False,
    ) -> None:  # fmt: skip
        self._elsewhere = elsewhere
        self._id, self._router, self._prompt, self._clock = str(number), router, prompt, clock
        self._sharing = sharing
        self._shared: Shared | None = None
        self._weighing = weighing
        self.decision: Decision | None = None
        """Once it is placed."""
        self.outputs: Outputs | None = None
        """There where the blocks of answers count."""
        self.waits = True
        """No token has come yet."""

    def place(self, instances: Sequence[int], ranks: Sequence[Rank] | None = None) -> int:
        """Choose among instances, of which there is at least one: the index of the choice.

        `ranks`: only these of their data-parallel ranks; which one it is then says `decision`.
        """
        router = self._router
        if self.outputs is not None:
            self.outputs.look()
        if ranks is None:
            ranks = router.ranks(instances)
        decision = router.place(self._id, self._prompt, ranks, self._clock(), self._weighing)
        if self._elsewhere:  # nothing is to be computed there, now or before its first token
            router.prefilled(self._id)
            decision = decision._replace(to_prefill=0)
        self.decision = decision
        if self._sharing is not None:
            self._shared = self._sharing.sent(decision.rank, self._prompt.names, decision.to_prefill)
        return instances.index(decision.rank.instance) if router.spread else decision.position

    def look(self, instances: Sequence[int], ranks: Sequence[Rank] | None = None) -> int:
        """As `place`, but nothing is counted."""
        router = self._router
        self.decision = router.query(self._prompt, ranks or router.ranks(instances), self._weighing)
        return instances.index(self.decision.rank.instance)

    @property
    def prompt_blocks(self) -> int:
        """Whole blocks of its prompt."""
        return len(self._prompt.names)

    def watch(self, produced: Callable[[], int]) -> None:
        """It is on its way; `produced` says how many tokens its answer has so far."""
        if self.outputs is not None:
            self.outputs.began(self._id, self._prompt.tokens, produced)

    def prefilled(self) -> None:
        """Its first token came."""
        self.waits = False
        self._router.prefilled(self._id)
        if self._shared is not None:
            self._shared.prefilled()

    def close(self) -> None:
        """It is over."""
        self._router.ended(self._id)
        if self.outputs is not None:
            self.outputs.ended(self._id)
        if self._shared is not None:
            self._shared.freed()


class Outputs:
    """Counts the blocks that answers fill, at most every `OUTPUTS_EVERY` seconds: nothing is done per token.

    Nobody shares these blocks, and other frontends don't hear of them, as with the original.
    """

    def __init__(self, router: KvRouter, clock: Callable[[], float]) -> None:
        self._router, self._clock = router, clock
        self._running: dict[str, tuple[int, Callable[[], int]]] = {}
        self._grown: dict[str, int] = {}
        self._looked_at = float("-inf")

    def began(self, request: str, tokens: int, produced: Callable[[], int]) -> None:
        """A request runs; `produced` says how many tokens its answer has, beside `tokens` of its prompt."""
        self._running[request] = (tokens % self._router.block_size, produced)

    def ended(self, request: str) -> None:
        """It is over."""
        self._running.pop(request, None)
        self._grown.pop(request, None)

    def look(self) -> None:
        """Bring the router up to date, unless it nearly is."""
        now = self._clock()
        if now - self._looked_at < OUTPUTS_EVERY:
            return
        self._looked_at, size, grown = now, self._router.block_size, self._grown
        for request, (begun, produced) in self._running.items():
            blocks = (begun + produced()) // size
            if blocks > (before := grown.get(request, 0)):
                grown[request] = blocks
                self._router.activity.grew(request, blocks - before)


class KvRouting:
    """The routing of one model set."""

    def __init__(self, options: KvOptions, block_size: int, random: Random, clock: Callable[[], float]) -> None:
        self.router = KvRouter(
            block_size, options.weights(), options.temperature, random.random, options.predict_seconds
        )
        self.sharing: Sharing | None = None
        """Set where other frontends are told."""
        self.outputs = Outputs(self.router, clock) if options.track_output_blocks else None
        self._options, self._clock = options, clock
        self._numbers = itertools.count()

    def ticket(self, request: PreprocessedRequest, changes: RouterConfigOverride | None = None) -> Ticket:
        """For one attempt of a request; `changes`: what it says of weights."""
        prompt, elsewhere = self.router.prompt(request.token_ids), request.computed_elsewhere
        weighing = None if changes is None else self._options.with_changes(changes)
        if elsewhere:
            weighing = self._options.to_decode(weighing)
        ticket = Ticket(
            next(self._numbers), self.router, prompt, self._clock, self.sharing, weighing, elsewhere=elsewhere
        )
        ticket.outputs = self.outputs
        return ticket

    def left(self, key: InstanceKey) -> None:
        """An instance is gone."""
        self.router.left(key.id)
