"""Several processes' `/metrics` and `/health` as one. Pure; the supervisor calls it.

Counters and histograms add up; so do gauges that count something, while facts of a
model (context length, block size) are the same everywhere and are not added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_COUNTS: Final = (
    "_inflight_requests",
    "_active_requests",
    "_disconnected_clients",
    "_pending_requests",
    "_pending_isl_tokens",
)


class _Merged(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def merge_metrics(texts: Sequence[str]) -> str:
    """One exposition of all."""
    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            sums = values.setdefault(family.name, {})
            added = family.type != "gauge" or family.name.endswith(_COUNTS)
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                sums[key] = sums.get(key, 0.0) + sample.value if added else max(sums.get(key, 0.0), sample.value)
    for name, family in families.items():
        for (sample_name, labels), value in values[name].items():
            family.add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(list(families.values())))
    return generate_latest(registry).decode()


def merge_health(found: Sequence[tuple[int, dict[str, object]]]) -> tuple[int, dict[str, object]]:
    """Healthy while any process is (the port is served); the body is the healthy one's, with all states."""
    healthy = [body for status, body in found if status == 200]
    states = [{"status": body.get("status"), "message": body.get("message")} for _, body in found]
    best = healthy[0] if healthy else found[0][1]
    return (200 if healthy else 503), {**best, "processes": states}
