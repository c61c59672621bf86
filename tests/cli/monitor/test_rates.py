"""What `dynamo top` makes of two expositions."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.cli.local.state import PartState, RunState
from dynamo.cli.monitor.load import ModelLoad, WorkerList, WorkerLoad, merged
from dynamo.cli.monitor.rates import _WANTED, Scrape, load_between, parse, quantile
from dynamo.cli.monitor.targets import urls_of
from dynamo.cli.monitor.view import lines
from dynamo.frontend.metrics import Metrics


def exposition(requests: int, seconds: float, failed: int = 0) -> str:
    """Write what a frontend would, by its own metrics."""
    metrics = Metrics()
    meter = metrics.meter("m")
    meter.gauges["model_ready"] = 1
    meter.gauges["inflight_requests"] = 3
    for _ in range(requests):
        metrics.ended("m", "chat_completions", "stream")
        meter.record_ttft(seconds)
        meter.gap(0.02, 9)
        meter.used(10, 10, 0)
    for kind in ["internal"] * failed + ["cancelled"]:
        metrics.ended("m", "chat_completions", "stream", kind)
    return metrics.text().decode()


def test_rates_and_times_are_of_the_interval() -> None:
    """Not of all that was before."""
    before, after = parse(exposition(10, 3.0), 100.0), parse(exposition(30, 3.0, failed=4), 102.0)
    (model,) = load_between([(before, after)])
    assert (model.model, model.ready, model.in_flight) == ("m", True, 3)
    assert (model.requests, model.tokens, model.failed) == (12.0, 100.0, 2.0)
    assert model.ttft_p50 is not None
    assert 2.2 <= model.ttft_p50 <= 4.7
    assert model.itl_p50 is not None
    assert 0.01 <= model.itl_p50 <= 0.02


def test_nothing_happened() -> None:
    """Rates are zero, times unknown."""
    (model,) = load_between([(parse(exposition(5, 1.0), 1.0), parse(exposition(5, 1.0), 2.0))])
    assert (model.requests, model.tokens, model.ttft_p50, model.itl_p50) == (0, 0, None, None)


def test_a_frontend_that_began_anew() -> None:
    """Counters that are lower count from zero, never below."""
    (model,) = load_between([(parse(exposition(50, 1.0), 1.0), parse(exposition(4, 1.0), 2.0))])
    assert (model.requests, model.tokens) == (5.0, 40.0)  # the cancelled one is a request


@pytest.mark.parametrize(
    ("buckets", "share", "value"),
    [
        ({}, 0.5, None),
        ({1.0: 0.0, float("inf"): 0.0}, 0.5, None),
        ({1.0: 10.0, float("inf"): 10.0}, 0.5, 0.5),
        ({1.0: 0.0, 3.0: 10.0, float("inf"): 10.0}, 0.5, 2.0),
        ({1.0: 0.0, 3.0: 0.0, float("inf"): 10.0}, 0.5, 3.0),
    ],
)
def test_quantiles(buckets: dict[float, float], share: float, value: float | None) -> None:
    assert quantile(buckets, share) == value


@pytest.mark.parametrize("text", ["", "<html>", "\0" * 100, "dynamo_frontend_unknown 3\n"])
def test_what_is_no_exposition_has_no_models(text: str) -> None:
    assert parse(text, 0.0).models() == []


@pytest.mark.parametrize(
    "text",
    [
        'requests_total{model="m"} x', "requests_total{", 'requests_total{model="m"} +Inf',
        'inflight_requests{model="m"} NaN', 'time_to_first_token_seconds_bucket{le="nan",model="m"} 1',
        'time_to_first_token_seconds_bucket{model="m"} 1',
    ],
)  # fmt: skip
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(f"dynamo_frontend_{text}\n", 0.0)


@given(st.text(st.sampled_from('{}",=+-\\# \n\0e1IaNm'), max_size=40), st.sampled_from(sorted(_WANTED)))
def test_whatever_is_written_is_read_or_refused(text: str, name: str) -> None:
    """Never another exception than `ValueError`, and what is read has a load."""
    with suppress(ValueError):
        scrape = parse(f'{name}{text}\n{name}{{model="m",le="{text}"}} 1\n', 1.0)
        for load in load_between([(Scrape(0.0), scrape)]):
            assert lines([load], [], 0)


def test_lines_fit_and_names_of_strangers_move_no_terminal() -> None:
    """80 columns, whatever the names."""
    names = {"model": "\x1b[2J" + "m" * 300}
    model = ModelLoad(
        **names, ready=False, in_flight=10**9, queued=10**9, requests=1e300, tokens=99_999, failed=999,
        ttft_p50=0.00912, ttft_p95=123, itl_p50=9.94,
    )  # fmt: skip
    worker = WorkerLoad("\x1b" * 50, "m" * 99, "prefill", "loading" * 9, 1 << 60, None, -(1 << 60), 1e300)
    text = lines([model], [worker], 9)
    assert all(len(line) <= 80 and line.isprintable() for line in text), text
    assert "8 workers more" in text[-1]
    assert "no model" in lines([], [], 0)[0]


def test_several_frontends_are_summed() -> None:
    """Rates add up, each over its own time; quantiles are those of all requests; one that began anew counts from 0."""
    quick = (parse(exposition(10, 0.05), 0.0), parse(exposition(110, 0.05), 10.0))
    slow = (parse(exposition(50, 3.0), 0.0), parse(exposition(19, 3.0), 2.0))
    (model,) = load_between([quick, slow])
    assert (model.requests, model.in_flight) == (10.0 + 10.0, 6)  # the cancelled one is a request
    assert model.ttft_p50 is not None
    assert model.ttft_p95 is not None
    assert model.ttft_p50 < 0.1 < 1 < model.ttft_p95
    assert load_between([]) == []


def test_workers_of_several_frontends_are_one_list() -> None:
    """In flight is what all have there; what a worker says of itself counts once."""
    first = WorkerLoad("a", "m", "generate", "away", 2, 5, None, 0.25)
    second = WorkerLoad("a", "m", "generate", "ready", 3, 4, 1, None)
    other = WorkerLoad("b", "m", "generate", "ready", 1)
    listed = merged([WorkerList([first], 3), WorkerList([second, other], 2), WorkerList()])
    assert listed.workers == [WorkerLoad("a", "m", "generate", "ready", 5, 5, 1, 0.25), other]
    assert listed.total == 4


def test_all_frontends_of_a_run_are_asked() -> None:
    """Each by its own port; the one that `up` names comes first, and only once."""
    parts = [
        PartState("frontend-0", "frontend", "frontend", "ready", 0.0, ports={"http": 8000, "system": 9000}),
        PartState("frontend-1", "frontend", "frontend", "ready", 0.0, ports={"http": 8001}),
        PartState("frontend-2", "frontend", "frontend", "starting", 0.0),
        PartState("worker-0", "worker", "worker", "ready", 0.0, ports={"http": 1}),
    ]
    run = RunState("r", 1, 0.0, "f", "p", "n", "m", "http://127.0.0.1:8000", parts=parts)
    assert urls_of(run) == ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]
