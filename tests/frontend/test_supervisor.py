"""Several processes' figures and health as one."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from dynamo.frontend.metrics import Metrics
from dynamo.frontend.supervisor import merge_health, merge_metrics


def process(requests: int, seconds: float) -> str:
    """One process's exposition."""
    metrics = Metrics()
    meter = metrics.meter("m")
    for _ in range(requests):
        metrics.ended("m", "chat_completions", "stream")
        meter.observe("time_to_first_token_seconds", seconds)
    meter.gauges["inflight_requests"] = requests
    meter.gauges["model_context_length"] = 4096
    return metrics.text().decode()


def values(text: str) -> dict[tuple[str, str], float]:
    """Every sample by name and bucket."""
    return {
        (sample.name.removeprefix("dynamo_frontend_"), sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counts_add_up_and_facts_do_not() -> None:
    """Counters, histograms and counting gauges are sums; what is true of the model stays."""
    metrics = values(merge_metrics([process(2, 0.005), process(3, 5.0)]))
    assert metrics["requests_total", ""] == 5
    assert metrics["inflight_requests", ""] == 5
    assert metrics["model_context_length", ""] == 4096
    assert metrics["time_to_first_token_seconds_count", ""] == 5
    assert metrics["time_to_first_token_seconds_bucket", "0.01"] == 2
    assert metrics["time_to_first_token_seconds_bucket", "+Inf"] == 5


def test_one_process_is_itself() -> None:
    """Merging one exposition changes no value."""
    child = process(2, 0.005)
    assert values(merge_metrics([child])) == values(child)


def test_healthy_while_any_is() -> None:
    """One serving process keeps the port healthy; all states are shown."""
    good: tuple[int, dict[str, object]] = (200, {"status": "healthy", "message": "fine", "instances": [1]})
    bad: tuple[int, dict[str, object]] = (503, {"status": "unhealthy", "message": "gone"})
    status, body = merge_health([bad, good])
    assert (status, body["status"], body["instances"]) == (200, "healthy", [1])
    assert body["processes"] == [{"status": "unhealthy", "message": "gone"}, {"status": "healthy", "message": "fine"}]
    assert merge_health([bad, bad])[0] == 503
