"""KV-aware routing of one model's requests: tickets, over `dynamo.llm.kv`.

What a worker caches is predicted from what was sent to it, unless its own events are followed
(`dynamo.llm.kv.followers`).
A `Ticket` is one attempt of one choice. `generation.py` closes it however the attempt ends.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from dynamo.llm.kv.cost import Weights
from dynamo.llm.kv.predicted import SECONDS
from dynamo.llm.kv.replicas import Shared, Sharing
from dynamo.llm.kv.router import KvRouter, Prompt
from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.names import InstanceKey

log = logging.getLogger(__name__)


class KvOptions(msgspec.Struct, frozen=True):
    """How a frontend routes in kv mode."""

    overlap_score_weight: float = 1.0
    temperature: float = 0.0
    predict_seconds: float = SECONDS

    def weights(self) -> Weights:
        """The original's older word weighs prefill; 0 takes the credit for caches away too."""
        credit = 1.0 if self.overlap_score_weight else 0.0
        return Weights(overlap_credit=credit, prefill_load_scale=self.overlap_score_weight)


class Ticket:
    """One attempt, from its choice of worker to its end."""

    __slots__ = ("_clock", "_id", "_prompt", "_router", "_shared", "_sharing", "waits")

    def __init__(
        self, number: int, router: KvRouter, prompt: Prompt, clock: Callable[[], float], sharing: Sharing | None = None
    ) -> None:
        self._id, self._router, self._prompt, self._clock = str(number), router, prompt, clock
        self._sharing = sharing
        self._shared: Shared | None = None
        self.waits = True
        """No token has come yet."""

    def place(self, instances: Sequence[int]) -> int:
        """Choose among instances, of which there is at least one: the index of the choice."""
        decision = self._router.place(self._id, self._prompt, self._router.ranks(instances), self._clock())
        if self._sharing is not None:
            self._shared = self._sharing.sent(decision.rank, self._prompt.names, decision.to_prefill)
        if log.isEnabledFor(logging.DEBUG):
            whole = len(self._prompt.names)
            log.debug(
                "instance %014x: %d of %d blocks cached, cost %.3f",
                decision.rank.instance, decision.overlap_blocks, whole, decision.cost,
            )  # fmt: skip
        return decision.position

    def prefilled(self) -> None:
        """Its first token came."""
        self.waits = False
        self._router.prefilled(self._id)
        if self._shared is not None:
            self._shared.prefilled()

    def close(self) -> None:
        """It is over."""
        self._router.ended(self._id)
        if self._shared is not None:
            self._shared.freed()


class KvRouting:
    """The routing of one model set."""

    def __init__(self, options: KvOptions, block_size: int, random: Random, clock: Callable[[], float]) -> None:
        self.router = KvRouter(
            block_size, options.weights(), options.temperature, random.random, options.predict_seconds
        )
        self.sharing: Sharing | None = None
        """Set where other frontends are told."""
        self._clock = clock
        self._numbers = itertools.count()

    def ticket(self, request: PreprocessedRequest) -> Ticket:
        """For one attempt of a request."""
        prompt = self.router.prompt(request.token_ids)
        return Ticket(next(self._numbers), self.router, prompt, self._clock, self.sharing)

    def left(self, key: InstanceKey) -> None:
        """An instance is gone."""
        self.router.left(key.id)
