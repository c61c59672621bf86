"""What the choices of one request share, and what they need of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from dynamo.frontend.explaining import Explanation
from dynamo.frontend.hints import NO_HINTS, Hints
from dynamo.frontend.metrics import ModelMeter
from dynamo.frontend.model_set import ModelSet
from dynamo.frontend.time_limits import TokenWatch
from dynamo.frontend.tracing import RequestTrace
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException
from dynamo.runtime.names import InstanceKey


class Call(Protocol):
    """An open stream, as `dynamo.runtime`'s Caller gives it."""

    def cancel(self) -> None: ...


class Opener(Protocol):
    """The part of `dynamo.runtime`'s Caller that a choice needs."""

    def open(
        self, instance: InstanceKey, payload: Any, *, context: Context,
        on_item: Callable[[Any, bool], None], on_end: Callable[[DynamoException | None], None],
    ) -> Call: ...  # fmt: skip

    def after_batch(self, callback: Callable[[], None]) -> None: ...


class Desk(msgspec.Struct):
    """What the choices of one request share."""

    models: ModelSet
    opener: Opener
    context: Context
    meter: ModelMeter
    clock: Callable[[], float]
    migration_limit: int = 0
    migration_max_seq_len: int | None = None
    hold_seconds: float = 0.0
    hints: Hints = msgspec.field(default_factory=lambda: NO_HINTS)
    explanation: Explanation | None = None
    watch: TokenWatch | None = None
    """There where workers have time limits for their tokens."""
    shown: Mapping[int, str] | None = None
    """Special tokens that the answers' texts show, by their ids."""
    trace: RequestTrace | None = None
    """There where traces are asked for."""
    again: Callable[[ModelSet], ModelSet | None] | None = None
    """The set that goes on where one has ended: a set ends with its last instance."""

    def renew(self) -> None:
        """Where the set has ended, go on with the one that has followed it."""
        if not self.models.seats and self.again is not None:
            self.models = self.again(self.models) or self.models
