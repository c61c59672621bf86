"""The gates of all models: thresholds as the flags say, or as `/busy_threshold` said of one model since."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from dynamo.frontend.admission import NO_THRESHOLDS, Thresholds
from dynamo.frontend.gate import NO_QUEUE, Gate, QueueOptions
from dynamo.frontend.metrics import Metrics
from dynamo.frontend.model_set import ModelSet, Seat

log = logging.getLogger(__name__)
MAX_CHANGED: Final = 1000
"""Models whose thresholds are remembered, also while they have no worker."""


class Gates:
    """See the module."""

    def __init__(
        self, metrics: Metrics, thresholds: Thresholds = NO_THRESHOLDS, queue: QueueOptions = NO_QUEUE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._metrics, self._default, self._queue, self._clock = metrics, thresholds, queue, clock
        self._changed: dict[str, Thresholds] = {}
        self._said: set[tuple[str, str]] = set()

    def of(self, model: str) -> Thresholds:
        """What holds for a model."""
        return self._changed.get(model, self._default)

    def change(self, model: str, sets: Iterable[ModelSet], changes: dict[str, Any]) -> Thresholds:
        """Set thresholds of a model whose sets these are; what `changes` doesn't name stays."""
        found = self._changed[model] = msgspec.structs.replace(self.of(model), **changes)
        while len(self._changed) > MAX_CHANGED:
            del self._changed[next(iter(self._changed))]
        for one in sets:
            self.put(one)
        log.info("model '%s': busy thresholds are now %s", model, msgspec.to_builtins(found))
        return found

    def reset(self, model: str, sets: Iterable[ModelSet]) -> Thresholds:
        """Back to what the flags say."""
        self._changed.pop(model, None)
        for one in sets:
            self.put(one)
        return self._default

    def joined(self, one: ModelSet, seat: Seat) -> None:
        """An instance is there, or has other figures; thresholds that it lacks one for are said once of a model."""
        thresholds, lacks = self.of(one.name), []
        blocks, tokens = thresholds.limits(_blocks(one, seat), seat.batched_tokens)
        # Thresholds are those of one rank; outside kv mode nobody knows which of them a request went to.
        ranks = 1 if one.kv is not None else seat.ranks
        seat.max_blocks, seat.max_tokens = blocks * ranks, tokens * ranks
        if thresholds.active_decode_blocks_threshold is not None and not _blocks(one, seat):
            lacks.append("total_kv_blocks")
        fractions = (thresholds.active_prefill_tokens_threshold_frac, self._queue.threshold)
        if any(frac is not None for frac in fractions) and not seat.batched_tokens:
            lacks.append("max_num_batched_tokens")
        for name in lacks:
            if (one.name, name) not in self._said and len(self._said) < MAX_CHANGED:
                self._said.add((one.name, name))
                log.warning(
                    "model '%s': instance %014x publishes no %s, so thresholds by it never find it busy",
                    one.name, seat.id, name,
                )  # fmt: skip

    def put(self, one: ModelSet) -> None:
        """Give a set the gate that it needs, if any, and its instances their limits."""
        thresholds = self.of(one.name)
        for seat in one.seats.values():
            self.joined(one, seat)
        if not thresholds.any and self._queue.threshold is None:
            one.gate = None  # nobody waits there: only a queue keeps anybody
        elif one.gate is not None:
            one.gate.thresholds = thresholds
        else:
            one.gate = Gate(one, thresholds, self._queue, self._metrics.meter(one.name), self._clock)

    def said_at_start(self, mode: str) -> list[str]:
        """What somebody who set thresholds should know of them in this router mode; nothing where none are set."""
        if mode == "kv" or (not self._default.any and self._queue.threshold is None):
            return []
        return [
            f"router mode {mode}: thresholds see this frontend's own requests only, with their whole prompts and "
            "without their answers; mode kv counts cached and shared blocks, and what other frontends send",
            "models whose engine takes text have no prompt tokens here: --active-prefill-tokens-threshold(-frac) and "
            "--router-queue-threshold mean nothing for them, and a sequence of max_num_seqs counts as a block",
        ]


def _blocks(one: ModelSet, seat: Seat) -> int:
    return seat.total_blocks if one.card.model_input == "tokens" else seat.capacity
