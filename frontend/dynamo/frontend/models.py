"""The models that can be asked for now, as the instances come and go.

`ModelPool` listens to the registry's view. Instances with the same model name and the same
card digest form a `ModelSet`: they understand each other's tokens. The first instance of a
set makes the pool fetch the card's files from any worker of the set (`loading.py`);
until that is done they are `pending`, afterwards `loaded` or `failed`, which is what makes
workers Ready. One card that can't be loaded harms no other model.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from dynamo.frontend.affinity import Sessions
from dynamo.frontend.cards import card_digest, card_role
from dynamo.frontend.disaggregation import Rules
from dynamo.frontend.errors import ApiError, model_not_found, no_such_rank, pinned_gone, unavailable, wrong_route
from dynamo.frontend.gates import Gates
from dynamo.frontend.hints import Hints
from dynamo.frontend.kv import KvOptions, KvRouting
from dynamo.frontend.loading import Loader
from dynamo.frontend.metrics import Metrics
from dynamo.frontend.model_set import ModelSet, Seat, View
from dynamo.frontend.prefill_pools import Prefills, follows_anew
from dynamo.frontend.routing import SELECTORS
from dynamo.frontend.settings import KV_MODE
from dynamo.llm.card import ModelCard, card_from_dict
from dynamo.llm.kv.followers import KvEvents
from dynamo.llm.kv.replicas import KvSharing
from dynamo.runtime.errors import DynamoException, InvalidArgument
from dynamo.runtime.names import EndpointPath, InstanceKey

log = logging.getLogger(__name__)

REMEMBER_SECONDS: Final = 600.0
"""How long a model whose last worker left is answered 503 and not 404."""
RETRY_LOAD_SECONDS: Final = 5.0
MAX_REMEMBERED: Final = 1000
HOLD: Final = "hold"
_FIGURES: Final = ("kv_cache_block_size", "total_kv_blocks", "max_num_seqs", "max_num_batched_tokens")


class ModelPool:
    """See the module. It is an `InstanceListener`."""

    def __init__(
        self, view: View, loader: Loader, metrics: Metrics, *, mode: str, random: Random,
        kv: KvOptions | None = None, events: KvEvents | None = None, sharing: KvSharing | None = None,
        gates: Gates | None = None, sessions: Sessions | None = None, migration_limit: int = 0,
        disagg: Rules | None = None, namespace_prefix: str = "",
        only: EndpointPath | None = None,
    ) -> None:  # fmt: skip
        self._namespace_prefix, self._only = namespace_prefix, only
        self._view, self._loader, self._metrics = view, loader, metrics
        self._events, self._sharing = events, sharing
        self._mode, self._random, self._kv = mode, random, kv
        self.gates, self._sessions = gates or Gates(metrics), sessions
        self._migration_limit = migration_limit
        self.prefills = Prefills(self._set_of, self._join, disagg)
        self._sets: dict[tuple[str, str], ModelSet] = {}
        self._by_name: dict[str, list[ModelSet]] = {}
        self._of: dict[InstanceKey, ModelSet] = {}
        self._broken: dict[InstanceKey, tuple[str, str]] = {}
        self._gone: dict[str, tuple[float, Sequence[str], InstanceKey]] = {}
        """By name: when its last instance left, what it answered, and which that was."""
        """When their last worker left, and what it could be asked."""
        self._heard: set[str] = set()
        self._listening: dict[InstanceKey, asyncio.Task[None]] = {}
        self._news = asyncio.Event()

    # What the registry says.

    def joined(self, instance: Any) -> None:
        """A new instance; those without a card are no models, those of other namespaces not ours."""
        if not instance.card or not instance.key.path.namespace.startswith(self._namespace_prefix):
            return
        try:
            card = card_from_dict(instance.card)
        except InvalidArgument as error:
            self._unreadable(instance, error)
            return
        if card.role == "prefill":
            self.prefills.joined(card, instance)  # no model by itself: nothing is pending of it
            return
        if self._only is not None and instance.key.path != self._only:
            return
        if instance.key.path.namespace in self._heard:
            self._seat(card, instance)
        else:
            self._view.pending(instance.key)
            self._listen(card, instance)

    def _listen(self, card: ModelCard, instance: Any) -> None:
        """Have the namespace's inbox open before anything is asked there."""
        key: InstanceKey = instance.key

        async def listen() -> None:
            try:
                await self._loader.listen(key.path.namespace)
            except DynamoException as error:
                log.warning("namespace %s can't be listened to: %s", key.path.namespace, error)
                self._view.failed(key, error.message)
                self._listening.pop(key, None)
                self._announce()
                return
            self._heard.add(key.path.namespace)
            if self._listening.pop(key, None) is not None:
                self._seat(card, instance)

        self._listening[key] = asyncio.get_running_loop().create_task(listen(), name=f"listen {key.path.namespace}")

    def _seat(self, card: ModelCard, instance: Any) -> None:
        """Take an instance into its set."""
        if card.name in self._gone and self._gone[card.name][2] == instance.key:
            del self._gone[card.name]  # it says by itself what it does now, and so what it no longer does
        found = self._sets.get((card.name, card.digest))
        if found is None:
            found = self._set_of(card, self._sessions)
            self._sets[card.name, card.digest] = found
            self._by_name.setdefault(card.name, []).append(found)
            self.gates.put(found)
        seat = Seat(id=instance.key.id, instance=instance, key=instance.key)
        found.seats[instance.key] = seat
        found.figured(seat, instance.figures)
        self._limit(found, card)
        self._of[instance.key] = found
        found.changed()
        self.gates.joined(found, seat)
        if found.kv is not None:
            self._join(instance, found.kv, found.name)
        self._publish(found, instance.key)
        if found.model is None and found.loading is None:
            found.loading = asyncio.get_running_loop().create_task(self._load(found), name=f"load {found.name}")
        self._gauges(found)
        self._announce()

    def _way(self, card: ModelCard) -> tuple[str, KvOptions | None]:
        """How its workers are chosen: as its card says, if it can be here, else as this frontend does."""
        mode = self._mode if card.router_mode is None else card.router_mode
        if mode not in SELECTORS:
            log.warning("model %s asks for router mode %r, which this frontend doesn't know", card.name, mode)
            mode = self._mode
        return mode, self._kv if mode == KV_MODE else None

    def _set_of(self, card: ModelCard, sessions: Sessions | None = None) -> ModelSet:
        mode, kv = self._way(card)
        return ModelSet(card, self._view, mode, self._random, kv, sessions)

    def _limit(self, found: ModelSet, card: ModelCard) -> None:
        """How often its requests may go on elsewhere: as the card that came last says, else as this frontend does."""
        found.migration_limit = self._migration_limit if card.migration_limit is None else card.migration_limit

    def _join(self, instance: Any, routing: KvRouting, name: str) -> None:
        """Have its cache known, and what other frontends send to it."""
        if self._events is not None:
            self._events.joined(instance.key, instance.figures, routing, self._metrics.meter(name))
        if self._sharing is not None:
            self._sharing.joined(instance.key, routing)

    def changed(self, instance: Any) -> None:
        """New figures, or another card (then it is another set)."""
        found = self._of.get(instance.key)
        if found is None and self.prefills.has(instance.key) and card_role(instance.card) == "prefill":
            self.prefills.joined(card_from_dict(instance.card), instance)
            return
        if found is None or card_digest(instance.card) != found.digest:
            self.left(instance.key)
            self.joined(instance)
            return
        seat = found.seats[instance.key]
        before, seat.instance = seat.instance, instance
        found.figured(seat, instance.figures)
        self._limit(found, card_from_dict(instance.card))
        self.gates.joined(found, seat)
        if found.kv is not None and follows_anew(before.figures, instance.figures):
            self._join(instance, found.kv, found.name)

    def left(self, key: InstanceKey) -> None:
        self._broken.pop(key, None)
        if (waiting := self._listening.pop(key, None)) is not None:
            waiting.cancel()
        found = self._of.pop(key, None)
        if found is None and not self.prefills.left(key):
            return
        if self._events is not None:
            self._events.left(key)
        if self._sharing is not None:
            self._sharing.left(key)
        if found is None:
            return
        found.left(key)
        if not found.seats:
            self._drop(found, key)
        self._gauges(found)
        self._announce()

    # What requests ask.

    @property
    def ready(self) -> bool:
        """The first list of instances is applied."""
        return self._view.synced

    def served(self) -> list[ModelSet]:
        """One set per model that can be asked now, in the order they came."""
        found: dict[str, ModelSet] = {}
        for one in self._sets.values():
            if one.served:
                found.setdefault(one.name, one)
        return list(found.values())

    def sets(self) -> list[ModelSet]:
        return list(self._sets.values())

    def broken(self) -> dict[InstanceKey, tuple[str, str]]:
        """Instances whose card can't be read: the model's name as far as known, and why."""
        return dict(self._broken)

    def types(self, name: str) -> list[str]:
        """What can be asked of a model now."""
        return sorted({kind for one in self._by_name.get(name, ()) if one.served for kind in one.card.model_types})

    def find(self, name: str, does: str | None = None) -> ModelSet:
        """The set for a new request of a kind; raises the `ApiError` that says why there is none."""
        sets = [one for one in self._sets_for(name, does) if one.served]
        if len(sets) == 1:
            return sets[0]
        if not sets:
            raise self._missing(name, does)
        # During a rollout two cards serve one model; each gets requests as it has instances.
        return self._random.choices(sets, weights=[len(one.seats) for one in sets])[0]

    def _sets_for(self, name: str, does: str | None) -> list[ModelSet]:
        return [one for one in self._by_name.get(name, ()) if does is None or does in one.card.model_types]

    def _alike(self, found: ModelSet) -> list[ModelSet]:
        """The sets of its model that can be asked the same, itself first."""
        types = found.card.model_types
        return [found, *(one for one in self._by_name.get(found.name, ()) if one.card.same_types(types))]

    def settle(self, found: ModelSet, hints: Hints) -> ModelSet:
        """The set of the model that the hints lead to; raises the `ApiError` of a worker or rank that isn't there."""
        self.prefills.settle(self._alike(found), hints)
        settled = self._settled(found, hints)
        return settled if hints.dp_rank is None else self._with_rank(settled, hints, hints.dp_rank)

    def _with_rank(self, found: ModelSet, hints: Hints, rank: int) -> ModelSet:
        sets = [found] if hints.instance is not None else self._alike(found)
        most = 1
        for one in sets:
            ranks = one.most_ranks(hints.instance) if one.served else 0
            if rank < ranks:
                return one
            most = max(most, ranks)
        where = f"model '{found.name}'" if hints.instance is None else f"instance {hints.instance}"
        raise no_such_rank(hints.rank_by, rank, where, most)

    def _settled(self, found: ModelSet, hints: Hints) -> ModelSet:
        wanted = hints.instance
        if wanted is None and hints.session and self._sessions is not None:
            wanted = self._sessions.find((found.name, hints.session), time.monotonic())
        if wanted is None:
            return found
        for one in self._alike(found):
            if one.served and any(key.id == wanted for key in one.seats):
                return one
        if hints.instance is not None:
            raise pinned_gone(hints.pinned_by, hints.instance, found.name)
        return found

    def again(self, ended: ModelSet) -> ModelSet | None:
        """The set that takes over the requests of one that has ended: of the same card, else of one with its tokens."""
        served = [one for one in self._by_name.get(ended.name, ()) if one.served and one.card.takes_over(ended.card)]
        return min(served, key=lambda one: one.digest != ended.digest, default=None)

    async def wait_for(self, name: str, does: str, seconds: float) -> ModelSet:
        """As `find`, but wait up to `seconds` for a worker where that may help."""
        try:
            return self.find(name, does)
        except ApiError as error:
            if error.status != 503 or seconds <= 0:
                raise
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._news.wait()
                    if any(one.served for one in self._sets_for(name, does)):
                        return self.find(name, does)
        except TimeoutError:
            self._metrics.hit(HOLD)
            return self.find(name, does)

    async def opened(self, seconds: float) -> None:
        """Return once what is known is served or could not be opened; after `seconds` in any case."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._opening:
                    await self._news.wait()

    @property
    def _opening(self) -> bool:
        """Something is on its way: an instance whose namespace isn't heard yet has no set."""
        return bool(self._listening) or any(one.model is None and one.failure is None for one in self._sets.values())

    async def stop(self) -> None:
        """End what is being loaded, and what follows the workers' events."""
        if self._events is not None:
            await self._events.stop()
        if self._sharing is not None:
            await self._sharing.stop()
        tasks = [one.loading for one in self._sets.values() if one.loading is not None]
        tasks += self._listening.values()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Inside.

    def _missing(self, name: str, does: str | None) -> ApiError:
        sets = self._sets_for(name, does)
        failures = [one.failure for one in sets if one.failure]
        failures += [why for model, why in self._broken.values() if model == name]
        if failures:
            return unavailable(f"The model '{name}' can't be loaded here: {failures[0]}", "model_failed")
        if sets:
            return unavailable(f"The model '{name}' is being loaded; try again in a moment.", "model_loading")
        since, did, _ = self._gone.get(name, (-math.inf, (), None))
        remembered = set(did) if time.monotonic() - since < REMEMBER_SECONDS else set()
        if does in remembered or (does is None and remembered):
            return unavailable(f"No worker serves the model '{name}' now; try again in a moment.")
        others = {kind for one in self._by_name.get(name, ()) for kind in one.card.model_types} | remembered
        if does is not None and others:
            able = {one.name for one in self._sets.values() if does in one.card.model_types}
            return wrong_route(name, does, sorted(others), sorted(able))
        known = [one.name for one in self._sets.values()]
        if not known:
            return unavailable(f"No worker has registered yet, so '{name}' can't be served; try again in a moment.")
        return model_not_found(name, known)

    def _unreadable(self, instance: Any, error: InvalidArgument) -> None:
        name = instance.card.get("name") if isinstance(instance.card, dict) else None
        log.warning("instance %014x of %s: %s", instance.key.id, instance.key.path, error)
        self._broken[instance.key] = (str(name or ""), error.message)
        self._view.failed(instance.key, error.message)

    def _publish(self, found: ModelSet, key: InstanceKey) -> None:
        if found.model is not None:
            self._view.loaded(key)
        elif found.failure is not None:
            self._view.failed(key, found.failure)
        else:
            self._view.pending(key)

    async def _load(self, found: ModelSet) -> None:
        """Load a card from whichever worker can give its files; go on while the set has any."""
        wait = 0.0
        while True:
            await asyncio.sleep(wait)
            try:
                found.model = await self._loader.load(found.card, list(found.seats))
                found.failure = None
            except DynamoException as error:
                found.failure = error.message
                log.warning("model '%s' can't be loaded: %s", found.name, error.message)
            except Exception as error:  # a tokenizer library may raise anything on a broken file
                found.failure = f"its files can't be used: {error}"
                log.warning("model '%s' can't be loaded", found.name, exc_info=True)
            for key in found.seats:
                self._publish(found, key)
            self._gauges(found)
            self._announce()
            if found.model is not None:
                found.loading = None
                log.info("model '%s' is served by %d instance(s)", found.name, len(found.seats))
                return
            wait = min(max(RETRY_LOAD_SECONDS, wait * 2), 60.0)

    def _drop(self, found: ModelSet, last: InstanceKey) -> None:
        del self._sets[found.name, found.digest]
        self._by_name[found.name].remove(found)
        if not self._by_name[found.name]:
            del self._by_name[found.name]
        if found.loading is not None:
            found.loading.cancel()
        if found.gate is not None:
            found.gate.stop()
        log.info("model '%s': its last instance left", found.name)
        self._gone[found.name] = (time.monotonic(), tuple(found.card.model_types), last)
        while len(self._gone) > MAX_REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def _gauges(self, found: ModelSet) -> None:
        gauges = self._metrics.meter(found.name).gauges
        gauges["model_ready"] = float(any(one.served for one in self._sets.values() if one.name == found.name))
        gauges["model_migration_limit"] = float(found.migration_limit)
        gauges["model_context_length"] = float(found.card.context_length or 0)
        for seat in found.seats.values():
            for name in _FIGURES:
                gauges[f"model_{name}"] = float(seat.instance.figures.get(name) or gauges[f"model_{name}"])

    def _announce(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
