"""The gates of all models: thresholds as the flags say, or as `/busy_threshold` said of one model since."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from dynamo.frontend.metrics import Metrics
from dynamo.frontend.routing.admission_gate import AdmissionGate
from dynamo.frontend.routing.admission_policy import NO_QUEUE, NO_THRESHOLDS, QueueOptions, Thresholds
from dynamo.frontend.routing.model_set import ModelSet, Worker

log = logging.getLogger(__name__)
MAX_CHANGED: Final = 1000
"""Models whose thresholds are remembered, also while they have no worker."""


class BusyThresholds:
    """Keeps the thresholds of all models, and gives each model set the gate that it needs."""

    def __init__(
        self, metrics: Metrics, thresholds: Thresholds = NO_THRESHOLDS, queue: QueueOptions = NO_QUEUE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._metrics, self._default, self._queue, self._clock = metrics, thresholds, queue, clock
        self._changed: dict[str, Thresholds] = {}
        self._warned: set[tuple[str, str]] = set()

    def of(self, model: str) -> Thresholds:
        """Return what holds for a model."""
        return self._changed.get(model, self._default)

    def change(self, model: str, sets: Iterable[ModelSet], changes: dict[str, Any]) -> Thresholds:
        """Set thresholds of a model whose sets these are; what `changes` doesn't name stays."""
        thresholds = self._changed[model] = dataclasses.replace(self.of(model), **changes)
        while len(self._changed) > MAX_CHANGED:
            del self._changed[next(iter(self._changed))]
        for models in sets:
            self.put(models)
        log.info("model '%s': busy thresholds are now %s", model, dataclasses.asdict(thresholds))
        return thresholds

    def reset(self, model: str, sets: Iterable[ModelSet]) -> Thresholds:
        """Back to what the flags say."""
        self._changed.pop(model, None)
        for models in sets:
            self.put(models)
        return self._default

    def joined(self, models: ModelSet, worker: Worker) -> None:
        """Set the limits of an instance that is there, or has other figures; what it lacks is said once of a model."""
        thresholds, lacks = self.of(models.name), []
        blocks, tokens = thresholds.limits(_blocks(models, worker), worker.batched_tokens)
        # Thresholds are those of one rank; outside kv mode nobody knows which of them a request went to.
        ranks = 1 if models.kv is not None else worker.ranks
        worker.max_blocks, worker.max_tokens = blocks * ranks, tokens * ranks
        if thresholds.active_decode_blocks_threshold is not None and not _blocks(models, worker):
            lacks.append("total_kv_blocks")
        fractions = (thresholds.active_prefill_tokens_threshold_frac, self._queue.threshold)
        if any(frac is not None for frac in fractions) and not worker.batched_tokens:
            lacks.append("max_num_batched_tokens")
        for name in lacks:
            if (models.name, name) not in self._warned and len(self._warned) < MAX_CHANGED:
                self._warned.add((models.name, name))
                log.warning(
                    "model '%s': instance %014x publishes no %s, so thresholds by it never find it busy",
                    models.name, worker.id, name,
                )  # fmt: skip

    def put(self, models: ModelSet) -> None:
        """Give a set the gate that it needs, if any, and its instances their limits."""
        thresholds = self.of(models.name)
        for worker in models.workers.values():
            self.joined(models, worker)
        if not thresholds.any and self._queue.threshold is None:
            models.gate = None  # nobody waits there: only a queue keeps anybody
        elif models.gate is not None:
            models.gate.thresholds = thresholds
        else:
            models.gate = AdmissionGate(models, thresholds, self._queue, self._metrics.meter(models.name), self._clock)

    def said_at_start(self, mode: str) -> list[str]:
        """Say what somebody who set thresholds should know of them in this router mode; nothing where none are set."""
        if mode == "kv" or (not self._default.any and self._queue.threshold is None):
            return []
        return [
            f"router mode {mode}: thresholds see this frontend's own requests only, with their whole prompts and "
            "without their answers; mode kv counts cached and shared blocks, and what other frontends send",
            "models whose engine takes text have no prompt tokens here: --active-prefill-tokens-threshold(-frac) and "
            "--router-queue-threshold mean nothing for them, and a sequence of max_num_seqs counts as a block",
        ]


def _blocks(models: ModelSet, worker: Worker) -> int:
    return worker.total_blocks if models.card.model_input == "tokens" else worker.capacity
