"""What a server says that isn't so: each kind is logged once, and counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

log = logging.getLogger(__name__)
USAGE: Final = "usage"
CONTEXT: Final = "context"
ANSWER: Final = "answer"
KINDS: Final = (USAGE, CONTEXT, ANSWER)
_MOST_CHARACTERS: Final = 300


class UsageReport(NamedTuple):
    """Counts of one answer as the server tells them, and as we count them."""

    prompt: int | None
    completion: int | None
    made: int
    """Tokens that it sent."""
    spare: int = 0
    """Tokens more that it may count: an end that it doesn't send."""


class ServerFaults:
    """Count what is wrong with one server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.counts = dict.fromkeys(KINDS, 0)
        self._last: dict[str, str] = {}

    def note(self, kind: str, what: str) -> None:
        """Count a fault; its kind's first one is logged."""
        self.counts[kind] += 1
        self._last[kind] = what[:_MOST_CHARACTERS]
        if self.counts[kind] == 1:
            more = "metric dynamo_component_server_faults_total counts more"
            log.warning("%s %s (%s)", self._server, self._last[kind], more)

    def remarks(self) -> list[str]:
        """Return a sentence of each kind: its last fault, and how many there were."""
        return [f"{self._server} {text} ({self.counts[kind]} times)" for kind, text in self._last.items()]

    def check_usage(self, report: UsageReport, prompt: int) -> None:
        """Compare what the server counts with our own count."""
        if report.prompt is not None and report.prompt != prompt:
            self.note(USAGE, f"counts {report.prompt} tokens in a prompt that has {prompt}: ours is reported")
        elif report.completion is not None and not 0 <= report.completion - report.made <= report.spare:
            self.note(USAGE, f"counts {report.completion} tokens in an answer that has {report.made}: ours is reported")

    def check_length(self, length: int, wanted: int, prompt: int) -> None:
        """Compare where the server ended an answer for its length with what was asked for."""
        if length < wanted:
            self.note(CONTEXT, f"ended an answer at {prompt + length} tokens, which its context should hold")

    def collect(self, model: str, away: str) -> Iterator[Metric]:
        """Yield the metrics of one server."""
        up = GaugeMetricFamily(
            "dynamo_component_server_up", "Whether the server behind the worker can be asked.", labels=["model_name"]
        )
        up.add_metric([model], 0 if away else 1)
        yield up
        faults = CounterMetricFamily(
            "dynamo_component_server_faults", "What the server behind the worker said that is not so.",
            labels=["model_name", "fault"],
        )  # fmt: skip
        for kind, count in self.counts.items():
            faults.add_metric([model, kind], count)
        yield faults
