"""A histogram counts the same whether its values are observed at once or recorded first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.process.histogram import Histogram

BOUNDS = (0, 0.5, 1, 2, 8)
VALUES = st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(-1, 10)), max_size=50)


@given(VALUES, VALUES)
def test_recording_counts_as_observing_does(first: list[float], then: list[float]) -> None:
    observed, recorded = Histogram(BOUNDS), Histogram(BOUNDS)
    for values in (first, then):
        for value in values:
            observed.observe(value)
            recorded.record(value)
        recorded.flush()
    assert recorded.buckets() == observed.buckets()
    assert abs(recorded.total - observed.total) < 1e-6


@given(VALUES)
def test_what_is_recorded_shows_when_somebody_reads(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.record(value)
    assert abs(histogram.total - sum(values)) < 1e-6
    for value in values:
        histogram.record(value)
    assert histogram.buckets()[-1] == ("+Inf", 2.0 * len(values))
