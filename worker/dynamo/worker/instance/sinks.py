"""Where the output of a request goes: into its stream, with one observation at its end, and into its spans.

`serving.py` makes one per request, of the kind that the engine answers with. Per token the way is `push`, one append.

Where traces are asked for, a `WorkTrace` has `handle_payload`, below it `queue` (until the engine's first output) and
`engine` (from there to the end)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.process.tracing import CURRENT, TRACEPARENT, Span, Tracing
from dynamo.runtime.request_plane.server import Incoming
from dynamo.worker.instance.canary import EngineWatch
from dynamo.worker.instance.metrics import WorkerMetrics


class WorkTrace:
    """Record the spans of one request.

    What the engine starts while it takes the request has the ids in its log lines; an engine with traces of its own
    finds the header in the context's metadata.
    """

    __slots__ = ("_carried", "_span", "_stage")

    def __init__(self, tracing: Tracing, path: EndpointPath, instance: int, context: Context) -> None:
        attributes = {
            "namespace": path.namespace, "component": path.component, "endpoint": path.endpoint,
            "instance_id": str(instance), "x_request_id": context.id(),
        }  # fmt: skip
        self._span = tracing.begin("handle_payload", carried=context.metadata, attributes=attributes, serves=True)
        self._stage: Span = self._span.child("queue")
        self._carried = self._span.carried()
        context.metadata.update(self._carried)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Count what runs while inside as this request's, and so every task that begins here."""
        token = CURRENT.set(self._carried.get(TRACEPARENT, ""))
        try:
            yield
        finally:
            CURRENT.reset(token)

    def first_output(self) -> None:
        self._stage.end()
        self._stage = self._span.child("engine")

    def ended(self, error: str = "") -> None:
        self._stage.end(error)
        self._span.end(error)


class OpenRequest:
    """Request under way of either kind: when it began, who is told of its first output and of its end."""

    __slots__ = ("_began", "_incoming", "_metrics", "_mute", "_open", "_silent", "_trace", "_watch")

    def __init__(
        self, incoming: Incoming, metrics: WorkerMetrics, watch: EngineWatch | None = None,
        trace: WorkTrace | None = None,
    ) -> None:  # fmt: skip
        self._incoming, self._metrics, self._watch, self._trace = incoming, metrics, watch, trace
        self._began = time.monotonic()
        self._open = self._silent = self._mute = True
        metrics.began()
        if watch is not None:
            watch.speakers.add(self)

    @property
    def context(self) -> Context:
        """Return the request's context."""
        return self._incoming.context

    def listen(self) -> None:
        """Tell the watch of the next output."""
        self._mute = True

    def _speak(self) -> None:
        self._mute = False
        if self._silent:
            self._silent = False
            self._metrics.first_output(time.monotonic() - self._began)
            if self._trace is not None:
                self._trace.first_output()
        if self._watch is not None:
            self._watch.spoke()

    def fail(self, error: Exception) -> None:
        if self._close(str(error)):
            self._metrics.failed(error.code if isinstance(error, DynamoException) else type(error).__name__)
            self._incoming.fail(error)

    def cancelled(self) -> None:
        """Note that the client left, or the deadline passed."""
        if self._close("cancelled"):
            self._metrics.cancelled()

    def _close(self, error: str = "") -> bool:
        was, self._open = self._open, False
        if was:
            if self._watch is not None:
                self._watch.speakers.discard(self)
            self._metrics.ended(time.monotonic() - self._began)
            if self._trace is not None:
                self._trace.ended(error)
        return was

    def _finished(self, item: Any = None) -> None:
        if self._close():
            if self._watch is not None:
                self._watch.spoke()
            self._incoming.finish(item)


class RequestSink(OpenRequest):
    """Tokens, or text."""

    __slots__ = ()

    def push(self, produced: list[int] | str, extras: dict[str, Any] | None = None) -> None:
        if self._mute:
            self._speak()
        if extras is None and produced.__class__ is list and len(produced) == 1:
            self._incoming.send(produced[0])
        else:
            self._incoming.send([produced, None, extras])

    def finish(self, reason: str, extras: dict[str, Any] | None = None) -> None:
        self._finished([[], reason, extras])


class VectorsSink(OpenRequest):
    """Vectors, one per input."""

    __slots__ = ()

    def push(self, index: int, vector: bytes) -> None:
        if self._mute:
            self._speak()
        self._incoming.send([index, vector])

    def finish(self) -> None:
        self._finished()
