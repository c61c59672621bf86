"""The prefill workers that are there, and the facts by which `disaggregation.py` says what goes to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import no_such_rank, pinned_gone
from dynamo.frontend.routing.disaggregation import Rules, Situation, stays
from dynamo.frontend.routing.hints import NO_HINTS, Hints
from dynamo.frontend.routing.kv_routing import KvAttempt, KvRouting
from dynamo.frontend.routing.model_set import AnyRequest, ModelSet, Worker
from dynamo.frontend.routing.report import Route, route_of
from dynamo.llm.model_card import ModelCard
from dynamo.llm.protocols import PreprocessedRequest, TextRequest
from dynamo.runtime.errors import NoInstances
from dynamo.runtime.names import InstanceKey

UNREACHABLE: Final = "no prefill worker can be asked"
_OF_CACHES: Final = ("kv_events", "kv_cache_block_size", "total_kv_blocks")
"""Figures of an instance by which its cache is followed; a program may begin to publish when it is served already."""


def follows_anew(before: Mapping[str, Any] | None, figures: Mapping[str, Any]) -> bool:
    """Tell whether an instance that says these figures now is followed otherwise; `before` None: it is new."""
    return before is None or any(before.get(name) != figures.get(name) for name in _OF_CACHES)


class Prefills:
    """The prefill workers, as sets of one namespace and card."""

    def __init__(
        self, make: Callable[[ModelCard], ModelSet], follow: Callable[[Any, KvRouting, str], None],
        rules: Rules | None = None,
    ) -> None:  # fmt: skip
        self._make, self._follow, self._rules = make, follow, rules or Rules()
        self._sets: dict[tuple[str, str], ModelSet] = {}
        self.any = False
        """Some worker is there, of whichever model; each choice looks at it."""
        self._of: dict[InstanceKey, tuple[str, str]] = {}

    def sets(self) -> list[ModelSet]:
        """Return all of them."""
        return list(self._sets.values())

    def joined(self, card: ModelCard, instance: Any) -> None:
        """Take in a worker that is there, or says something new of itself."""
        key: InstanceKey = instance.key
        place = (key.path.namespace, card.digest)
        if self._of.get(key, place) != place:
            self.left(key)
        self._of[key] = place
        pool = self._sets.get(place)
        if pool is None:
            pool = self._sets[place] = self._make(card)
            self.any = True
        worker = pool.workers.get(key)
        before = None if worker is None else worker.instance.figures
        if worker is None:
            worker = pool.workers[key] = Worker(id=key.id, key=key)
            pool.changed()
        worker.instance = instance
        pool.figured(worker, instance.figures)
        if pool.kv is not None and follows_anew(before, instance.figures):
            self._follow(instance, pool.kv, pool.name)

    def left(self, key: InstanceKey) -> bool:
        """Forget a worker that is gone; False where it was none of them."""
        place = self._of.pop(key, None)
        if place is None:
            return False
        pool = self._sets[place]
        pool.left(key)
        if not pool.workers:
            del self._sets[place]
            self.any = bool(self._sets)
        return True

    def has(self, key: InstanceKey) -> bool:
        """Tell whether it is one of them."""
        return key in self._of

    def of(self, models: ModelSet, wanted: int | None = None) -> ModelSet | None:
        """Return the pool of which somebody can be asked now; None: there are none.

        `wanted`: that instance is among them.
        """
        return next((pool for pool in self._for(models, wanted) if pool.reachable), None)

    def settle(self, sets: Sequence[ModelSet], hints: Hints) -> Hints:
        """Check what a request says of its prefill worker; return hints that name it as its only one where it does all.

        Raises the `ApiError` of a worker or rank that isn't there. `sets`: those of the request's model.
        """
        wanted, rank = hints.prefill_instance, hints.prefill_rank
        pools = [pool for decoders in sets for pool in self._for(decoders, wanted)]
        if pools:
            most = max(pool.most_ranks(wanted) for pool in pools)
            if rank is not None and rank >= most:
                raise no_such_rank(hints.prefill_rank_by, rank, "the prefill worker", most)
        elif wanted is not None:
            there = any(key.id == wanted for decoders in sets for key in decoders.workers)
            if not there or hints.instance not in (None, wanted):
                raise pinned_gone(hints.prefill_by, wanted, sets[0].name)
            return msgspec.structs.replace(
                hints, instance=wanted, pinned_by=hints.pinned_by or hints.prefill_by, prefill_instance=None,
                one_worker=True,
            )  # fmt: skip
        return hints

    def _for(self, models: ModelSet, wanted: int | None) -> Iterator[ModelSet]:
        """Return those that make the tokens of these workers, in a namespace of theirs."""
        namespaces = {key.path.namespace for key in models.workers} if self._sets else ()
        for (namespace, _), pool in self._sets.items():
            there = wanted is None or any(key.id == wanted for key in pool.workers)
            if there and namespace in namespaces and pool.card.same_tokens(models.card):
                yield pool

    def for_prompt(self, models: ModelSet, request: AnyRequest, hints: Hints) -> tuple[ModelSet | None, str]:
        """Return where a request's prompt goes: to one of a set, or nowhere else than its answer.

        Then, if that was decided and could be otherwise, why.
        """
        if not isinstance(request, PreprocessedRequest) or request.stop_conditions.max_tokens == 0 or hints.one_worker:
            return None, ""
        # Where nobody can go on with it, the prompt needn't be computed either.
        if not models.reachable or not any(self._for(models, None)):
            return None, ""
        pool = self.of(models, hints.prefill_instance)
        if pool is None:
            return None, UNREACHABLE
        if not self._rules.any or hints.prefill_instance is not None:
            return pool, ""
        reason = stays(self._rules, self._situation(pool, models, request, hints))
        return (None, reason) if reason else (pool, "")

    def route(self, models: ModelSet, request: PreprocessedRequest | TextRequest, hints: Hints) -> Route | None:
        """Return where its prompt would go; None: where its answer comes from."""
        pool, _ = self.for_prompt(models, request, hints)
        if pool is None:
            return None
        own = prefill_hints(hints)
        try:
            worker, ticket = pool.query(request, own)
        except NoInstances:
            return None
        rank = 0 if worker.ranks == 1 else pool.rank(worker, ticket, own)
        return route_of(worker.id, pool.mode.value, own, ticket, rank)

    def _situation(self, pool: ModelSet, models: ModelSet, request: PreprocessedRequest, hints: Hints) -> Situation:
        """Return the facts to decide by; what isn't known of caches counts as not cached: outside kv mode all of it."""
        tokens = request.prompt_tokens
        try:
            cached, usage = _at_decode(models, request, hints)
            batches = _at_prefill(pool, request, prefill_hints(hints)) if self._rules.looks_at_prefill else None
        except NoInstances:
            return Situation(tokens)
        return Situation(tokens, cached, batches, usage)


def prefill_hints(hints: Hints) -> Hints:
    """Return what a request says of its prefill worker, as hints for the choice among these."""
    if hints.prefill_instance is None and hints.prefill_rank is None and hints.weights is None:
        return NO_HINTS
    return Hints(
        instance=hints.prefill_instance, pinned_by=hints.prefill_by, dp_rank=hints.prefill_rank,
        rank_by=hints.prefill_rank_by, weights=hints.weights,
    )  # fmt: skip


def _at_decode(models: ModelSet, request: PreprocessedRequest, hints: Hints) -> tuple[int, float | None]:
    """Return how many tokens of the prompt are cached where it would be decoded, and how full that worker is."""
    if models.kv is None:
        return 0, None
    worker, ticket = models.query(request, hints)
    if not isinstance(ticket, KvAttempt) or ticket.decision is None:
        return 0, None
    load = models.load_of(worker, ticket.decision.rank.dp_rank)
    usage = load.blocks / load.total_blocks if load.total_blocks else None
    return request.prompt_tokens - ticket.decision.to_prefill, usage


def _at_prefill(pool: ModelSet, request: PreprocessedRequest, hints: Hints) -> float | None:
    """Return what the worker that it would go to has to compute, in batches."""
    worker, ticket = pool.query(request, hints)
    rank = ticket.decision.rank.dp_rank if isinstance(ticket, KvAttempt) and ticket.decision is not None else 0
    load = pool.load_of(worker, rank)
    return load.prefill_tokens / load.batched_tokens if load.batched_tokens else None
