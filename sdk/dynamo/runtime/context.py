"""The life of one request, as everybody who works on it sees it: who it is, until when, and whether it should stop.

A frontend makes one per request, `Caller` carries it over the bus, `RequestServer`
rebuilds it beside the engine. It works push-style (`on_stop` calls back at once, for
code that must not own a task) and pull-style (`is_stopped`, `async_killed_or_stopped`,
NVIDIA Dynamo's names). Used from the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from dynamo.runtime.process.tracing import TRACEPARENT, TRACESTATE, trace_ids

_log = logging.getLogger(__name__)


class Context:
    """One request's identity, time limit and stop signal."""

    __slots__ = ("_callbacks", "_id", "_killed", "_stopped", "deadline", "metadata")

    def __init__(
        self,
        id: str | None = None,  # noqa: A002 - NVIDIA Dynamo's keyword
        metadata: Mapping[str, str] | None = None,
        *,
        deadline: float | None = None,
    ) -> None:
        self._id = id or str(uuid.uuid4())
        self.metadata: dict[str, str] = dict(metadata) if metadata else {}
        self.deadline = deadline
        """When it must be over, on the clock of `time.monotonic`; None: no limit."""
        self._stopped = False
        self._killed = False
        self._callbacks: list[Callable[[], None]] = []

    def id(self) -> str:
        return self._id

    def is_stopped(self) -> bool:
        """Tell whether somebody asked to end the request, gently or not."""
        return self._stopped

    def is_killed(self) -> bool:
        """Tell whether the output is wanted by nobody any more."""
        return self._killed

    def stop_generating(self) -> None:
        """Ask to end; what was produced so far still counts."""
        if not self._stopped:
            self._stopped = True
            self._run_callbacks()

    def kill(self) -> None:
        """End now; nobody reads what is still produced."""
        self._killed = True
        self.stop_generating()

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the request is stopped or killed; at once where it already is."""
        if self._stopped:
            callback()
        else:
            self._callbacks.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Undo `on_stop`; unknown callbacks are ignored."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def settle(self) -> None:
        """Settle: the request is over, nobody waits for a stop any more (also frees what the callbacks hold)."""
        self._callbacks.clear()

    def async_killed_or_stopped(self) -> asyncio.Future[bool]:
        """Return a future that is true when the request is stopped or killed.

        Await it, or give it to `asyncio.wait`; it may be cancelled.
        """
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiting.done():
                waiting.set_result(True)

        waiting.add_done_callback(lambda _: self.forget(wake))
        self.on_stop(wake)
        return waiting

    def notify_first_token(self) -> None:
        """Do nothing: frontends measure the first token when it comes."""

    # -- traces: see `tracing` for who sends them

    @property
    def trace_id(self) -> str | None:
        """Return the id of the trace that the request belongs to, 32 hexadecimal digits; None where tracing is off."""
        ids = trace_ids(self.metadata.get(TRACEPARENT, ""))
        return ids[0] if ids else None

    @property
    def span_id(self) -> str | None:
        """Return the id of the span that caused the request, 16 hexadecimal digits."""
        ids = trace_ids(self.metadata.get(TRACEPARENT, ""))
        return ids[1] if ids else None

    @property
    def parent_span_id(self) -> str | None:
        """Always None: only the span that caused the request travels with it."""
        return None

    def trace_headers(self) -> dict[str, str] | None:
        """Return the W3C headers to give to whatever is called for this request; None where tracing is off."""
        headers: dict[str, str] = {
            name: self.metadata[name] for name in (TRACEPARENT, TRACESTATE) if name in self.metadata
        }
        return headers if TRACEPARENT in headers else None

    def current_span(self) -> SpanProxy:
        """Return a span that is not sent: see `SpanProxy`."""
        return SpanProxy()

    def start_span(self, name: str, attrs: Mapping[str, Any] | None = None) -> SpanProxy:
        """Return a span that is not sent, too."""
        return SpanProxy()

    def child(self, id: str | None = None) -> Context:  # noqa: A002
        """Return a context that stops with this one; it has the same time limit and a copy of the metadata."""
        child = Context(id or self._id, self.metadata, deadline=self.deadline)
        self.on_stop(lambda: child.kill() if self._killed else child.stop_generating())
        return child

    def detached(self, id: str | None = None) -> Context:  # noqa: A002
        """Return a copy that outlives this one."""
        return Context(id or self._id, self.metadata, deadline=self.deadline)

    def _run_callbacks(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:  # the others must hear of it too
                _log.exception("request %s: a stop callback failed", self._id)


class SpanProxy:
    """A span of a program's own, as NVIDIA Dynamo's handlers begin it. Nothing is sent of it.

    For a span that is seen, use OpenTelemetry itself, with `Context.trace_headers()` as its parent.
    """

    __slots__ = ()

    def set_attribute(self, key: str, value: Any) -> None:
        """Do nothing, and so below."""

    def add_event(self, name: str, attrs: Mapping[str, Any] | None = None) -> None: ...

    def set_status(self, status: str, description: str | None = None) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> SpanProxy:
        return self

    def __exit__(self, *_: object) -> None: ...
