"""Reads what a frontend has counted, out of its `/metrics`: facts for `diagnosis/traffic.py`."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from dynamo.cli.diagnosis.traffic import TrafficFacts

SECONDS: Final = 3.0
_MOST_BYTES: Final = 1 << 22
_PREFIX: Final = "dynamo_frontend_"
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks this machine itself, whatever proxy the environment names."""

Sample = tuple[str, dict[str, str], float]


def ask(url: str, pipeline: str) -> TrafficFacts | str:
    """Ask a frontend; a sentence where it doesn't tell."""
    try:
        with _DIRECT.open(f"{url}/metrics", timeout=SECONDS) as answer:
            return read(answer.read(_MOST_BYTES).decode(errors="replace"), pipeline)
    except urllib.error.HTTPError as error:
        key = ": it wants an API key" if error.code == http.client.UNAUTHORIZED else ""
        return f"requests of {pipeline}: {url}/metrics answers {error.code}{key}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"requests of {pipeline}: {url}/metrics gives no answer that can be read ({error})"


def read(text: str, pipeline: str, where: str = "") -> TrafficFacts:
    """Return the facts of a text in Prometheus' format."""
    sums: defaultdict[str, float] = defaultdict(float)
    failures: Counter[str] = Counter()
    rejections: Counter[str] = Counter()
    timeouts: Counter[str] = Counter()
    unserved = []
    for name, labels, value in _samples(text):
        sums[name] += value
        if name == "failures_total":
            failures[labels.get("error_type", "")] += int(value)
        elif name == "rejected_requests_total":
            rejections[labels.get("reason", "")] += int(value)
        elif name == "timeouts_total":
            timeouts[labels.get("type", "")] += int(value)
        elif name == "model_ready" and not value:
            unserved.append(labels.get("model", ""))
    return TrafficFacts(
        pipeline, where, int(sums["requests_total"]), failures, rejections, timeouts,
        broken_off=int(sums["model_migration_exhausted_total"]),
        first_token_seconds=_mean(sums, "time_to_first_token_seconds"),
        token_seconds=_mean(sums, "inter_token_latency_seconds"),
        queue_seconds=_mean(sums, "router_queue_wait_seconds"),
        waiting=int(sums["router_queue_pending_requests"]),
        unserved=tuple(unserved),
    )  # fmt: skip


def _mean(sums: Mapping[str, float], histogram: str) -> float | None:
    count = sums[f"{histogram}_count"]
    return sums[f"{histogram}_sum"] / count if count else None


def _samples(text: str) -> Iterator[Sample]:
    """Yield the frontend's own samples, buckets left out."""
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(_PREFIX) and not sample.name.endswith("_bucket"):
                yield sample.name.removeprefix(_PREFIX), dict(sample.labels), sample.value
