"""Rates and quantiles of models, from two scrapes of a frontend's `/metrics`. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from dynamo.cli.monitor.load import ModelLoad
from dynamo.frontend.metrics import PREFIX

_COUNTERS: Final = {"requests_total": "requests", "output_tokens_total": "tokens"}
_GAUGES: Final = {"inflight_requests": "in_flight", "queued_requests": "queued", "model_ready": "ready"}
_HISTOGRAMS: Final = {"time_to_first_token_seconds": "ttft", "inter_token_latency_seconds": "itl"}
_WANTED: Final = tuple(
    PREFIX + name for name in (*_COUNTERS, *_GAUGES, *(f"{histogram}_bucket" for histogram in _HISTOGRAMS))
)
_NO_FAILURE: Final = frozenset({"", "cancelled"})
"""Error types of requests that went well, or whose client left."""

Buckets = Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Scrape:
    """A frontend's metrics at one time (seconds of a monotonic clock), each by its name and model."""

    at: float
    values: dict[tuple[str, str], float] = field(default_factory=dict)
    buckets: dict[tuple[str, str], dict[float, float]] = field(default_factory=dict)
    """Values up to a bound in seconds, by that bound."""

    def models(self) -> list[str]:
        """Return the models that were asked; requests for none that is known count under a name of their own."""
        return sorted({model for name, model in self.values if name == "in_flight"})


def parse(text: str, at: float) -> Scrape:
    """Read an exposition; raises `ValueError` for what is none, and for figures that no frontend has."""
    lines = [line for line in text.splitlines() if line.startswith(_WANTED)]
    scrape = Scrape(at)
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                _add(scrape, sample.name.removeprefix(PREFIX), sample.labels, sample.value)
    except (LookupError, TypeError, AttributeError) as error:  # the parser's, for lines that break off
        raise ValueError(f"{type(error).__name__} {error}") from None
    return scrape


def _add(scrape: Scrape, name: str, labels: Mapping[str, str], value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    model = labels.get("model", "")
    if (histogram := _HISTOGRAMS.get(name.removesuffix("_bucket"))) is not None:
        bound = float(labels["le"])
        if math.isnan(bound):
            raise ValueError(f"a bucket of {name} ends at {bound}")
        scrape.buckets.setdefault((histogram, model), {})[bound] = value
        return
    key = (_COUNTERS.get(name) or _GAUGES[name], model)
    scrape.values[key] = scrape.values.get(key, 0.0) + value
    if name == "requests_total" and labels.get("error_type", "") not in _NO_FAILURE:
        scrape.values["failed", model] = scrape.values.get(("failed", model), 0.0) + value


Spans = Sequence[tuple[Scrape, Scrape]]
"""Two scrapes of each frontend."""


def load_between(spans: Spans) -> list[ModelLoad]:
    """Return the load of every model that some frontend has now: the sum over all of them."""
    return [_load_of(model, spans) for model in sorted({model for _, after in spans for model in after.models()})]


def _load_of(model: str, spans: Spans) -> ModelLoad:
    requests, tokens, failed = (_rate(spans, (name, model)) for name in ("requests", "tokens", "failed"))
    ttft, itl = (_increases(spans, (name, model)) for name in _HISTOGRAMS.values())
    ready, in_flight, queued = (
        sum(after.values.get((name, model), 0) for _, after in spans) for name in ("ready", "in_flight", "queued")
    )
    return ModelLoad(
        model=model, ready=ready > 0, in_flight=int(in_flight), queued=int(queued),
        requests=requests, tokens=tokens, failed=failed,
        ttft_p50=quantile(ttft, 0.5), ttft_p95=quantile(ttft, 0.95), itl_p50=quantile(itl, 0.5),
    )  # fmt: skip


def _rate(spans: Spans, key: tuple[str, str]) -> float:
    """Return how fast a counter grew, each frontend's over its own time: one may have begun anew."""
    return sum(_increase(before.values, after.values, key) / max(after.at - before.at, 1e-3) for before, after in spans)


def _increases(spans: Spans, key: tuple[str, str]) -> dict[float, float]:
    """Return what came into a histogram's buckets, of all frontends."""
    total: dict[float, float] = {}
    for before, after in spans:
        then, now = before.buckets.get(key, {}), after.buckets.get(key, {})
        for bound in now:
            total[bound] = total.get(bound, 0.0) + _increase(then, now, bound)
    return total


def _increase(before: Mapping[Any, float], after: Mapping[Any, float], key: Any) -> float:
    """Return a counter's increase; one that is lower began anew with its process."""
    now, then = after.get(key, 0.0), before.get(key, 0.0)
    return now - then if now >= then else now


def quantile(buckets: Buckets, share: float) -> float | None:
    """Return the value below which so large a share lies, evenly spread within its bucket, as Prometheus takes it."""
    total = max(buckets.values(), default=0.0)
    if total <= 0:
        return None
    low = reached = 0.0
    for bound in sorted(buckets):
        if buckets[bound] >= total * share:
            if bound == float("inf"):
                return low
            within = buckets[bound] - reached
            return low + (bound - low) * ((total * share - reached) / within if within else 1.0)
        low, reached = bound, buckets[bound]
    return low
