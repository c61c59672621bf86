"""What routes are given: everything that lives as long as the process, made by `server.py`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from dynamo.frontend.cors import Cors
from dynamo.frontend.defaults import RequestDefaults
from dynamo.frontend.desk import Opener
from dynamo.frontend.door import Door
from dynamo.frontend.metrics import Metrics
from dynamo.frontend.models import ModelPool
from dynamo.frontend.openai import refuse_unknown, unknown_fields
from dynamo.frontend.stream import BatchWriter
from dynamo.frontend.time_limits import TokenWatch
from dynamo.runtime.tracing import Tracing

log = logging.getLogger(__name__)


class UnderWay(Protocol):
    """A request that is being answered."""

    def refused(self, error: Exception) -> None:
        """Nothing more comes of it; fine where it is over."""


class Policy(msgspec.Struct, frozen=True):
    """What the settings say about requests."""

    body_limit: int = 45 * 1024 * 1024
    hold_seconds: float = 0.0
    migration_max_seq_len: int | None = None
    stall_seconds: float = 60.0
    strict_fields: bool = False
    admin_api: bool = True
    open_admin_api: bool = False
    request_seconds: float | None = None
    """For requests that bring no time limit of their own."""
    sessions: bool = False
    """Sessions stay with their worker."""
    has_siblings: bool = False
    """Other processes answer on the same port."""
    defaults: RequestDefaults | None = None
    """For requests that leave them out."""


class Lifecycle(msgspec.Struct):
    """Where the process stands."""

    draining: bool = False


class Services(msgspec.Struct):
    """Handed to every route."""

    pool: ModelPool
    opener: Opener
    writer: BatchWriter
    metrics: Metrics
    policy: Policy
    cors: Cors
    lifecycle: Lifecycle
    clock: Callable[[], float] = time.monotonic
    door: Door | None = None
    """There where requests side by side are bounded."""
    watch: TokenWatch | None = None
    """There where workers have time limits for their tokens."""
    tracing: Tracing | None = None
    """There where traces are asked for."""
    connected: Callable[[], bool] = lambda: True
    """Whether workers can be asked at all."""
    answers: set[UnderWay] = msgspec.field(default_factory=set)
    """Those under way."""

    def check_fields(self, body: dict[str, Any], kind: type[msgspec.Struct], request_id: str) -> None:
        """Say in the log what is ignored, or refuse it in strict mode."""
        if not (unknown := unknown_fields(body, kind)):
            return
        if self.policy.strict_fields:
            raise refuse_unknown(unknown, kind)
        names = ", ".join(name[:60] for name in unknown[:20])
        log.info("[%s] ignored unknown request field(s): %s", request_id, names)
