"""OpenTelemetry traces, where `OTEL_EXPORT_ENABLED` asks for them; nothing of OpenTelemetry is imported otherwise.

A span is begun and ended per request and per stage of one, never per token. Between processes the W3C header
`traceparent` travels in a request's metadata. `CURRENT` holds it for what runs now, so that log lines carry the ids.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.extras import install_hint

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import SpanKind, Tracer

log = logging.getLogger(__name__)

ENABLED: Final = "OTEL_EXPORT_ENABLED"
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
CLOSE_SECONDS: Final = 3.0
"""That the last spans have to leave when the process ends."""
_TRUE: Final = ("1", "true", "yes", "on")
_HTTP: Final = "http/protobuf"
_GRPC: Final = "grpc"
_PACKAGES: Final = {_HTTP: "opentelemetry.exporter.otlp.proto.http", _GRPC: "opentelemetry.exporter.otlp.proto.grpc"}
"""What speaks each protocol."""
_POLL_SECONDS: Final = 0.02

CURRENT: Final[ContextVar[str]] = ContextVar("traceparent", default="")
"""The `traceparent` of the request that runs now; empty: none, or tracing is off."""


def trace_ids(traceparent: str) -> tuple[str, str] | None:
    """Trace id and span id of a `traceparent`; None where there is none."""
    parts = traceparent.split("-")
    return (parts[1], parts[2]) if len(parts) == 4 else None


class Span:
    """A span that runs. `end` may be called again; only the first one counts."""

    __slots__ = ("_ended", "_otel", "_tracing")

    def __init__(self, tracing: Tracing, otel: OtelSpan) -> None:
        self._tracing, self._otel, self._ended = tracing, otel, False

    def child(self, name: str, attributes: Mapping[str, Any] | None = None) -> Span:
        """Begin a stage of it."""
        return self._tracing.begin(name, parent=self, attributes=attributes)

    def carried(self) -> dict[str, str]:
        """Return what goes into the metadata of a request that it causes."""
        return self._tracing.inject(self._otel)

    def event(self, name: str) -> None:
        self._otel.add_event(name)

    def set(self, **attributes: str | int | float | bool) -> None:
        self._otel.set_attributes(attributes)

    def end(self, error: str = "") -> None:
        """End it; with the error where it failed."""
        if self._ended:
            return
        self._ended = True
        if error:
            from opentelemetry.trace import Status, StatusCode

            self._otel.set_status(Status(StatusCode.ERROR, error))
        self._otel.end()

    @property
    def otel(self) -> OtelSpan:
        return self._otel


class Tracing:
    """The tracer of a process."""

    def __init__(self, tracer: Tracer, provider: Any) -> None:
        """Begin tracing; `provider`: what sends the spans; has `shutdown`."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer, self._provider, self._closed = tracer, provider, False
        self._propagator = TraceContextTextMapPropagator()

    def begin(
        self, name: str, *, parent: Span | None = None, carried: Mapping[str, str] | None = None,
        attributes: Mapping[str, Any] | None = None, serves: bool = False,
    ) -> Span:  # fmt: skip
        """Begin a span below `parent`, or below what `carried` (a request's metadata) names, or a new trace.

        `serves`: it answers somebody else's request.
        """
        from opentelemetry.trace import set_span_in_context

        if parent is not None:
            context = set_span_in_context(parent.otel)
        else:
            context = self._propagator.extract(dict(carried or {}))
        return Span(self, self._tracer.start_span(name, context, kind=_kind(serves), attributes=attributes))

    def inject(self, otel: OtelSpan) -> dict[str, str]:
        """Return the W3C headers that name a span."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(otel))
        return carrier

    async def close(self) -> None:
        """Send what is left, within `CLOSE_SECONDS`; once, however many runtimes share it."""
        if self._closed:
            return
        self._closed = True
        # The SDK waits for a collector that is away ten times as long; such a thread must not hold up the process.
        sending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        sending.start()
        end = time.monotonic() + CLOSE_SECONDS
        while sending.is_alive():
            if time.monotonic() > end:
                log.warning("the last spans could not be sent within %g s", CLOSE_SECONDS)
                return
            await asyncio.sleep(_POLL_SECONDS)


def _kind(serves: bool) -> SpanKind:
    from opentelemetry.trace import SpanKind

    return SpanKind.SERVER if serves else SpanKind.INTERNAL


def tracing_from_env(service: str, env: Mapping[str, str] | None = None) -> Tracing | None:
    """Make tracing as the environment says; None where it doesn't ask for it. `OTEL_SERVICE_NAME` replaces `service`.

    Where to and how is OpenTelemetry's own affair (`OTEL_EXPORTER_OTLP_*`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`).
    Raises `InvalidArgument` where the packages are missing, or another protocol is asked for.
    """
    env = os.environ if env is None else env
    if env.get(ENABLED, "").strip().lower() not in _TRUE:
        return None
    protocol = env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or env.get("OTEL_EXPORTER_OTLP_PROTOCOL") or _HTTP
    if protocol not in _PACKAGES:
        raise InvalidArgument(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol} is not there: set {_HTTP} (a collector's port 4318) "
            f"or {_GRPC} (4317)"
        )
    if not all(map(_is_installed, ("opentelemetry", "opentelemetry.sdk", _PACKAGES[protocol]))):
        raise InvalidArgument(
            f"{ENABLED} is set, but OpenTelemetry's {protocol} is not installed: {install_hint('otel')}"
        )
    return _open(env.get("OTEL_SERVICE_NAME") or service, protocol)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # what it lies in isn't there
        return False


def _open(service: str, protocol: str) -> Tracing:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter(protocol)))
    return Tracing(provider.get_tracer("dynamo"), provider)


def _exporter(protocol: str) -> SpanExporter:
    """Import what speaks the protocol, and nothing else: a process needs one of both."""
    if protocol == _GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter()
