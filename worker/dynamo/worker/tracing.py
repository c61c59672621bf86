"""The spans of one request at its worker, where traces are asked for: `handle_payload`, below it `queue` and `engine`.

`queue` lasts until the engine's first output, `engine` from there to the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dynamo.runtime.context import Context
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.tracing import CURRENT, TRACEPARENT, Span, Tracing


class WorkTrace:
    """See the module. What the engine starts while it is given the request has the ids in its log lines, and an engine
    with traces of its own finds the header in the context's metadata."""

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
        """While inside, what runs is this request's, and so is every task that begins here."""
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
