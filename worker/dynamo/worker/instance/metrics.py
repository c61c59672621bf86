"""What a worker counts, under NVIDIA Dynamo's and vLLM's names; observed per request, never per token."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from dynamo.runtime.names import EndpointPath, hex_id
from dynamo.runtime.process import event_loop
from dynamo.runtime.process.histogram import Histogram
from dynamo.worker.engine import Engine, Measuring

_PREFIX: Final = "dynamo_component"
_LABELS: Final = ("dynamo_namespace", "dynamo_component", "dynamo_endpoint", "worker_id", "model", "model_name")
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class WorkerMetrics(Collector):
    """The figures of one served endpoint, as plain numbers until somebody reads `registry`."""

    def __init__(self, path: EndpointPath, worker: int, model: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._model = model
        self._values = (*path, hex_id(worker), model, model)
        self._requests = self._cancelled = self._inflight = 0
        self._errors: dict[str, int] = {}
        self._first, self._whole = Histogram(_BUCKETS), Histogram(_BUCKETS)
        self._measured: frozenset[str] = frozenset()
        """Names that the engine measures itself."""
        self._began = time.monotonic()

    def watch(self, engine: Engine) -> None:
        """Export the engine's load under vLLM's names, and what it measures itself, which is what counts then."""
        if isinstance(engine, Measuring):
            self._measured = frozenset(metric.name for metric in engine.metrics())
            self.registry.register(_Passed(engine))
        self.registry.register(_Load(engine, self._model, self._measured))

    # -- once per request, or less

    def began(self) -> None:
        self._requests += 1
        self._inflight += 1

    def first_output(self, seconds: float) -> None:
        self._first.observe(seconds)

    def ended(self, seconds: float) -> None:
        self._inflight -= 1
        self._whole.observe(seconds)

    def failed(self, kind: str) -> None:
        self._errors[kind] = self._errors.get(kind, 0) + 1

    def cancelled(self) -> None:
        self._cancelled += 1

    # -- for whoever reads

    def collect(self) -> Iterator[Metric]:
        yield self._counter("requests", "Requests that the worker accepted.", self._requests)
        yield self._counter("cancellation", "Requests whose client left.", self._cancelled)
        yield self._failures()
        yield self._gauge("inflight_requests", "Requests in flight.", self._inflight)
        yield self._gauge("uptime_seconds", "Seconds since the worker started.", time.monotonic() - self._began)
        yield self._gauge("asyncio_tasks", "Tasks of the process's event loop.", event_loop.task_count())
        duration = HistogramMetricFamily(
            f"{_PREFIX}_request_duration_seconds", "Seconds of a whole request.", labels=_LABELS
        )
        yield _filled(duration, self._values, self._whole)
        yield from (family for family in self._under_vllms_names() if family.name not in self._measured)

    def _under_vllms_names(self) -> Iterator[Metric]:
        label = ["model_name"]
        first = HistogramMetricFamily(
            "vllm:time_to_first_token_seconds", "Seconds until a request's first output.", labels=label
        )
        yield _filled(first, (self._model,), self._first)
        whole = HistogramMetricFamily(
            "vllm:e2e_request_latency_seconds", "Seconds until a request's end.", labels=label
        )
        yield _filled(whole, (self._model,), self._whole)

    def _failures(self) -> Metric:
        family = CounterMetricFamily(
            f"{_PREFIX}_errors", "Requests that failed, by the error's code.", labels=(*_LABELS, "error_type")
        )
        for kind, count in self._errors.items():
            family.add_metric((*self._values, kind), count)
        return family

    def _counter(self, name: str, text: str, count: int) -> Metric:
        family = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=_LABELS)
        family.add_metric(self._values, count)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=_LABELS)
        family.add_metric(self._values, value)
        return family


def _filled(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> Metric:
    family.add_metric(labels, histogram.buckets(), histogram.total)
    return family


class _Load(Collector):
    """The engine's own figures, read when somebody asks."""

    def __init__(self, engine: Engine, model: str, theirs: frozenset[str]) -> None:
        self._engine, self._model, self._theirs = engine, model, theirs

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in self._collect() if metric.name not in self._theirs)

    def _collect(self) -> Iterator[Metric]:
        load = self._engine.load()
        gauges = (
            ("num_requests_running", load.running, "Requests that the engine computes."),
            ("num_requests_waiting", load.waiting, "Requests that wait in the engine."),
            ("kv_cache_usage_perc", load.kv_usage, "Share of KV blocks in use, 0 to 1."),
            ("gpu_cache_usage_perc", load.kv_usage, "The same, under vLLM's older name."),
        )
        for name, value, text in gauges:
            family = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
            family.add_metric([self._model], value)
            yield family
        preempted = CounterMetricFamily(
            "vllm:num_preemptions", "Requests that the engine preempted.", labels=["model_name"]
        )
        preempted.add_metric([self._model], load.preemptions)
        yield preempted


class _Passed(Collector):
    """The engine's own metrics, as they are."""

    def __init__(self, engine: Measuring) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        return iter(self._engine.metrics())
