"""The spans of one HTTP request, where traces are asked for: `http-request`, and below it its stages.

`preprocess` until it is tokens, `route` per attempt to place a choice on a worker; a worker's `handle_payload` is below
the `route` that sent it there. Names are NVIDIA Dynamo's where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dynamo.frontend.http.requests import Scope, header
from dynamo.llm.processing.embeddings import EmbeddingRequest
from dynamo.llm.protocols import PreprocessedRequest, TextRequest
from dynamo.runtime.context import Context
from dynamo.runtime.process.tracing import CURRENT, TRACEPARENT, TRACESTATE, Span, Tracing

_SERVER_ERROR: Final = 500


class RequestTrace:
    """The spans of one request; made in the task that answers it, whose log lines carry its ids from then on."""

    def __init__(self, tracing: Tracing, scope: Scope, request_id: str) -> None:
        names = (TRACEPARENT, TRACESTATE)
        given = {name: value.decode("latin-1") for name in names if (value := header(scope, name.encode())) is not None}
        attributes = {
            "http.request.method": scope["method"], "url.path": scope["path"], "x_request_id": request_id,
        }  # fmt: skip
        self._span = tracing.begin("http-request", carried=given, attributes=attributes, serves=True)
        self._stage: Span | None = self._span.child("preprocess")
        CURRENT.set(self._span.carried().get(TRACEPARENT, ""))

    def carried(self) -> dict[str, str]:
        """Return what names it in the metadata of requests that it causes."""
        return self._span.carried()

    def prepared(self, model: str, requests: Sequence[PreprocessedRequest | TextRequest | EmbeddingRequest]) -> None:
        """Note that it is tokens now, or what its engine takes."""
        if self._stage is not None:
            self._stage.end()
            self._stage = None
        tokens = sum(request.prompt_tokens for request in requests if isinstance(request, PreprocessedRequest))
        tokens += sum(request.tokens for request in requests if isinstance(request, EmbeddingRequest))
        self._span.set(model=model, prompt_tokens=tokens, choices=len(requests))

    def route(self, choice: int, attempt: int) -> Span:
        """Begin the span of an attempt to place a choice."""
        return self._span.child("route", {"choice": choice, "attempt": attempt})

    def first_token(self) -> None:
        self._span.event("first_token")

    def ended(self, status: int, code: str) -> None:
        """Note that the answer is complete, or an error, or that nobody waits for it any more."""
        if self._stage is not None:
            self._stage.end(code)
        self._span.set(**{"http.response.status_code": status})
        self._span.end(code if status >= _SERVER_ERROR else "")


def routed(span: Span, context: Context, instance: int) -> Context:
    """Return the context for the worker that was chosen: what names the span travels with it."""
    span.set(instance_id=str(instance))
    child = context.child()
    child.metadata.update(span.carried())
    return child
