"""What routes are given: everything that lives as long as the process, made by `server.py`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

import msgspec

from dynamo.frontend.generation.request_scope import Opener
from dynamo.frontend.generation.token_timeouts import TokenWatch
from dynamo.frontend.http.api_keys import ApiKeys
from dynamo.frontend.http.body_budget import BodyBudget
from dynamo.frontend.http.cors import Cors
from dynamo.frontend.images.loading import ImageLoader
from dynamo.frontend.images.request_images import RequestImages
from dynamo.frontend.limits.concurrency_limits import ConcurrencyLimiter
from dynamo.frontend.limits.request_threads import RequestThreads
from dynamo.frontend.limits.tenant_usage import TenantUsage
from dynamo.frontend.metrics import Metrics
from dynamo.frontend.request_log.log import RequestLog
from dynamo.frontend.request_log.placements import RecentPlacements
from dynamo.frontend.responses.stream import BatchWriter
from dynamo.frontend.routing.model_pool import ModelPool
from dynamo.frontend.settings import FrontendSettings
from dynamo.frontend.stored.directory import ResponseDirectory
from dynamo.frontend.validation.unknown_fields import IgnoredFields
from dynamo.runtime.names import InstanceKey
from dynamo.runtime.process.tracing import Tracing

MOST_ECHOED: Final = 64 << 20
"""Bytes of instructions and tools that answers keep in order to repeat them; small ones don't count."""


class OpenRequests(Protocol):
    """A request that is being answered."""

    def refused(self, error: Exception) -> None:
        """Note that nothing more comes of it; fine where it is over."""


class RunningServer(Protocol):
    """A server of HTTP's port, or of gRPC's."""

    @property
    def asked(self) -> float:
        """Return when the last request for a model came."""

    @property
    def running(self) -> int:
        """Return how many requests are being answered."""

    async def stop(self, grace: float, give_up: Callable[[], None]) -> bool:
        """Let running requests end within `grace`; True where all did."""


class LiveView(Protocol):
    """Streams of what the console shows (`console/feed.py`)."""

    def __len__(self) -> int:
        """Return how many look."""

    def enter(self, caller: bytes, abort: Callable[[], None]) -> Any:
        """Let a viewer in; raises the `ApiError` for one too many."""

    def events(self, viewer: Any) -> AsyncIterator[bytes]:
        """Yield what a viewer is sent."""

    def close(self) -> None:
        """Let all viewers go, and take no other."""


class Lifecycle(msgspec.Struct):
    """Lifecycle of the process."""

    draining: bool = False


class Services(msgspec.Struct):
    """Handed to every route."""

    pool: ModelPool
    opener: Opener
    writer: BatchWriter
    metrics: Metrics
    settings: FrontendSettings
    lifecycle: Lifecycle
    bodies: BodyBudget
    images: ImageLoader
    threads: RequestThreads
    clock: Callable[[], float] = time.monotonic
    cors: Cors | None = None
    """There where browsers may call from other origins."""
    keys: ApiKeys | None = None
    """There where callers must show one."""
    tenants: TenantUsage = msgspec.field(default_factory=TenantUsage)
    """What callers with a tenant's key have used."""
    limiter: ConcurrencyLimiter | None = None
    """There where requests side by side are bounded."""
    watch: TokenWatch | None = None
    """There where workers have time limits for their tokens."""
    echoes: BodyBudget = msgspec.field(default_factory=lambda: BodyBudget(MOST_ECHOED))
    """What answers under way repeat of their requests."""
    stored: ResponseDirectory | None = None
    """There where responses are kept."""
    request_log: RequestLog | None = None
    """There where ended requests can be explained."""
    recent: RecentPlacements = msgspec.field(default_factory=RecentPlacements)
    """What the console shows of routing, while somebody looks."""
    live: LiveView | None = None
    """There where the console is served."""
    restarts_of: Callable[[InstanceKey], int] = lambda _: 0
    """How often a worker was started anew."""
    tracing: Tracing | None = None
    """There where traces are asked for."""
    connected: Callable[[], bool] = lambda: True
    """Whether workers can be asked at all."""
    ignored: IgnoredFields = msgspec.field(default_factory=IgnoredFields)
    """Unknown fields of requests."""
    answers: set[OpenRequests] = msgspec.field(default_factory=set)
    """Those under way."""
    servers: list[RunningServer] = msgspec.field(default_factory=list)
    """Those that listen."""

    @property
    def recent_placements(self) -> RecentPlacements | None:
        """Return what keeps the choices of workers; None while nobody looks."""
        return self.recent if self.recent.watched else None

    def request_images(self) -> RequestImages:
        """Return what loads the images of one request."""
        return RequestImages(self.images, self.threads, lambda: [models.card for models in self.pool.served()])
