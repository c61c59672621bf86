"""What a worker counts, under the original's and vLLM's names; observed per request, never per token."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from dynamo.runtime import loops
from dynamo.runtime.names import EndpointPath, hex_id
from dynamo.worker.engine import Engine, Measuring

_PREFIX: Final = "dynamo_component"
_LABELS: Final = ("dynamo_namespace", "dynamo_component", "dynamo_endpoint", "worker_id", "model", "model_name")
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class WorkerMetrics:
    """The figures of one served endpoint."""

    def __init__(self, path: EndpointPath, worker: int, model: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._own_seconds: dict[str, Histogram] = {}
        self._values = (*path, hex_id(worker), model, model)
        self._requests = self._counter("requests", "Requests taken.")
        self._cancelled = self._counter("cancellation", "Requests whose client left.")
        self._errors = Counter(
            f"{_PREFIX}_errors", "Requests that failed.", (*_LABELS, "error_type"), registry=self.registry
        )
        self._inflight = self._gauge("inflight_requests", "Requests open now.")
        self._duration = Histogram(
            f"{_PREFIX}_request_duration_seconds", "Seconds per request.", _LABELS, buckets=_BUCKETS,
            registry=self.registry,
        ).labels(*self._values)  # fmt: skip
        self._first = self._seconds("time_to_first_token", "Seconds to a request's first output.")
        self._whole = self._seconds("e2e_request_latency", "Seconds to a request's end.")
        began = time.monotonic()
        self._gauge("uptime_seconds", "Seconds since the start.").set_function(lambda: time.monotonic() - began)
        self._gauge("asyncio_tasks", "Tasks of the process's event loop.").set_function(loops.task_count)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"{_PREFIX}_{name}", text, _LABELS, registry=self.registry).labels(*self._values)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", text, _LABELS, registry=self.registry).labels(*self._values)

    def _seconds(self, name: str, text: str) -> Histogram:
        made = Histogram(f"vllm:{name}_seconds", text, ("model_name",), buckets=_BUCKETS, registry=self.registry)
        self._own_seconds[f"vllm:{name}_seconds"] = made
        return made.labels(self._model)

    def watch(self, engine: Engine) -> None:
        """Export the engine's load under vLLM's names, and what it measures itself, which is what counts then."""
        theirs: frozenset[str] = frozenset()
        if isinstance(engine, Measuring):
            theirs = frozenset(metric.name for metric in engine.metrics())
            self.registry.register(_Passed(engine))
        for name in theirs & self._own_seconds.keys():
            self.registry.unregister(self._own_seconds.pop(name))
        self.registry.register(_Load(engine, self._model, theirs))

    def began(self) -> None:
        self._requests.inc()
        self._inflight.inc()

    def first_output(self, seconds: float) -> None:
        self._first.observe(seconds)

    def ended(self, seconds: float) -> None:
        self._inflight.dec()
        self._duration.observe(seconds)
        self._whole.observe(seconds)

    def failed(self, kind: str) -> None:
        self._errors.labels(*self._values, kind).inc()

    def cancelled(self) -> None:
        self._cancelled.inc()


class _Load(Collector):
    """The engine's own figures, read when somebody asks."""

    def __init__(self, engine: Engine, model: str, theirs: frozenset[str]) -> None:
        self._engine, self._model, self._theirs = engine, model, theirs

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in self._collect() if metric.name not in self._theirs)

    def _collect(self) -> Iterator[Metric]:
        load = self._engine.load()
        figures = {
            "num_requests_running": load.running,
            "num_requests_waiting": load.waiting,
            "kv_cache_usage_perc": load.kv_usage,
            "gpu_cache_usage_perc": load.kv_usage,
        }
        for name, value in figures.items():
            family = GaugeMetricFamily(f"vllm:{name}", "As the engine has it now.", labels=["model_name"])
            family.add_metric([self._model], value)
            yield family
        preempted = CounterMetricFamily("vllm:num_preemptions", "Requests preempted.", labels=["model_name"])
        preempted.add_metric([self._model], load.preemptions)
        yield preempted


class _Passed(Collector):
    """The engine's own metrics, as they are."""

    def __init__(self, engine: Measuring) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        return iter(self._engine.metrics())
