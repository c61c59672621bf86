"""The instances that serve one model card, and the choice among them for each attempt of a request."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Iterator
from itertools import chain
from random import Random
from typing import Any, Final, Protocol
from zlib import crc32

from dynamo.frontend.admission import Load
from dynamo.frontend.affinity import Sessions
from dynamo.frontend.gate import Gate
from dynamo.frontend.hints import NO_HINTS, Hints
from dynamo.frontend.kv import KvOptions, KvRouting, Ticket
from dynamo.frontend.loading import LoadedModel
from dynamo.frontend.routing import SELECTORS, Candidate, Counted, Turn
from dynamo.llm.card import EMBEDDING, ModelCard
from dynamo.llm.embeddings import EmbeddingRequest
from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.router import rank_count
from dynamo.llm.protocols import PreprocessedRequest, TextRequest
from dynamo.runtime.errors import NoInstances
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


class Seat(Candidate):
    """One instance of a set, with what this frontend has open there."""

    instance: Any = None
    key: InstanceKey | None = None
    ranks: int = 1
    """Data-parallel ranks; the two figures below are those of one."""
    total_blocks: int = 0
    batched_tokens: int = 0
    max_blocks: float = float("inf")
    """Over this, or over `max_tokens`, it is busy; `Gates` says so."""
    max_tokens: float = float("inf")

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
        self, card: ModelCard, view: View, mode: str, random: Random, kv: KvOptions | None,
        sessions: Sessions | None = None,
    ) -> None:  # fmt: skip
        self.card, self.name, self.digest = card, card.name, card.digest
        self.created = int(time.time())
        self.model: LoadedModel | None = None
        self.failure: str | None = None
        self.seats: dict[InstanceKey, Seat] = {}
        self.loading: asyncio.Task[None] | None = None
        self._view, self._random, self._turn = view, random, Turn()
        self.mode, self._select = mode, SELECTORS[mode]
        self.sessions = sessions
        """There where sessions stay with their worker."""
        self.kv: KvRouting | None = None
        """Kept in kv mode, for requests that have tokens and are answered with some."""
        if kv is not None and card.model_input == "tokens" and not card.same_types([EMBEDDING]):
            self.kv = KvRouting(kv, card.kv_cache_block_size, random, time.monotonic)
        self._picked_version = -1
        self._candidates: list[Seat] = []
        self._several = False
        """Some instance has several data-parallel ranks."""
        self.migration_limit = 0
        self.long_prompts = asyncio.Semaphore(TOKENISING)
        """Held while one is tokenised."""
        self.gate: Gate | None = None
        """There where the model has thresholds or a queue."""

    @property
    def served(self) -> bool:
        """Requests can be answered."""
        return self.model is not None and bool(self.seats)

    @property
    def reachable(self) -> bool:
        """Some of its instances can be asked now."""
        return bool(self._routable())

    @property
    def routable(self) -> frozenset[InstanceKey]:
        """Those that can be asked now."""
        return frozenset(seat.key for seat in self._routable() if seat.key is not None)

    def ticket(self, request: AnyRequest, hints: Hints = NO_HINTS) -> Ticket | Counted | None:
        """What routing keeps of an attempt, until that is closed; None where it keeps nothing."""
        if isinstance(request, EmbeddingRequest) and self.kv is None and self.gate is not None:
            return Counted(request.tokens, self.card.kv_cache_block_size)
        if not isinstance(request, PreprocessedRequest):
            return None
        if self.kv is not None:
            return self.kv.ticket(request, hints.weights)
        if self.gate is None:
            return None
        return Counted(
            len(request.token_ids), self.card.kv_cache_block_size, computed_elsewhere=request.computed_elsewhere
        )

    def loads(self) -> Iterator[Load]:
        """Of each instance that can be asked now."""
        if self.kv is not None and self.kv.outputs is not None:
            self.kv.outputs.look()
        if self._several:
            return chain.from_iterable(self._loads(seat) for seat in self._routable())
        return map(self._load, self._routable())

    def loads_of(self, instance: int, dp_rank: int | None) -> list[Load]:
        """Of its data-parallel ranks, or of one; none: it isn't there."""
        found = next((self._loads(seat) for seat in self._routable() if seat.id == instance), [])
        return found if dp_rank is None or len(found) == 1 else found[dp_rank : dp_rank + 1]

    def _loads(self, seat: Seat) -> list[Load]:
        """Of each of its ranks; one for all of them where nobody knows which of them does what."""
        return [self._load(seat, rank) for rank in range(1 if self.kv is None else seat.ranks)]

    def load_of(self, seat: Seat, dp_rank: int) -> Load:
        """Of one of its ranks, as far as that is known."""
        return self._load(seat, dp_rank)

    def _load(self, seat: Seat, dp_rank: int = 0) -> Load:
        if self.kv is not None:
            # Of all frontends that tell each other; the others' requests are not known outside kv mode.
            tokens, blocks, _ = self.kv.router.activity.load(Rank(seat.id, dp_rank))
        elif self.card.model_input == "tokens":
            tokens, blocks = seat.prefill_tokens // seat.ranks, seat.blocks // seat.ranks
        else:
            # Without tokens there are no blocks: one of its sequences stands for one of them.
            return Load(0, seat.open_streams, seat.capacity, 0)
        return Load(tokens, blocks, seat.total_blocks, seat.batched_tokens)

    def choose(
        self, excluded: Collection[InstanceKey] = (), ticket: Ticket | Counted | None = None, hints: Hints = NO_HINTS
    ) -> Seat:
        """The instance for the next attempt; `NoInstances` where none is left. A `ticket` is placed there."""
        candidates = self._among(excluded, hints)
        if isinstance(ticket, Ticket):
            ranks = self._ranks(candidates, hints) if self._several else None
            chosen = candidates[ticket.place([seat.id for seat in candidates], ranks)]
        else:
            chosen = self._pick(candidates)
            if ticket is not None:
                ticket.placed(chosen)
        if hints.session and self.sessions is not None and hints.instance is None:
            self._bind(hints, chosen, excluded)
        return chosen

    def query(self, request: PreprocessedRequest | TextRequest, hints: Hints) -> tuple[Seat, Ticket | Counted | None]:
        """Where an attempt would go; nothing is counted, but round-robin's turn passes."""
        candidates, ticket = self._among((), hints), self.ticket(request, hints)
        if isinstance(ticket, Ticket):
            ranks = self._ranks(candidates, hints) if self._several else None
            return candidates[ticket.look([seat.id for seat in candidates], ranks)], ticket
        return self._pick(candidates), None

    def rank(self, seat: Seat, ticket: Ticket | Counted | None, hints: Hints) -> int | None:
        """Which of a worker's several ranks an attempt goes to; None: its least busy one, as it will find."""
        if isinstance(ticket, Ticket) and ticket.decision is not None:
            return ticket.decision.rank.dp_rank
        if hints.dp_rank is None and hints.session and self.sessions is not None:
            return crc32(hints.session.encode()) % seat.ranks  # a session's prompts are in one rank's cache
        return hints.dp_rank

    def most_ranks(self, instance: int | None = None) -> int:
        """Data-parallel ranks of an instance, or of the one that has most; 0: there is none."""
        return max((seat.ranks for seat in self.seats.values() if instance in (None, seat.id)), default=0)

    def figured(self, seat: Seat, figures: dict[str, Any]) -> None:
        """One of its instances has published figures."""
        seat.figure(figures)
        self._several = self.most_ranks() > 1
        if self.kv is not None:
            self.kv.router.has_ranks(seat.id, seat.ranks)

    def ended(self, hints: Hints) -> None:
        """An attempt of a session's request is over."""
        if self.sessions is not None and hints.instance is None:
            self.sessions.ended((self.name, hints.session), time.monotonic(), closes=hints.closes)

    def _among(self, excluded: Collection[InstanceKey], hints: Hints) -> list[Seat]:
        """Those to choose from: one at least."""
        candidates = self._routable()
        if excluded:
            candidates = [seat for seat in candidates if seat.key not in excluded]
        if hints.instance is not None:
            candidates = [seat for seat in candidates if seat.id == hints.instance]
        if hints.dp_rank is not None:
            candidates = [seat for seat in candidates if hints.dp_rank < seat.ranks]
        if not candidates:
            raise NoInstances(self._nobody(hints))
        if self.gate is not None:
            if self.gate.thresholds.any:
                candidates = self._not_busy(candidates) or candidates
            if self.kv is None:
                # In mode kv the cost knows of prefill; the others would send to who has none of the room waited for.
                candidates = self.gate.with_room(candidates, self._load)
        if hints.session and self.sessions is not None and hints.instance is None:
            bound = self.sessions.find((self.name, hints.session), time.monotonic())
            found = [seat for seat in candidates if seat.id == bound]
            hints.kept = bool(found)
            return found or candidates
        return candidates

    def _not_busy(self, seats: list[Seat]) -> list[Seat]:
        """As `Thresholds.busy` of each one's load, but for all at once: a decision has one for every worker."""
        if self.kv is not None:
            if self._several:
                return [seat for seat in seats if any(self._fits(seat, rank) for rank in range(seat.ranks))]
            router = self.kv.router
            tokens, blocks, *_ = router.activity.loads(router.ranks([seat.id for seat in seats]), ())
            each = zip(seats, tokens, blocks, strict=True)
            return [seat for seat, more, used in each if used <= seat.max_blocks and more <= seat.max_tokens]
        if self.card.model_input == "tokens":
            return [one for one in seats if one.blocks <= one.max_blocks and one.prefill_tokens <= one.max_tokens]
        return [seat for seat in seats if seat.open_streams <= seat.max_blocks]

    def _ranks(self, seats: list[Seat], hints: Hints) -> list[Rank]:
        """Those that a request may go to, where some instance has several; not the busy ones if possible."""
        wanted = hints.dp_rank
        each = [(seat, rank) for seat in seats for rank in ((wanted,) if wanted is not None else range(seat.ranks))]
        if self.gate is not None and self.gate.thresholds.any:
            each = [(seat, rank) for seat, rank in each if self._fits(seat, rank)] or each
        return [Rank(seat.id, rank) for seat, rank in each]

    def _fits(self, seat: Seat, dp_rank: int) -> bool:
        """One of its ranks is over no threshold, in mode kv."""
        load = self._load(seat, dp_rank)
        return load.blocks <= seat.max_blocks and load.prefill_tokens <= seat.max_tokens

    def _pick(self, candidates: list[Seat]) -> Seat:
        chosen = candidates[0] if len(candidates) == 1 else self._select(candidates, self._turn, self._random)
        assert isinstance(chosen, Seat)
        return chosen

    def _bind(self, hints: Hints, chosen: Seat, excluded: Collection[InstanceKey]) -> None:
        sessions, key, now = self.sessions, (self.name, hints.session), time.monotonic()
        assert sessions is not None
        bound = sessions.find(key, now)
        stays = any(seat.id == bound and seat.key not in excluded for seat in self._routable())
        sessions.sent(key, chosen.id, now, stays=stays)

    def _nobody(self, hints: Hints) -> str:
        if hints.instance is None and hints.dp_rank is not None:
            return (
                f"{hints.rank_by}: no worker of model '{self.name}' with rank {hints.dp_rank} can take the request now"
            )
        if hints.instance is None:
            return f"no worker of model '{self.name}' can take the request now"
        return f"{hints.pinned_by}: instance {hints.instance} doesn't serve model '{self.name}' now"

    def _routable(self) -> list[Seat]:
        if self._picked_version != self._view.version:
            self._picked_version = self._view.version
            paths = {key.path for key in self.seats}
            keys = [key for path in sorted(paths) for key in self._view.routable(path)]
            self._candidates = [self.seats[key] for key in keys if key in self.seats]
        return self._candidates

    def changed(self) -> None:
        """An instance joined or left."""
        self._picked_version = -1

    def left(self, key: InstanceKey) -> None:
        """An instance is gone, and its cache with it."""
        self.seats.pop(key, None)
        if self.kv is not None:
            self.kv.left(key)
        self.changed()
