"""What is computed from samples, by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.cli.load_test.client import api_url
from dynamo.cli.load_test.report import Sample, Targets, figures, lines, percentile, plot, workers_for

GOOD = [Sample(0.0, 0.1, 1.1, 11), Sample(0.0, 0.3, 1.3, 6), Sample(1.0, 1.2, 1.2, 1)]
BAD = [Sample(0.0, error="503: busy"), Sample(0.5, last=0.7)]


def test_figures() -> None:
    """Two of three answers come within 250 ms; what failed counts in no latency."""
    measured = figures([*GOOD, *BAD], 2.0, Targets(ttft=0.25))
    assert (measured["requests"], measured["failed"], measured["good"]) == (5, 2, 2)
    assert measured["output_tokens_per_second"] == 9.0
    assert measured["requests_per_second"] == 1.5
    assert measured["goodput_requests_per_second"] == 1.0
    assert measured["ttft_ms"] == {"p50": 200.0, "p90": 300.0, "p99": 300.0}
    assert measured["itl_ms"] == {"p50": 100.0, "p90": 200.0, "p99": 200.0}
    assert measured["errors"] == {"503: busy": 1, "no token came": 1}
    assert json.loads(json.dumps(measured)) == measured
    assert figures(GOOD, 2.0, Targets(itl=0.15))["good"] == 2


def test_servers_for_a_target() -> None:
    measured = figures(GOOD, 3.0, Targets())
    assert [workers_for(rate, measured) for rate in (0.5, 1.0, 1.01, 10.0)] == [1, 1, 2, 10]
    assert workers_for(1.0, figures(BAD, 3.0, Targets())) is None


def test_nothing_was_answered() -> None:
    measured = figures(BAD, 1.0, Targets())
    text = "\n".join(lines(measured, BAD, Targets()))
    assert "0 answered, 2 failed" in text
    assert "1 x 503: busy" in text
    assert "TTFT" not in text


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_and_plots(values: list[float]) -> None:
    """A percentile is one of the values; a plot counts all of them, within 80 columns."""
    assert percentile(values, 99) in values
    assert percentile(values, 100) == max(values)
    rows = list(plot(values))
    assert all(len(row) <= 80 for row in rows)
    assert sum(int(row.split()[-1]) for row in rows if "#" in row) == len(values)


@pytest.mark.parametrize(
    ("given_url", "url"),
    [
        ("localhost:8000", "http://localhost:8000/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("https://h/base/v1/", "https://h/base/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_addresses(given_url: str, url: str) -> None:
    assert api_url(given_url) == url
