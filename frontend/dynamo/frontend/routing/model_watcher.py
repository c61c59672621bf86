"""Follows the instances of models as they come and go, and fills the pool.

The first instance of a set makes the watcher fetch the card's files from any worker of the set (`model_loader.py`);
until that is done its instances are `pending`, afterwards `loaded` or `failed`, which is what makes workers Ready. One
card that can't be loaded harms no other model.
"""

from __future__ import annotations

import asyncio
import logging
import time
from random import Random
from typing import Any, Final

from dynamo.frontend.limits.deadly_requests import Suspects
from dynamo.frontend.limits.settings import MigrationSettings
from dynamo.frontend.metrics import Metrics
from dynamo.frontend.routing.busy_thresholds import BusyThresholds
from dynamo.frontend.routing.disaggregation import Rules
from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.frontend.routing.kv_routing import KvRouting
from dynamo.frontend.routing.model_loader import Loader
from dynamo.frontend.routing.model_pool import ModelPool
from dynamo.frontend.routing.model_set import ModelSet, View, Worker
from dynamo.frontend.routing.prefill_pools import Prefills, follows_anew
from dynamo.frontend.routing.session_affinity import Sessions
from dynamo.llm.kv_events.replica_sync import ReplicaSync
from dynamo.llm.kv_events.subscriber import KvEventSubscriber
from dynamo.llm.model_card import ModelCard, card_digest, card_from_dict, card_role
from dynamo.llm.tokenizer.panics import describe
from dynamo.runtime.errors import DynamoException, InvalidArgument
from dynamo.runtime.load_balancing import ROUTER_MODES, RouterMode
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.process.backoff import Backoff

log = logging.getLogger(__name__)

RETRY_LOAD: Final = Backoff(5.0, 60.0)
NO_MIGRATION: Final = MigrationSettings()
_FIGURES: Final = ("kv_cache_block_size", "total_kv_blocks", "max_num_seqs", "max_num_batched_tokens")


class ModelWatcher:
    """Fills a `ModelPool` with what the registry's view says; it is an `InstanceListener`."""

    def __init__(
        self, view: View, loader: Loader, metrics: Metrics, *, mode: RouterMode, random: Random,
        kv: KvOptions | None = None, events: KvEventSubscriber | None = None, sharing: ReplicaSync | None = None,
        busy_thresholds: BusyThresholds | None = None, sessions: Sessions | None = None,
        migration: MigrationSettings = NO_MIGRATION, disagg: Rules | None = None, namespace_prefix: str = "",
        only: EndpointPath | None = None,
    ) -> None:  # fmt: skip
        self._namespace_prefix, self._only = namespace_prefix, only
        self._view, self._loader, self._metrics = view, loader, metrics
        self._events, self._sharing = events, sharing
        self._mode, self._random, self._kv = mode, random, kv
        self._busy_thresholds, self._sessions = busy_thresholds or BusyThresholds(metrics), sessions
        self._migration = migration
        self._prefills = Prefills(self._new_set, self._follow, disagg)
        self.pool = ModelPool(
            view, metrics, random, prefills=self._prefills, busy_thresholds=self._busy_thresholds, sessions=sessions
        )
        self._suspects = Suspects(time.monotonic)
        self._of: dict[InstanceKey, ModelSet] = {}
        self._heard: set[str] = set()
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[InstanceKey, tuple[ModelCard, Any]] = {}
        """Instances whose namespace isn't heard yet."""

    def joined(self, instance: Any) -> None:
        """Take in a new instance; those without a card are no models, those of other namespaces not ours."""
        if not instance.card or not instance.key.path.namespace.startswith(self._namespace_prefix):
            return
        try:
            card = card_from_dict(instance.card)
        except InvalidArgument as error:
            self._unreadable(instance, error)
            return
        if card.role == "prefill":
            self._prefills.joined(card, instance)  # no model by itself: nothing is pending of it
            return
        if self._only is not None and instance.key.path != self._only:
            return
        if instance.key.path.namespace in self._heard:
            self._add(card, instance)
        else:
            self._view.pending(instance.key)
            self.pool.expect(instance.key)
            self._waiting[instance.key] = card, instance
            self._listen(instance.key.path.namespace)

    def _listen(self, namespace: str) -> None:
        """Have the namespace's inbox open before anything is asked there."""

        async def listen() -> None:
            wait = 0.0
            while self._waiting_in(namespace):
                try:
                    await self._loader.listen(namespace)
                except Exception as error:
                    mistake = None if isinstance(error, DynamoException) else error
                    log.warning("namespace %s can't be listened to: %s", namespace, error, exc_info=mistake)
                    self._refuse(namespace, describe(error))
                    wait = RETRY_LOAD.after(wait)
                    await asyncio.sleep(wait)
                else:
                    self._heard.add(namespace)
                    self._enter(namespace)
            del self._listening[namespace]

        if namespace not in self._listening:
            self._listening[namespace] = asyncio.get_running_loop().create_task(listen(), name=f"listen {namespace}")

    def _waiting_in(self, namespace: str) -> list[InstanceKey]:
        return [key for key in self._waiting if key.path.namespace == namespace]

    def _enter(self, namespace: str) -> None:
        """Take in the instances that have waited for their namespace."""
        with self._view.batch():
            for key in self._waiting_in(namespace):
                card, instance = self._waiting.pop(key)
                self.pool.arrived(key)
                try:
                    self._add(card, instance)
                except Exception as error:  # a mistake with one instance must not take the others out of service
                    log.exception("instance %014x of %s can't be taken in", key.id, key.path)
                    self._view.failed(key, describe(error))

    def _refuse(self, namespace: str, reason: str) -> None:
        """Say why the instances that wait can't be asked; it is tried again."""
        with self._view.batch():
            for key in self._waiting_in(namespace):
                self.pool.arrived(key)
                self._view.failed(key, reason)
        self.pool.announce()

    def _add(self, card: ModelCard, instance: Any) -> None:
        """Take an instance into its set."""
        key: InstanceKey = instance.key
        self.pool.returned(card.name, key)
        models = self.pool.set_of(card.name, card.digest)
        if models is None:
            models = self._new_set(card, self._sessions)
            self.pool.add(models)
        worker = Worker(id=key.id, instance=instance, key=key)
        models.workers[key] = worker
        models.figured(worker, instance.figures)
        models.migration = self._migration.of_model(card)
        self._of[key] = models
        models.changed()
        self._busy_thresholds.joined(models, worker)
        if models.kv is not None:
            self._follow(instance, models.kv, models.name)
        self._publish(models, key)
        if models.model is None and models.loading is None:
            models.loading = asyncio.get_running_loop().create_task(self._load(models), name=f"load {models.name}")
        self._gauges(models, worker)
        self.pool.announce()

    def _way(self, card: ModelCard) -> tuple[RouterMode, KvOptions | None]:
        """Return how its workers are chosen: as its card says, if it can be here, else as this frontend does."""
        mode = self._mode
        if card.router_mode in ROUTER_MODES:
            mode = RouterMode(card.router_mode)
        elif card.router_mode is not None:
            text = "model %s asks for router mode %r, which this frontend doesn't know"
            log.warning(text, card.name, card.router_mode)
        return mode, self._kv if mode is RouterMode.KV else None

    def _new_set(self, card: ModelCard, sessions: Sessions | None = None) -> ModelSet:
        mode, kv = self._way(card)
        return ModelSet(
            card, self._view, mode, self._random, kv=kv, sessions=sessions, suspects=self._suspects,
            sharing=self._sharing,
        )  # fmt: skip

    def _follow(self, instance: Any, routing: KvRouting, name: str) -> None:
        """Have its cache known, and what other frontends send to it."""
        if self._events is not None:
            self._events.joined(instance.key, instance.figures, routing, self._metrics.meter(name))
        if self._sharing is not None:
            self._sharing.joined(instance.key, routing)

    def changed(self, instance: Any) -> None:
        """Take over new figures, or another card (then it is another set)."""
        models = self._of.get(instance.key)
        if models is None and self._prefills.has(instance.key) and card_role(instance.card) == "prefill":
            self._prefills.joined(card_from_dict(instance.card), instance)
            return
        if models is None or card_digest(instance.card) != models.digest:
            self.left(instance.key)
            self.joined(instance)
            return
        worker = models.workers[instance.key]
        before, worker.instance = worker.instance, instance
        models.figured(worker, instance.figures)
        models.migration = self._migration.of_model(card_from_dict(instance.card))
        self._busy_thresholds.joined(models, worker)
        if models.kv is not None and follows_anew(before.figures, instance.figures):
            self._follow(instance, models.kv, models.name)

    def left(self, key: InstanceKey) -> None:
        """Forget an instance that is gone."""
        self.pool.remove_broken(key)
        self.pool.arrived(key)
        self._waiting.pop(key, None)
        models = self._of.pop(key, None)
        if models is None and not self._prefills.left(key):
            return
        if self._events is not None:
            self._events.left(key)
        if self._sharing is not None:
            self._sharing.left(key)
        if models is None:
            return
        models.left(key)
        if not models.workers:
            self._end(models, key)
        self._gauges(models)
        self.pool.announce()

    def _end(self, models: ModelSet, last: InstanceKey) -> None:
        self.pool.remove(models, last)
        if models.loading is not None:
            models.loading.cancel()
        if models.gate is not None:
            models.gate.stop()
        log.info("model '%s': its last instance left", models.name)

    async def stop(self) -> None:
        """End what is being loaded, and what follows the workers' events."""
        if self._events is not None:
            await self._events.stop()
        if self._sharing is not None:
            await self._sharing.stop()
        tasks = [models.loading for models in self.pool.sets() if models.loading is not None]
        tasks += self._listening.values()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _unreadable(self, instance: Any, error: InvalidArgument) -> None:
        name = instance.card.get("name") if isinstance(instance.card, dict) else None
        log.warning("instance %014x of %s: %s", instance.key.id, instance.key.path, error)
        self.pool.add_broken(instance.key, str(name or ""), error.message)
        self._view.failed(instance.key, error.message)

    def _publish(self, models: ModelSet, key: InstanceKey) -> None:
        if models.model is not None:
            self._view.loaded(key)
        elif models.failure is not None:
            self._view.failed(key, models.failure)
        else:
            self._view.pending(key)

    async def _load(self, models: ModelSet) -> None:
        """Load a card from whichever worker can give its files; go on while the set has any."""
        wait = 0.0
        while True:
            await asyncio.sleep(wait)
            try:
                models.model = await self._loader.load(models.card, list(models.workers))
                models.failure = None
            except DynamoException as error:
                models.failure = error.message
                log.warning("model '%s' can't be loaded: %s", models.name, error.message)
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a tokenizer library may raise anything on a broken file, and panics
                models.failure = f"its files can't be used: {describe(error)}"
                log.warning("model '%s' can't be loaded", models.name, exc_info=True)
            with self._view.batch():
                for key in models.workers:
                    self._publish(models, key)
            self._gauges(models)
            self.pool.announce()
            if models.model is not None:
                models.loading = None
                log.info("model '%s' is served by %d instance(s)", models.name, len(models.workers))
                return
            wait = RETRY_LOAD.after(wait)

    def _gauges(self, models: ModelSet, worker: Worker | None = None) -> None:
        """Set the model's gauges: those of an instance by the one that has come, or by the oldest."""
        gauges = self._metrics.meter(models.name).gauges
        gauges["model_ready"] = float(any(other.served for other in self.pool.sets() if other.name == models.name))
        gauges["model_migration_limit"] = float(models.migration.limit)
        gauges["model_context_length"] = float(models.card.context_length or 0)
        if (worker := worker or next(iter(models.workers.values()), None)) is not None:
            for name in _FIGURES:
                figure = worker.instance.figures.get(name)
                if figure and isinstance(figure, int | float):
                    gauges[f"model_{name}"] = float(figure)
