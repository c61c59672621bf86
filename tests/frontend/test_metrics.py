"""What a frontend's histograms hold between two reads of its metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import yaml

from dynamo.frontend.metrics import FLUSH_AFTER, Metrics

ROOT: Final = Path(__file__).parents[2]


def test_a_buffer_is_bounded_however_many_answers_a_request_has() -> None:
    """Values wait to be counted, but never so many that counting them holds the event loop up."""
    meter = Metrics().meter("m")
    for _ in range(3 * FLUSH_AFTER + 1):
        meter.used(10, 20, 5)
        assert max(histogram.pending for histogram in meter.histograms.values()) <= FLUSH_AFTER
    assert meter.histograms["cached_tokens"].total == 5 * (3 * FLUSH_AFTER + 1)


def test_a_buffer_is_bounded_by_requests() -> None:
    """Of every model, whichever one the last requests were for."""
    metrics = Metrics()
    meter = metrics.meter("m")
    for _ in range(FLUSH_AFTER):
        meter.record_ttft(0.1)
        metrics.route.record(0.1)
        metrics.ended("another", "chat_completions", "stream")
    assert (meter.histograms["time_to_first_token_seconds"].pending, metrics.route.pending) == (0, 0)


COUNTED: Final = re.compile(r"(?:increase|rate)\(dynamo_frontend_(\w+_total)(?:\{(\w+)=~\"([\w|]+)\"\})?\[")


def test_what_alerts_ask_the_increase_of_begins_at_zero() -> None:
    """A series that begins with its first events has no increase there: the alert would come with the second ones."""
    rules = yaml.safe_load((ROOT / "charts/dynamo-platform/files/alerts.yaml").read_text())
    metrics = Metrics()
    metrics.meter("m")
    text = metrics.text().decode()
    asked = [match.groups() for rule in rules for match in COUNTED.finditer(rule["expr"])]
    assert len(asked) >= 4
    for name, label, values in asked:
        if name == "requests_total":
            continue  # a share of all requests, among which the first few don't count
        labels = [f'{label}="{value}"' for value in values.split("|")] if values else [""]
        for wanted in labels:
            line = rf"^dynamo_frontend_{name}(?:\{{[^}}]*{wanted}[^}}]*\}})? 0\.0$"
            assert re.search(line, text, re.MULTILINE), (name, wanted)
