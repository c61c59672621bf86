"""KV-aware routing of one model's requests: tickets, over `dynamo.llm.kv`.

What a worker caches is predicted from what was sent to it, unless its own events are followed
(`dynamo.llm.kv_events.subscriber`).
A `KvAttempt` is one attempt of one choice. `generation/attempt.py` closes it however the attempt ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from dynamo.frontend.openai.nvext import RouterConfigOverride
from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.llm.kv.cost import Weights
from dynamo.llm.kv.image_blocks import cached_prompt, is_plain
from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.scheduler import Decision, KvScheduler, Prompt, rivals
from dynamo.llm.kv_events.replica_sync import Shared, Sharing
from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.names import InstanceKey

OUTPUTS_EVERY: Final = 0.1


class KvAttempt:
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
        self, number: int, router: KvScheduler, prompt: Prompt, clock: Callable[[], float], *,
        sharing: Sharing | None = None, weighing: tuple[Weights, float] | None = None,
        elsewhere: bool = False, outputs: Outputs | None = None,
    ) -> None:  # fmt: skip
        self._elsewhere = elsewhere
        self._id, self._router, self._prompt, self._clock = str(number), router, prompt, clock
        self._sharing = sharing
        self._shared: Shared | None = None
        self._weighing = weighing
        self.decision: Decision | None = None
        """Once it is placed."""
        self.outputs = outputs
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
            self._shared = self._sharing.sent(decision.rank, self._prompt.hashes, decision.to_prefill)
        return instances.index(decision.rank.instance) if router.spread else decision.position

    def others(self, most: int) -> tuple[tuple[int, float], ...]:
        """Return the cheapest instances that weren't chosen, with their costs, and let go of all costs."""
        decision = self.decision
        if decision is None or not decision.prices:
            return ()
        self.decision = decision._replace(prices=(), ranks=())
        return rivals(decision, len(self._prompt.hashes), most)

    def look(self, instances: Sequence[int], ranks: Sequence[Rank] | None = None) -> int:
        """Choose as `place` does, but count nothing."""
        router = self._router
        self.decision = router.query(self._prompt, ranks or router.ranks(instances), self._weighing)
        return instances.index(self.decision.rank.instance)

    @property
    def prompt_blocks(self) -> int:
        """Count the whole blocks of its prompt."""
        return len(self._prompt.hashes)

    def watch(self, produced: Callable[[], int]) -> None:
        """Count the answer's blocks from now on; `produced` says how many tokens it has so far."""
        if self.outputs is not None:
            self.outputs.began(self._id, self._prompt.tokens, produced)

    def prefilled(self) -> None:
        """Take the prompt off the worker's load: its first token came."""
        self.waits = False
        self._router.prefilled(self._id)
        if self._shared is not None:
            self._shared.prefilled()

    def close(self) -> None:
        """Forget it: it is over."""
        self._router.ended(self._id)
        if self.outputs is not None:
            self.outputs.ended(self._id)
        if self._shared is not None:
            self._shared.freed()


class Outputs:
    """Counts the blocks that answers fill, at most every `OUTPUTS_EVERY` seconds: nothing is done per token.

    Nobody shares these blocks, and other frontends don't hear of them, as in NVIDIA Dynamo.
    """

    def __init__(self, router: KvScheduler, clock: Callable[[], float]) -> None:
        self._router, self._clock = router, clock
        self._running: dict[str, tuple[int, Callable[[], int]]] = {}
        self._grown: dict[str, int] = {}
        self._looked_at = float("-inf")

    def began(self, request: str, tokens: int, produced: Callable[[], int]) -> None:
        """Note a request that runs; `produced` says how many tokens its answer has, beside `tokens` of its prompt."""
        self._running[request] = (tokens % self._router.block_size, produced)

    def ended(self, request: str) -> None:
        """Forget it: it is over."""
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

    def __init__(
        self, options: KvOptions, block_size: int, random: Random, clock: Callable[[], float],
        sharing: Sharing | None = None,
    ) -> None:  # fmt: skip
        """Begin; `sharing` tells other frontends what is sent."""
        self.router = KvScheduler(
            block_size, options.weights(), options.temperature, random.random, options.predict_seconds
        )
        self.outputs = Outputs(self.router, clock) if options.track_output_blocks else None
        self._options, self._clock, self._sharing = options, clock, sharing
        self._numbers = itertools.count()

    def ticket(self, request: PreprocessedRequest, changes: RouterConfigOverride | None = None) -> KvAttempt:
        """Make what one attempt of a request needs; `changes`: what it says of weights."""
        if is_plain(request):
            prompt = self.router.prompt(request.token_ids)
        else:
            tokens, media = cached_prompt(request, self.router.block_size)
            prompt = self.router.prompt(tokens, media=media)
        elsewhere = request.computed_elsewhere
        weighing = None if changes is None else self._options.with_changes(changes)
        if elsewhere:
            weighing = self._options.to_decode(weighing)
        return KvAttempt(
            next(self._numbers), self.router, prompt, self._clock, sharing=self._sharing, weighing=weighing,
            elsewhere=elsewhere, outputs=self.outputs,
        )  # fmt: skip

    def left(self, key: InstanceKey) -> None:
        """Forget an instance that is gone."""
        self.router.left(key.id)
