"""What the choices of one request share, and what they need of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from dynamo.frontend.generation.token_timeouts import TokenWatch
from dynamo.frontend.limits.settings import MigrationSettings
from dynamo.frontend.metrics import ModelMeter
from dynamo.frontend.request_log.log import Event
from dynamo.frontend.request_log.placements import RecentPlacements
from dynamo.frontend.routing.hints import NO_HINTS, Hints
from dynamo.frontend.routing.model_set import ModelSet, Worker
from dynamo.frontend.routing.prefill_pools import Prefills
from dynamo.frontend.routing.report import RoutingReport
from dynamo.frontend.tracing import RequestTrace
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException
from dynamo.runtime.names import InstanceKey

NO_MIGRATION: Final = MigrationSettings()
ChoiceT = TypeVar("ChoiceT", contravariant=True)


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


class Listener(Protocol[ChoiceT]):
    """Listener that wants the text. Called on the loop, never after `finished` or `failed` of that choice."""

    def text(self, choice: ChoiceT, text: str) -> None: ...

    def tokens(
        self, choice: ChoiceT, text: str, ids: list[int], offsets: list[int], extras: dict[str, Any] | None
    ) -> None:
        """Take text as `text` does, where log probabilities or token ids were asked for."""

    def finished(self, choice: ChoiceT) -> None: ...

    def failed(self, choice: ChoiceT, error: Exception) -> None: ...


class RequestScope(msgspec.Struct):
    """State that the choices of one request share."""

    models: ModelSet
    opener: Opener
    context: Context
    meter: ModelMeter
    clock: Callable[[], float]
    migration: MigrationSettings = NO_MIGRATION
    hold_seconds: float = 0.0
    hints: Hints = msgspec.field(default_factory=lambda: NO_HINTS)
    explanation: RoutingReport | None = None
    prefills: Prefills | None = None
    """Workers that may compute the prompts; None: only those that answer do."""
    watch: TokenWatch | None = None
    """There where workers have time limits for their tokens."""
    shown: Mapping[int, str] | None = None
    """Special tokens that the answers' texts show, by their ids."""
    token_ids: bool = False
    """Its answers are told with the ids of their tokens."""
    trace: RequestTrace | None = None
    """There where traces are asked for."""
    events: list[Event] | None = None
    """There where ended requests can be explained."""
    recent: RecentPlacements | None = None
    """There while somebody looks at the console."""
    worker: Worker | None = None
    """That an attempt went to last."""
    again: Callable[[ModelSet], ModelSet | None] | None = None
    """The set that goes on where one has ended: a set ends with its last instance."""

    def answered(self, ttft: float, usage: tuple[int, int, int], seconds: float) -> None:
        """Note at its worker how long its first token took, and the others, of an answer that is over.

        `usage`: tokens of its prompt and of the answer, and how many of the prompt's were cached.
        """
        prompt, produced, cached = usage
        worker = self.worker
        if worker is None:
            return
        worker.last_ttft, worker.last_isl = ttft, prompt
        worker.prompt_tokens += prompt
        worker.cached_tokens += cached
        if produced > 1:
            worker.last_itl = seconds / (produced - 1)

    def renew(self) -> None:
        """Go on with the set that has followed, where this one has ended."""
        if not self.models.workers and self.again is not None:
            self.models = self.again(self.models) or self.models
