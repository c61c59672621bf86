"""The models that can be asked for now, and the set of workers for each request.

Instances with the same model name and the same card digest form a `ModelSet`: they understand each other's tokens.
`model_watcher.py` fills the pool as instances come and go; requests ask it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from dynamo.frontend.errors import ApiError, model_not_found, no_such_rank, pinned_gone, unavailable, wrong_route
from dynamo.frontend.metrics import Metrics
from dynamo.frontend.routing.busy_thresholds import BusyThresholds
from dynamo.frontend.routing.hints import Hints
from dynamo.frontend.routing.model_set import ModelSet, View
from dynamo.frontend.routing.prefill_pools import Prefills
from dynamo.frontend.routing.session_affinity import Sessions
from dynamo.runtime.names import InstanceKey

REMEMBER_SECONDS: Final = 600.0
"""How long a model whose last worker left is answered 503 and not 404."""
MAX_REMEMBERED: Final = 1000
WORKER_WAIT: Final = "worker_wait"


class ModelPool:
    """The model sets by name, and which of them a request goes to."""

    def __init__(
        self, view: View, metrics: Metrics, random: Random, *, prefills: Prefills, busy_thresholds: BusyThresholds,
        sessions: Sessions | None,
    ) -> None:  # fmt: skip
        self._view, self._metrics, self._random, self._sessions = view, metrics, random, sessions
        self.prefills, self.busy_thresholds = prefills, busy_thresholds
        self._sets: dict[tuple[str, str], ModelSet] = {}
        self._by_name: dict[str, list[ModelSet]] = {}
        self._broken: dict[InstanceKey, tuple[str, str]] = {}
        self._gone: dict[str, tuple[float, Sequence[str], InstanceKey]] = {}
        """By name: when its last instance left, what it answered, and which that was."""
        self._expected: set[InstanceKey] = set()
        self._news = asyncio.Event()
        self.aliases: Mapping[str, str] = {}
        """Models by other names, where no model has that name itself."""

    # The watcher fills it.

    def set_of(self, name: str, digest: str) -> ModelSet | None:
        """Return the set of a card; None where no instance serves it."""
        return self._sets.get((name, digest))

    def add(self, models: ModelSet) -> None:
        """Add the set of a card that an instance serves first."""
        self._sets[models.name, models.digest] = models
        self._by_name.setdefault(models.name, []).append(models)
        self.busy_thresholds.put(models)

    def remove(self, models: ModelSet, last: InstanceKey) -> None:
        """Remove a set whose last instance left, and remember what it could be asked."""
        del self._sets[models.name, models.digest]
        self._by_name[models.name].remove(models)
        if not self._by_name[models.name]:
            del self._by_name[models.name]
        self._gone[models.name] = (time.monotonic(), tuple(models.card.model_types), last)
        while len(self._gone) > MAX_REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def returned(self, name: str, key: InstanceKey) -> None:
        """Forget what a model could be asked, where its last instance says by itself what it does now."""
        if name in self._gone and self._gone[name][2] == key:
            del self._gone[name]

    def expect(self, key: InstanceKey) -> None:
        """Note an instance whose namespace isn't listened to yet."""
        self._expected.add(key)

    def arrived(self, key: InstanceKey) -> None:
        """Forget that an instance was expected: it is there, or won't come."""
        self._expected.discard(key)

    def add_broken(self, key: InstanceKey, name: str, reason: str) -> None:
        """Note an instance whose card can't be read."""
        self._broken[key] = (name, reason)

    def remove_broken(self, key: InstanceKey) -> None:
        """Forget it; also where it isn't there."""
        self._broken.pop(key, None)

    def announce(self) -> None:
        """Wake those who wait for a model."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    # Requests ask it.

    @property
    def ready(self) -> bool:
        """Tell whether the first list of instances is applied."""
        return self._view.synced

    def served(self) -> list[ModelSet]:
        """Return one set per model that can be asked now, in the order they came."""
        by_name: dict[str, ModelSet] = {}
        for models in self._sets.values():
            if models.served:
                by_name.setdefault(models.name, models)
        return list(by_name.values())

    def sets(self) -> list[ModelSet]:
        """Return all sets."""
        return list(self._sets.values())

    def broken(self) -> dict[InstanceKey, tuple[str, str]]:
        """Return the instances whose card can't be read: the model's name as far as known, and why."""
        return dict(self._broken)

    def types(self, name: str) -> list[str]:
        """Return what can be asked of a model now."""
        return sorted(
            {kind for models in self._sets_for(name, None) if models.served for kind in models.card.model_types}
        )

    def find(self, name: str, does: str | None = None) -> ModelSet:
        """Return the set for a new request of a kind; raises the `ApiError` that says why there is none."""
        sets = [models for models in self._sets_for(name, does) if models.served]
        if len(sets) == 1:
            return sets[0]
        if not sets:
            raise self._missing(name, does)
        # During a rollout two cards serve one model; each gets requests as it has instances.
        return self._random.choices(sets, weights=[len(models.workers) for models in sets])[0]

    def own_name(self, name: str) -> str:
        """Return the name that a model has itself."""
        return name if name in self._by_name else self.aliases.get(name, name)

    def _sets_for(self, name: str, does: str | None) -> list[ModelSet]:
        named = self._by_name.get(self.own_name(name), ())
        return [models for models in named if does is None or does in models.card.model_types]

    def _alike(self, models: ModelSet) -> list[ModelSet]:
        """Return the sets of its model that can be asked the same, itself first."""
        types = models.card.model_types
        return [
            models,
            *(other for other in self._by_name.get(models.name, ()) if other.card.same_types(types)),
        ]

    def settle(self, models: ModelSet, hints: Hints) -> tuple[ModelSet, Hints]:
        """Return the set of the model that the hints lead to, and the hints as its workers are.

        Raises the `ApiError` of a worker or rank that isn't there.
        """
        hints = self.prefills.settle(self._alike(models), hints)
        settled = self._settled(models, hints)
        return settled if hints.dp_rank is None else self._with_rank(settled, hints, hints.dp_rank), hints

    def _with_rank(self, models: ModelSet, hints: Hints, rank: int) -> ModelSet:
        sets = [models] if hints.instance is not None else self._alike(models)
        most = 1
        for other in sets:
            ranks = other.most_ranks(hints.instance) if other.served else 0
            if rank < ranks:
                return other
            most = max(most, ranks)
        where = f"model '{models.name}'" if hints.instance is None else f"instance {hints.instance}"
        raise no_such_rank(hints.rank_by, rank, where, most)

    def _settled(self, models: ModelSet, hints: Hints) -> ModelSet:
        wanted = hints.instance
        if wanted is None and hints.session and self._sessions is not None:
            wanted = self._sessions.find((models.name, hints.session), time.monotonic())
        if wanted is None:
            return models
        for other in self._alike(models):
            if other.served and any(key.id == wanted for key in other.workers):
                return other
        if hints.instance is not None:
            raise pinned_gone(hints.pinned_by, hints.instance, models.name)
        return models

    def again(self, ended: ModelSet) -> ModelSet | None:
        """Return the set that takes over the requests of one that has ended: of its card, else one with its tokens."""
        served = [
            models
            for models in self._by_name.get(ended.name, ())
            if models.served and models.card.takes_over(ended.card)
        ]
        return min(served, key=lambda models: models.digest != ended.digest, default=None)

    def is_served(self, name: str, does: str) -> bool:
        """Tell whether `find` has a set for it now."""
        return any(models.served for models in self._sets_for(name, does))

    async def wait_for(self, name: str, does: str, seconds: float) -> ModelSet:
        """Find a set as `find` does, but wait up to `seconds` for a worker where that may help."""
        try:
            return self.find(name, does)
        except ApiError as error:
            if error.status != 503 or seconds <= 0:
                raise
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._news.wait()
                    if any(models.served for models in self._sets_for(name, does)):
                        return self.find(name, does)
        except TimeoutError:
            self._metrics.hit(WORKER_WAIT)
            return self.find(name, does)

    async def opened(self, seconds: float) -> None:
        """Return once what is known is served or could not be opened; after `seconds` in any case."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._opening:
                    await self._news.wait()

    @property
    def _opening(self) -> bool:
        """Tell whether a model is on its way: an instance whose namespace isn't heard yet has no set."""
        return bool(self._expected) or any(
            models.model is None and models.failure is None for models in self._sets.values()
        )

    def _missing(self, name: str, does: str | None) -> ApiError:
        sets = self._sets_for(name, does)
        failures = [models.failure for models in sets if models.failure]
        failures += [why for model, why in self._broken.values() if model == name]
        if failures:
            return unavailable(f"The model '{name}' can't be loaded here: {failures[0]}", "model_failed")
        if sets:
            return unavailable(f"The model '{name}' is being loaded; try again in a moment.", "model_loading")
        since, did, _ = self._gone.get(name, (-math.inf, (), None))
        remembered = set(did) if time.monotonic() - since < REMEMBER_SECONDS else set()
        if does in remembered or (does is None and remembered):
            return unavailable(f"No worker serves the model '{name}' now; try again in a moment.")
        others = {kind for models in self._sets_for(name, None) for kind in models.card.model_types} | remembered
        if does is not None and others:
            able = {models.name for models in self._sets.values() if does in models.card.model_types}
            return wrong_route(name, does, sorted(others), sorted(able))
        known = [models.name for models in self._sets.values()]
        if not known:
            return unavailable(f"No worker has registered yet, so '{name}' can't be served; try again in a moment.")
        return model_not_found(name, known)
