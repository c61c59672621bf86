"""The instances that serve one model card, and the choice among them for each attempt of a request."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from itertools import chain
from random import Random
from typing import Any, Final, Protocol
from zlib import crc32

from dynamo.frontend.limits.deadly_requests import Suspects
from dynamo.frontend.limits.settings import MigrationSettings
from dynamo.frontend.routing.admission_gate import AdmissionGate
from dynamo.frontend.routing.admission_policy import Load
from dynamo.frontend.routing.candidates import Candidate, LoadTicket, load
from dynamo.frontend.routing.hints import NO_HINTS, Hints
from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.frontend.routing.kv_routing import KvAttempt, KvRouting
from dynamo.frontend.routing.model_loader import LoadedModel
from dynamo.frontend.routing.session_affinity import Sessions
from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.scheduler import rank_count
from dynamo.llm.kv_events.replica_sync import Sharing
from dynamo.llm.model_card import EMBEDDING, ModelCard
from dynamo.llm.processing.embeddings import EmbeddingRequest
from dynamo.llm.protocols import PreprocessedRequest, TextRequest
from dynamo.runtime.errors import NoInstances
from dynamo.runtime.load_balancing import RouterMode, select
from dynamo.runtime.names import EndpointPath, InstanceKey

TOKENISING: Final = max(2, os.cpu_count() or 1)
"""Long prompts of one model that are tokenised at once. asyncio has four threads more: a flood for one model takes all
cores where nobody else wants them, and never all threads."""


AnyRequest = PreprocessedRequest | TextRequest | EmbeddingRequest
"""What workers are sent."""


class View(Protocol):
    """The part of `dynamo.runtime`'s `InstanceView` that the pool needs."""

    @property
    def version(self) -> int: ...

    @property
    def synced(self) -> bool: ...

    def routable(self, path: EndpointPath) -> list[InstanceKey]: ...

    def pending(self, key: InstanceKey) -> None: ...

    def loaded(self, key: InstanceKey) -> None: ...

    def failed(self, key: InstanceKey, reason: str) -> None: ...

    def batch(self) -> AbstractContextManager[None]: ...


class Worker(Candidate):
    """One instance of a set, with what this frontend has open there."""

    instance: Any = None
    key: InstanceKey | None = None
    ranks: int = 1
    """Data-parallel ranks; the two figures below are those of one."""
    total_blocks: int = 0
    batched_tokens: int = 0
    max_blocks: float = float("inf")
    """Over this, or over `max_tokens`, it is busy; `BusyThresholds` says so."""
    max_tokens: float = float("inf")
    last_ttft: float | None = None
    """Of the latest request: seconds to its first token, and its prompt's tokens."""
    last_isl: int | None = None
    last_itl: float | None = None
    """Of the latest answer with several tokens: mean seconds between two."""
    prompt_tokens: int = 0
    """Of all answers that are over, and how many of these tokens were cached."""
    cached_tokens: int = 0

    def figure(self, figures: dict[str, Any]) -> None:
        """Take over the figures that the instance published."""
        self.running = int(figures.get("running") or 0)
        self.waiting = int(figures.get("waiting") or 0)
        self.ranks = rank_count(figures)
        self.capacity = int(figures.get("max_num_seqs") or 0) * self.ranks
        self.total_blocks = int(figures.get("total_kv_blocks") or 0)
        self.batched_tokens = int(figures.get("max_num_batched_tokens") or 0)


class ModelSet:
    """The instances that serve one card."""

    def __init__(
        self, card: ModelCard, view: View, mode: RouterMode, random: Random, *, kv: KvOptions | None = None,
        sessions: Sessions | None = None, suspects: Suspects | None = None, sharing: Sharing | None = None,
    ) -> None:  # fmt: skip
        self.card, self.name, self.digest = card, card.name, card.digest
        self.created = int(time.time())
        self.model: LoadedModel | None = None
        self.failure: str | None = None
        self.workers: dict[InstanceKey, Worker] = {}
        self.loading: asyncio.Task[None] | None = None
        self._view, self._random, self._turn = view, random, 0
        self.mode = mode
        self.sessions = sessions
        """There where sessions stay with their worker."""
        self.kv: KvRouting | None = None
        """Kept in kv mode, for requests that have tokens and are answered with some."""
        if kv is not None and card.model_input == "tokens" and not card.same_types([EMBEDDING]):
            self.kv = KvRouting(kv, card.kv_cache_block_size, random, time.monotonic, sharing)
        self._picked_version = -1
        self._candidates: list[Worker] = []
        self._several = False
        """Some instance has several data-parallel ranks."""
        self.migration = MigrationSettings()
        self.suspects = suspects
        """Of all sets: one ends with its last worker, and what has killed that comes again."""
        self.long_prompts = asyncio.Semaphore(TOKENISING)
        """Held while one is tokenised."""
        self.gate: AdmissionGate | None = None
        """There where the model has thresholds or a queue."""

    @property
    def served(self) -> bool:
        """Tell whether requests can be answered."""
        return self.model is not None and bool(self.workers)

    @property
    def reachable(self) -> bool:
        """Tell whether some of its instances can be asked now."""
        return bool(self._routable())

    @property
    def routable(self) -> frozenset[InstanceKey]:
        """Return those that can be asked now."""
        return frozenset(worker.key for worker in self._routable() if worker.key is not None)

    def ticket(self, request: AnyRequest, hints: Hints = NO_HINTS) -> KvAttempt | LoadTicket | None:
        """Return what routing keeps of an attempt, until that is closed; None where it keeps nothing."""
        if isinstance(request, EmbeddingRequest) and self.kv is None and self.gate is not None:
            return LoadTicket(request.tokens, self.card.kv_cache_block_size)
        if not isinstance(request, PreprocessedRequest):
            return None
        if self.kv is not None:
            return self.kv.ticket(request, hints.weights)
        if self.gate is None:
            return None
        return LoadTicket(
            request.prompt_tokens, self.card.kv_cache_block_size, computed_elsewhere=request.computed_elsewhere
        )

    def loads(self) -> Iterator[Load]:
        """Return the load of each instance that can be asked now."""
        if self.kv is not None and self.kv.outputs is not None:
            self.kv.outputs.look()
        if self._several:
            return chain.from_iterable(self._loads(worker) for worker in self._routable())
        return map(self._load, self._routable())

    def loads_of(self, instance: int, dp_rank: int | None) -> list[Load]:
        """Return the loads of its data-parallel ranks, or of one; none: it isn't there."""
        loads = next((self._loads(worker) for worker in self._routable() if worker.id == instance), [])
        return loads if dp_rank is None or len(loads) == 1 else loads[dp_rank : dp_rank + 1]

    def _loads(self, worker: Worker) -> list[Load]:
        """Return the load of each of its ranks; one for all where nobody knows which of them does what."""
        return [self._load(worker, rank) for rank in range(1 if self.kv is None else worker.ranks)]

    def load_of(self, worker: Worker, dp_rank: int) -> Load:
        """Return the load of one of its ranks, as far as that is known."""
        return self._load(worker, dp_rank)

    def _load(self, worker: Worker, dp_rank: int = 0) -> Load:
        if self.kv is not None:
            # Of all frontends that tell each other; the others' requests are not known outside kv mode.
            tokens, blocks, _ = self.kv.router.activity.load(Rank(worker.id, dp_rank))
        elif self.card.model_input == "tokens":
            tokens, blocks = worker.prefill_tokens // worker.ranks, worker.blocks // worker.ranks
        else:
            # Without tokens there are no blocks: one of its sequences stands for one of them.
            return Load(0, worker.open_streams, worker.capacity, 0)
        return Load(tokens, blocks, worker.total_blocks, worker.batched_tokens)

    def choose(
        self,
        excluded: Collection[InstanceKey] = (),
        ticket: KvAttempt | LoadTicket | None = None,
        hints: Hints = NO_HINTS,
    ) -> Worker:
        """Return the instance for the next attempt; `NoInstances` where none is left. A `ticket` is placed there."""
        candidates = self._among(excluded, hints)
        if isinstance(ticket, KvAttempt):
            ranks = self._ranks(candidates, hints) if self._several else None
            chosen = candidates[ticket.place([worker.id for worker in candidates], ranks)]
        else:
            chosen = self._pick(candidates)
            if ticket is not None:
                ticket.placed(chosen)
        if hints.session and self.sessions is not None and hints.instance is None:
            self._bind(hints, chosen, excluded)
        return chosen

    def query(
        self, request: PreprocessedRequest | TextRequest, hints: Hints
    ) -> tuple[Worker, KvAttempt | LoadTicket | None]:
        """Return where an attempt would go; nothing is counted, but round-robin's turn passes."""
        candidates, ticket = self._among((), hints), self.ticket(request, hints)
        if isinstance(ticket, KvAttempt):
            ranks = self._ranks(candidates, hints) if self._several else None
            return candidates[ticket.look([worker.id for worker in candidates], ranks)], ticket
        return self._pick(candidates), None

    def rank(self, worker: Worker, ticket: KvAttempt | LoadTicket | None, hints: Hints) -> int | None:
        """Return which of a worker's several ranks an attempt goes to; None: its least busy one, as it will find."""
        if isinstance(ticket, KvAttempt) and ticket.decision is not None:
            return ticket.decision.rank.dp_rank
        if hints.dp_rank is None and hints.session and self.sessions is not None:
            return crc32(hints.session.encode()) % worker.ranks  # a session's prompts are in one rank's cache
        return hints.dp_rank

    def most_ranks(self, instance: int | None = None) -> int:
        """Count the data-parallel ranks of an instance, or of the one that has most; 0: there is none."""
        return max((worker.ranks for worker in self.workers.values() if instance in (None, worker.id)), default=0)

    def figured(self, worker: Worker, figures: dict[str, Any]) -> None:
        """Take over the figures that one of its instances has published."""
        worker.figure(figures)
        self._several = worker.ranks > 1 or (self._several and self.most_ranks() > 1)
        if self.kv is not None:
            self.kv.router.has_ranks(worker.id, worker.ranks)

    def ended(self, hints: Hints) -> None:
        """Note that an attempt of a session's request is over."""
        if self.sessions is not None and hints.instance is None:
            self.sessions.ended((self.name, hints.session), time.monotonic(), closes=hints.closes)

    def bound(self, hints: Hints) -> int | None:
        """Return the instance that the request's session is bound to; None: it has none, or names its worker."""
        if not hints.session or self.sessions is None or hints.instance is not None:
            return None
        return self.sessions.find((self.name, hints.session), time.monotonic())

    def _among(self, excluded: Collection[InstanceKey], hints: Hints) -> list[Worker]:
        """Return those to choose from: one at least."""
        candidates = self._routable()
        if excluded:
            candidates = [worker for worker in candidates if worker.key not in excluded]
        if hints.instance is not None:
            candidates = [worker for worker in candidates if worker.id == hints.instance]
        if hints.dp_rank is not None:
            candidates = [worker for worker in candidates if hints.dp_rank < worker.ranks]
        if not candidates:
            raise NoInstances(self._nobody(hints))
        if self.gate is not None:
            if self.gate.thresholds.any:
                candidates = self._not_busy(candidates) or candidates
            if self.kv is None:
                # In mode kv the cost knows of prefill; the others would send to who has none of the room waited for.
                candidates = self.gate.with_room(candidates, self._load)
        if hints.session and (bound := self.bound(hints)) is not None:
            return [worker for worker in candidates if worker.id == bound] or candidates
        return candidates

    def _not_busy(self, workers: list[Worker]) -> list[Worker]:
        """Return the workers that aren't busy, as `Thresholds.busy` has it, but for all at once.

        A decision has a load for each.
        """
        if self.kv is not None:
            if self._several:
                return [worker for worker in workers if any(self._fits(worker, rank) for rank in range(worker.ranks))]
            router = self.kv.router
            tokens, blocks, *_ = router.activity.loads(router.ranks([worker.id for worker in workers]), ())
            loads = zip(workers, tokens, blocks, strict=True)
            return [worker for worker, more, used in loads if used <= worker.max_blocks and more <= worker.max_tokens]
        if self.card.model_input == "tokens":
            return [w for w in workers if w.blocks <= w.max_blocks and w.prefill_tokens <= w.max_tokens]
        return [worker for worker in workers if worker.open_streams <= worker.max_blocks]

    def _ranks(self, workers: list[Worker], hints: Hints) -> list[Rank]:
        """Return those that a request may go to, where some instance has several; not the busy ones if possible."""
        wanted = hints.dp_rank
        pairs = [
            (worker, rank) for worker in workers for rank in ((wanted,) if wanted is not None else range(worker.ranks))
        ]
        if self.gate is not None and self.gate.thresholds.any:
            pairs = [(worker, rank) for worker, rank in pairs if self._fits(worker, rank)] or pairs
        return [Rank(worker.id, rank) for worker, rank in pairs]

    def _fits(self, worker: Worker, dp_rank: int) -> bool:
        """Tell whether one of its ranks is over no threshold, in mode kv."""
        now = self._load(worker, dp_rank)
        return now.blocks <= worker.max_blocks and now.prefill_tokens <= worker.max_tokens

    def _pick(self, candidates: list[Worker]) -> Worker:
        if len(candidates) == 1:
            return candidates[0]
        self._turn += 1
        return select(self.mode, candidates, load, self._turn, self._random)

    def _bind(self, hints: Hints, chosen: Worker, excluded: Collection[InstanceKey]) -> None:
        sessions, key, now = self.sessions, (self.name, hints.session), time.monotonic()
        assert sessions is not None
        bound = sessions.find(key, now)
        stays = any(worker.id == bound and worker.key not in excluded for worker in self._routable())
        sessions.sent(key, chosen.id, now, stays=stays)

    def _nobody(self, hints: Hints) -> str:
        if hints.instance is None and hints.dp_rank is not None:
            return (
                f"{hints.rank_by}: no worker of model '{self.name}' with rank {hints.dp_rank} can take the request now"
            )
        if hints.instance is None:
            return f"no worker of model '{self.name}' can take the request now"
        return f"{hints.pinned_by}: instance {hints.instance} doesn't serve model '{self.name}' now"

    def _routable(self) -> list[Worker]:
        if self._picked_version != self._view.version:
            self._picked_version = self._view.version
            paths = {key.path for key in self.workers}
            keys = [key for path in sorted(paths) for key in self._view.routable(path)]
            self._candidates = [self.workers[key] for key in keys if key in self.workers]
        return self._candidates

    def changed(self) -> None:
        """Look at the instances anew: one joined or left."""
        self._picked_version = -1

    def left(self, key: InstanceKey) -> None:
        """Forget an instance that is gone, and its cache with it."""
        self.workers.pop(key, None)
        if self.kv is not None:
            self.kv.left(key)
        self.changed()
