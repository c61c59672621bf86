"""What a frontend counts, under the names that Dynamo's dashboards know.

Observed once per request and once per batch of tokens, never per token, so the
accumulators here are plain numbers; they are given to prometheus-client only when
`/metrics` is read. `ModelMeter` is the handle of one model that the hot path holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dynamo.frontend.errors import TakesWorkersDown
from dynamo.runtime.process import event_loop
from dynamo.runtime.process.histogram import Histogram

PREFIX: Final = "dynamo_frontend_"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_MODELS: Final = 1000
"""Models that get label values of their own; the rest is counted as one."""
FLUSH_AFTER: Final = 512
"""Requests, or answers of one, after which histograms count what they recorded: some kilobytes, and a millisecond."""

# What alerts ask the increase of is there from the start: a series that begins with its first events doesn't show them.
MIGRATIONS: Final = ("new_request", "ongoing_request")
"""Kinds of migrations: before the first token, and after it."""
TIMEOUTS: Final = ("request", "first_token", "inter_token", "worker_wait")
"""Time limits that end a request."""

_TTFT = (0, 0.0022, 0.0047, 0.01, 0.022, 0.047, 0.1, 0.22, 0.47, 1, 2.2, 4.7, 10, 22, 48, 100, 220, 480)
_ITL = (
    0, 0.0018, 0.0033, 0.0059, 0.011, 0.02, 0.035, 0.064, 0.12, 0.21, 0.38, 0.69, 1.2, 2.3, 4.1, 7.4, 13, 24, 44, 80,
)  # fmt: skip
_DURATION = (0, 2, 4, 8, 16, 32, 64, 130, 260, 510)
_ISL = (0, 100, 210, 430, 870, 1800, 3600, 7400, 15000, 31000, 63000, 130000)
_OSL = (0, 100, 210, 430, 880, 1800, 3700, 7600, 16000, 32000)
_TOKENIZER_MS = (0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_STAGE = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5)

_HISTOGRAMS: Final = {
    "time_to_first_token_seconds": ("Seconds until the first token of an answer (TTFT)", _TTFT),
    "inter_token_latency_seconds": ("Seconds between two tokens of a stream (ITL)", _ITL),
    "request_duration_seconds": ("Seconds of a whole request", _DURATION),
    "embedding_latency_seconds": ("Seconds until the embeddings of a request are there", _TTFT),
    "router_queue_wait_seconds": ("Seconds that a request waited for a worker with room", _TTFT),
    "input_sequence_tokens": ("Prompt tokens of a request", _ISL),
    "output_sequence_tokens": ("Output tokens of a request", _OSL),
    "cached_tokens": ("Prompt tokens of a request that came from a KV cache", _ISL),
}
_SECONDS: Final = {
    "template_seconds": "Seconds in which a chat's template was rendered",
    "tokenize_seconds": "Seconds in which a prompt became tokens",
    "event_loop_delay_seconds": "Seconds by which the event loop was late, four times a second",
}
_COUNTERS: Final = {
    "output_tokens_total": "Output tokens",
    "model_migration_exhausted_total": "Streams that failed because the migration limit was used up",
    "model_migration_max_seq_len_exceeded_total": "Requests that became too long to migrate (--migration-max-seq-len)",
    "model_kv_steps_total": "Engine steps whose KV events were applied (kv router)",
    "model_remote_prefills_total": "Prompts that a prefill worker computed",
    "model_local_prefills_total": "Prompts that a decode worker computed by the rules, despite prefill workers",
    "model_prefill_fallbacks_total": "Prompts that a decode worker computed because no prefill worker could",
    "model_kv_gaps_total": "Gaps in the KV events of an instance (kv router)",
    "model_kv_snapshots_total": "Snapshots of an instance's KV cache that were applied (kv router)",
}
_GAUGES: Final = {
    "inflight_requests": "Requests in flight",
    "queued_requests": "Requests in flight that wait for their first token",
    "router_queue_pending_requests": "Requests that wait for a worker with room now",
    "router_queue_pending_isl_tokens": "Prompt tokens of the requests that wait",
    "model_context_length": "Context length of the model in tokens",
    "model_kv_cache_block_size": "Tokens per KV block",
    "model_total_kv_blocks": "KV blocks of one instance",
    "model_max_num_seqs": "Sequences that one instance runs at once",
    "model_max_num_batched_tokens": "Tokens of one engine step at most",
    "model_migration_limit": "Times that a request may move to another worker",
    "model_ready": "1 while an instance serves the model",
}


class ModelMeter:
    """Figures of one model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.histograms = {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self.counters = dict.fromkeys(_COUNTERS, 0.0)
        self.gauges = dict.fromkeys(_GAUGES, 0.0)
        self.migrations = dict.fromkeys(MIGRATIONS, 0)
        self.cancellations: dict[tuple[str, str], int] = {}
        """Requests whose client left, by endpoint and type."""
        self.recoveries: dict[tuple[str, str], Histogram] = {}
        """Seconds until lost streams went on, by kind of migration and outcome."""
        self.unfollowed: dict[str, int] = {}
        """Instances by why their KV events are not followed."""
        self.rejections: dict[str, int] = {}
        """Requests that got 503, by the error's code."""
        self.rejected_at: dict[str, int] = {}
        """The same requests, by endpoint."""
        self.dispatched = 0
        """Requests that are prepared, and wait for their first token."""
        self.gap = self.histograms["inter_token_latency_seconds"].observe
        self.record_ttft = self.histograms["time_to_first_token_seconds"].record
        self.record_duration = self.histograms["request_duration_seconds"].record
        self._record_prompt = self.histograms["input_sequence_tokens"].record
        self._record_produced = self.histograms["output_sequence_tokens"].record
        self._record_cached = self.histograms["cached_tokens"].record

    def add(self, counter: str, amount: float = 1) -> None:
        self.counters[counter] += amount

    def rejected(self, reason: str, endpoint: str) -> None:
        """Count a request that was known to be for this model, and got 503; `reason` is the error's code."""
        self.rejections[reason] = self.rejections.get(reason, 0) + 1
        self.rejected_at[endpoint] = self.rejected_at.get(endpoint, 0) + 1

    def cancelled(self, endpoint: str, kind: str) -> None:
        """Count a request whose client left; `kind`: stream or unary."""
        self.cancellations[endpoint, kind] = self.cancellations.get((endpoint, kind), 0) + 1

    def migrated(self, kind: str) -> None:
        """Count a migration; `kind`: one of `MIGRATIONS`."""
        self.migrations[kind] += 1

    def recovered(self, kind: str, outcome: str, seconds: float) -> None:
        """Note how long a client waited after a worker was lost; `outcome`: success, failure or cancelled."""
        if (histogram := self.recoveries.get((kind, outcome))) is None:
            histogram = self.recoveries[kind, outcome] = Histogram(_TTFT)
        histogram.observe(seconds)

    def observe(self, histogram: str, value: float) -> None:
        self.histograms[histogram].observe(value)

    def used(self, prompt: int, produced: int, cached: int) -> None:
        """Count the tokens of an answer that is over."""
        self._record_prompt(prompt)
        self._record_produced(produced)
        self._record_cached(cached)
        self.counters["output_tokens_total"] += produced
        if self.histograms["output_sequence_tokens"].pending >= FLUSH_AFTER:  # a request may have many answers
            self.flush()

    def flush(self) -> None:
        """Count the values that histograms have recorded."""
        for histogram in self.histograms.values():
            histogram.flush()


class Metrics(Collector):
    """The metrics of one frontend process."""

    def __init__(self, active: Callable[[], float] = lambda: 0) -> None:
        """Make the metrics; `active` says how many requests the servers are answering."""
        self._meters: dict[str, ModelMeter] = {}
        self._requests: dict[tuple[str, str, str, str, str], int] = {}
        self._started: dict[tuple[str, str, str], int] = {}
        self.disconnected = 0
        self._timeouts = dict.fromkeys(TIMEOUTS, 0)
        self._rejections: dict[str, int] = {}
        """Before a model was known, by reason."""
        self._active = active
        self.tokenizer = Histogram(_TOKENIZER_MS)
        """Milliseconds of a prompt's template and tokens."""
        self._seconds = {name: Histogram(_STAGE) for name in _SECONDS}
        self._record_template = self._seconds["template_seconds"].record
        self._record_tokens = self._seconds["tokenize_seconds"].record
        self.loop_late = self._seconds["event_loop_delay_seconds"].observe
        self.preprocess, self.route, self.dispatch = Histogram(_STAGE), Histogram(_STAGE), Histogram(_STAGE)
        self._ended = 0
        """Requests since histograms counted what they recorded."""
        self.of_workers: Callable[[], Iterable[Metric]] = list
        """The gauges of workers, where somebody knows any."""
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def meter(self, model: str) -> ModelMeter:
        """Return the figures of `model`; those over `MAX_MODELS` share one."""
        meter = self._meters.get(model)
        if meter is None:
            name = model if len(self._meters) < MAX_MODELS else "other"
            meter = self._meters[name] = self._meters.get(name) or ModelMeter(name)
        return meter

    def started(self, model: str, endpoint: str, kind: str) -> None:
        key = (model, endpoint, kind)
        self._started[key] = self._started.get(key, 0) + 1

    def ended(self, model: str, endpoint: str, kind: str, error: str = "") -> None:
        """Count a request that is over; `error` is empty where it went well."""
        key = (model, endpoint, kind, "error" if error else "success", error)
        self._requests[key] = self._requests.get(key, 0) + 1
        self._ended += 1
        if self._ended >= FLUSH_AFTER:
            self._flush()

    def _flush(self) -> None:
        self._ended = 0
        for histogram in (self.tokenizer, self.preprocess, self.route, self.dispatch, *self._seconds.values()):
            histogram.flush()
        for meter in self._meters.values():
            meter.flush()

    def prepared(self, began: float, rendered: float, ended: float) -> None:
        """Count the time that a prompt took, which was `rendered` from a template then; 0: it has none."""
        self.tokenizer.record((ended - began) * 1000)
        if rendered:
            self._record_template(rendered - began)
        self._record_tokens(ended - (rendered or began))

    def hit(self, limit: str) -> None:
        """Count a time limit that ended something; the names are in docs/design/serving/overload.md."""
        self._timeouts[limit] = self._timeouts.get(limit, 0) + 1

    def rejected(self, reason: str, model: str = "", endpoint: str = "") -> None:
        """Count a request or connection that was rejected early; `model`: what it names, where that is known."""
        if (meter := self._meters.get(model)) is not None:
            meter.rejected(reason, endpoint)
        else:
            self._rejections[reason] = self._rejections.get(reason, 0) + 1

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def describe(self) -> Iterable[Metric]:
        return []  # nothing to check for duplicates: this is the only collector

    def collect(self) -> Iterator[Metric]:
        yield from self._requests_families()
        tasks = GaugeMetricFamily(PREFIX + "asyncio_tasks", "Tasks of the process's event loop")
        tasks.add_metric([], event_loop.task_count())
        yield tasks
        disconnected = GaugeMetricFamily(
            PREFIX + "disconnected_clients", "Clients that left before their answer was complete"
        )
        disconnected.add_metric([], self.disconnected)
        yield disconnected
        active = GaugeMetricFamily(PREFIX + "active_requests", "HTTP requests in flight")
        active.add_metric([], self._active())
        yield active
        yield _counter("timeouts", "Requests and connections that a time limit ended, by limit", "type", self._timeouts)
        yield from self._stage_families()
        yield from self._model_families()
        yield from self.of_workers()

    def _stage_families(self) -> Iterator[Metric]:
        """Yield where requests spend their time until the first token, and how many are where now."""
        tokenizer = HistogramMetricFamily(
            PREFIX + "tokenizer_latency_ms", "Milliseconds of a prompt's template and tokens", labels=["operation"]
        )
        tokenizer.add_metric(["tokenize"], self.tokenizer.buckets(), self.tokenizer.total)
        took = HistogramMetricFamily(PREFIX + "stage_duration_seconds", "Seconds of a stage", labels=["stage"])
        for stage in ("preprocess", "route", "dispatch"):
            histogram: Histogram = getattr(self, stage)
            took.add_metric([stage], histogram.buckets(), histogram.total)
        now = GaugeMetricFamily(
            PREFIX + "stage_requests", "Requests in a stage until their first token", labels=["stage", "phase"]
        )
        meters = self._meters.values()
        waiting = sum(meter.gauges["router_queue_pending_requests"] for meter in meters)
        sent = sum(meter.dispatched for meter in meters)
        now.add_metric(["preprocess", ""], sum(meter.gauges["queued_requests"] for meter in meters) - sent)
        now.add_metric(["route", "aggregated"], waiting)
        now.add_metric(["dispatch", "aggregated"], max(0, sent - waiting))
        yield from (tokenizer, took, now)
        for name, text in _SECONDS.items():
            seconds, counted = HistogramMetricFamily(PREFIX + name, text), self._seconds[name]
            seconds.add_metric([], counted.buckets(), counted.total)
            yield seconds
        late = dict(self._seconds["event_loop_delay_seconds"].buckets())
        stalls = CounterMetricFamily(
            PREFIX + "event_loop_stall", "Looks at which the event loop was 5 ms late, or more"
        )
        stalls.add_metric([], late["+Inf"] - late["0.005"])
        yield stalls

    def _requests_families(self) -> Iterator[Metric]:
        labels = ["model", "endpoint", "request_type"]
        total = CounterMetricFamily(
            PREFIX + "requests",
            "Requests that have ended, by status and error type",
            labels=[*labels, "status", "error_type"],
        )
        failures = CounterMetricFamily(
            PREFIX + "failures", "Requests that have ended with an error", labels=[*labels, "error_type"]
        )
        for key, count in self._requests.items():
            total.add_metric(key, count)
            if key[-1]:
                failures.add_metric([*key[:3], key[-1]], count)
        started = CounterMetricFamily(PREFIX + "requests_started", "Requests that have begun", labels=labels)
        for start, count in self._started.items():
            started.add_metric(start, count)
        yield from (total, failures, started)

    def _model_families(self) -> Iterator[Metric]:
        meters = list(self._meters.values())
        for name, (text, _) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(PREFIX + name, text, labels=["model"])
            for meter in meters:
                data = meter.histograms[name]
                histogram.add_metric([meter.model], data.buckets(), data.total)
            yield histogram
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name.removesuffix("_total"), text, labels=["model"])
            for meter in meters:
                counter.add_metric([meter.model], meter.counters[name])
            yield counter
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["model"])
            for meter in meters:
                gauge.add_metric([meter.model], meter.gauges[name])
            yield gauge
        yield from self._labelled_families(meters)

    def _labelled_families(self, meters: Iterable[ModelMeter]) -> Iterator[Metric]:
        """Yield what has a label beside the model."""
        text = "Requests that ended because the client left"
        left = CounterMetricFamily(PREFIX + "model_cancellation", text, labels=["model", "endpoint", "request_type"])
        text = "Requests that moved to another instance"
        moved = CounterMetricFamily(PREFIX + "model_migration", text, labels=["model", "migration_type"])
        text = "Seconds from the loss of a worker until a request went on, failed, or was given up by its client"
        took = HistogramMetricFamily(
            PREFIX + "model_migration_duration_seconds", text, labels=["model", "migration_type", "outcome"]
        )
        text = "Instances whose KV events are missing or unusable, by reason (kv router)"
        unfollowed = GaugeMetricFamily(PREFIX + "router_instances_without_kv_events", text, labels=["model", "reason"])
        text = "Requests rejected with 503, and those rejected before their model was known, by error code"
        rejected = CounterMetricFamily(PREFIX + "rejected_requests", text, labels=["model", "reason"])
        text = "Requests rejected with 503"
        refused = CounterMetricFamily(PREFIX + "model_rejection", text, labels=["model", "endpoint"])
        for reason, count in self._rejections.items():
            rejected.add_metric(["", reason], count)
        for meter in meters:
            families = (
                (moved, meter.migrations), (unfollowed, meter.unfollowed), (rejected, meter.rejections),
                (refused, meter.rejected_at),
            )  # fmt: skip
            for family, counts in families:
                for kind, count in counts.items():
                    family.add_metric([meter.model, kind], count)
            for asked, count in meter.cancellations.items():
                left.add_metric([meter.model, *asked], count)
            for labels, histogram in meter.recoveries.items():
                took.add_metric([meter.model, *labels], histogram.buckets(), histogram.total)
        yield left
        yield moved
        yield took
        yield unfollowed
        yield rejected
        yield refused


def _counter(name: str, text: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


_ERROR_TYPES: Final = {
    400: "validation", 404: "not_found", 405: "validation", 408: "validation", 413: "validation",
    414: "validation", 415: "validation", 429: "overload", 431: "validation", 499: "cancelled", 501: "not_implemented",
    503: "unavailable", 504: "response_timeout",
}  # fmt: skip


OVERLOAD: Final = frozenset({
    "full", "busy", "queue_full", "queue_timeout", "frontend_full", "model_full", "rate_limit_exceeded",
    "bodies", "large_requests",
})  # fmt: skip
"""Codes of refusals for want of room: ordinary under load, so the log has them at -v only."""


def error_type(status: int, code: str) -> str:
    """Return the `error_type` label of a failed request."""
    if code == TakesWorkersDown.code:
        return code
    return "overload" if code in OVERLOAD else _ERROR_TYPES.get(status, "internal")
