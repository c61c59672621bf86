"""What a worker counts, under the original's names; observed per request, never per token."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dynamo.runtime.names import EndpointPath, hex_id
from dynamo.worker.engine import Engine

_PREFIX: Final = "dynamo_component"
_LABELS: Final = ("dynamo_namespace", "dynamo_component", "dynamo_endpoint", "worker_id", "model")
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class WorkerMetrics:
    """The figures of one served endpoint."""

    def __init__(self, path: EndpointPath, worker: int, model: str) -> None:
        self.registry = CollectorRegistry()
        values = (*path, hex_id(worker), model)
        self._requests = self._counter("requests", "Requests taken.", values)
        self._cancelled = self._counter("cancellation", "Requests whose client left.", values)
        self._errors = Counter(
            f"{_PREFIX}_errors", "Requests that failed.", (*_LABELS, "error_type"), registry=self.registry
        )
        self._values = values
        self._inflight = Gauge(
            f"{_PREFIX}_inflight_requests", "Requests open now.", _LABELS, registry=self.registry
        ).labels(*values)
        self._duration = Histogram(
            f"{_PREFIX}_request_duration_seconds", "Seconds per request.", _LABELS, buckets=_BUCKETS,
            registry=self.registry,
        ).labels(*values)  # fmt: skip
        began = time.monotonic()
        uptime = Gauge(f"{_PREFIX}_uptime_seconds", "Seconds since the start.", _LABELS, registry=self.registry)
        uptime.labels(*values).set_function(lambda: time.monotonic() - began)

    def _counter(self, name: str, text: str, values: tuple[str, ...]) -> Counter:
        return Counter(f"{_PREFIX}_{name}", text, _LABELS, registry=self.registry).labels(*values)

    def watch(self, engine: Engine, model: str) -> None:
        """Export the engine's load under vLLM's names."""
        self.registry.register(_Load(engine, model))

    def began(self) -> None:
        self._requests.inc()
        self._inflight.inc()

    def ended(self, seconds: float) -> None:
        self._inflight.dec()
        self._duration.observe(seconds)

    def failed(self, kind: str) -> None:
        self._errors.labels(*self._values, kind).inc()

    def cancelled(self) -> None:
        self._cancelled.inc()


class _Load(Collector):
    def __init__(self, engine: Engine, model: str) -> None:
        self._engine, self._model = engine, model

    def collect(self) -> Iterator[Any]:
        load = self._engine.load()
        figures = {
            "num_requests_running": load.running,
            "num_requests_waiting": load.waiting,
            "kv_cache_usage_perc": load.kv_usage,
        }
        for name, value in figures.items():
            family = GaugeMetricFamily(f"vllm:{name}", "As the engine has it now.", labels=["model_name"])
            family.add_metric([self._model], value)
            yield family
