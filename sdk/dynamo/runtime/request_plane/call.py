"""One open stream, client side: what `Caller.open` gives back.

It closes itself exactly once, whichever comes first: the worker's end, `cancel`, the
context's stop, the deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from dynamo.runtime.context import Context
from dynamo.runtime.errors import Cancelled, DeadlineExceeded, DynamoException
from dynamo.runtime.names import InstanceKey
from dynamo.runtime.transport.bus import Bus, OnMessage, Subscription, leave

if TYPE_CHECKING:
    from dynamo.runtime.request_plane.inbox import Inbox


_log = logging.getLogger(__name__)

ACCEPTANCE: Final = 1.0
"""Seconds after which a request that nobody accepted is asked about."""

OnItem = Callable[[Any, bool], None]
OnEnd = Callable[[DynamoException | None], None]


class OpenStream:
    """One stream that a client has open on a worker."""

    __slots__ = ("accepted", "limit", "on_end", "on_item", "request", "sent", "since", "stream")

    def __init__(
        self, stream: int, on_item: OnItem, on_end: OnEnd, since: float = 0.0, limit: float = ACCEPTANCE
    ) -> None:
        self.stream = stream
        self.on_item = on_item
        self.on_end = on_end
        self.since = since
        self.limit = limit
        """Seconds that its acceptance may take."""
        self.sent = False
        """All of its request is published, and nobody has said that nobody listens there: a worker may have it."""
        self.accepted = False
        self.request: list[bytes] | None = None
        """The encoded request, kept until it is accepted."""

    def finish(self, error: DynamoException | None) -> None:
        """Finish: it is over; called once."""
        self.on_end(error)

    def finish_safely(self, error: DynamoException | None) -> None:
        """Finish; a mistake of its reader is logged, and must not reach the others."""
        try:
            self.finish(error)
        except Exception:
            _log.exception("stream %d: its end handler failed", self.stream)


class CallOwner(Protocol):
    """Owner of a call, with what the call needs of it."""

    def cancelled(self, call: Call) -> None: ...

    def closed(self, call: Call) -> None: ...

    def end(self, call: Call, error: DynamoException) -> None: ...


class Call(OpenStream):
    """One open stream, client side."""

    __slots__ = (
        "_caller",
        "at",
        "context",
        "inbox",
        "instance",
        "open",
        "payload",
        "resend_at",
        "timer",
        "waits_since",
    )

    def __init__(
        self, caller: CallOwner, stream: int, instance: InstanceKey, context: Context, on_item: OnItem, on_end: OnEnd
    ) -> None:
        super().__init__(stream, on_item, on_end)
        self._caller = caller
        self.context = context
        self.payload: tuple[Any] | None = None
        """Of a request that isn't encoded yet."""
        self.at = 0
        """How many of its messages are published."""
        self.waits_since: float | None = None
        """When it began to wait for its turn."""
        self.instance = instance
        self.inbox: Inbox
        self.open = True
        self.resend_at = 0.0
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Give it up; idempotent, and `on_end` is not called afterwards."""
        if self.open:
            self._close()
            self._caller.cancelled(self)

    def stop(self) -> None:
        """Stop: the context was stopped. End with `Cancelled`, and tell the worker."""
        self._caller.end(self, Cancelled())

    def expire(self) -> None:
        self._caller.end(self, DeadlineExceeded())

    def finish(self, error: DynamoException | None) -> None:
        if self.open:
            self._close()
            self.on_end(error)

    def _close(self) -> None:
        self.open = False
        self.request = self.payload = None
        self.context.forget(self.stop)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._caller.closed(self)


class Listening:
    """One Dynamo namespace whose inbox this client reads."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.inboxes: dict[int, Inbox] = {}
        self.subscriptions: list[Subscription] = []
        self.complained = False

    async def enter(self, bus: Bus, subjects: Iterable[tuple[str, OnMessage]]) -> None:
        """Listen to all of them, or to none where the bus fails in the middle."""
        try:
            for subject, on_message in subjects:
                # A loss shows as a gap in the numbers, or as a ping's answer that doesn't fit.
                self.subscriptions.append(await bus.subscribe(subject, on_message, lambda: None))
            await bus.flush()
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """Listen no longer."""
        while self.subscriptions:
            await leave(self.subscriptions.pop())
