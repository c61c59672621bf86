"""What a frontend's histograms hold between two reads of its metrics."""

from __future__ import annotations

from dynamo.frontend.metrics import FLUSH_AFTER, Metrics


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
