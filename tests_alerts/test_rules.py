"""`promtool` takes the rules, and each alert fires by its numbers and no earlier, in simulated time."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from tests_alerts.rules import alerts, grouped

_WHERE: Final = 'namespace="a",dynamo_dev_pipeline="p"'
_TARGET: Final = f'{_WHERE},pod="p-0",dynamo_dev_component='
_PIPELINE: Final = {"namespace": "a", "dynamo_dev_pipeline": "p"}
_MODEL: Final = {**_PIPELINE, "model": "m"}
_ENGINE: Final = {**_PIPELINE, "model_name": "m"}
_POD: Final = {**_PIPELINE, "pod": "p-0"}


class Case(NamedTuple):
    """Samples, one a minute, that make an alert fire after `fires` minutes, and others that never do."""

    bad: dict[str, str]
    fine: dict[str, str]
    fires: int
    labels: dict[str, str]


def _model(metric: str, more: str = "") -> str:
    return f'dynamo_frontend_{metric}{{{_WHERE},model="m"{more}}}'


def _quantiles(metric: str, low: str, high: str) -> tuple[dict[str, str], dict[str, str]]:
    """All of a minute's ten values lie above the threshold, or all below it."""

    def samples(below: str) -> dict[str, str]:
        return {_model(f"{metric}_bucket", f',le="{bound}"'): values for bound, values in (
            (low, below), (high, "0+10x60"), ("+Inf", "0+10x60"),
        )}  # fmt: skip

    return samples("0x60"), samples("0+10x60")


def _share(bad: str) -> dict[str, str]:
    return {
        _model("requests_total", ',status="error",error_type="internal"'): bad,
        _model("requests_total", ',status="error",error_type="validation"'): "0+500x60",
        _model("requests_total", ',status="success",error_type=""'): "0+500x60",
    }


def _api(code: str) -> dict[str, str]:
    return {
        'dynamo_operator_pipelines{namespace="a",pod="o"}': "1x60",
        f'rest_client_requests_total{{namespace="a",pod="o",method="GET",code="{code}"}}': "0+20x60",
        'rest_client_requests_total{namespace="a",pod="o",method="GET",code="200"}': "0+100x60",
    }


def _counter(metric: str, more: str = "") -> tuple[dict[str, str], dict[str, str]]:
    return {_model(metric, more): "0+6x60"}, {_model(metric, more): "7x60"}


def _gauge(series: str, bad: str, fine: str) -> tuple[dict[str, str], dict[str, str]]:
    return {series: f"{bad}x60"}, {series: f"{fine}x60"}


CASES: Final[dict[str, Case]] = {
    "DynamoModelNotServed": Case(*_gauge(_model("model_ready"), "0", "1"), 5, _MODEL),
    "DynamoFrontendDown": Case(
        *_gauge(f'up{{{_TARGET}"frontend"}}', "0", "1"), 3, {**_POD, "dynamo_dev_component": "frontend"}
    ),
    "DynamoWorkerDown": Case(
        *_gauge(f'up{{{_TARGET}"decode"}}', "0", "1"), 15, {**_POD, "dynamo_dev_component": "decode"}
    ),
    "DynamoRequestsFail": Case(_share("0+100x60"), _share("0+10x60"), 6, _MODEL),
    "DynamoRequestsRejected": Case(
        *_counter("rejected_requests_total", ',reason="full"'), 11, {**_MODEL, "reason": "full"}
    ),
    "DynamoFirstTokenSlow": Case(*_quantiles("time_to_first_token_seconds", "4.7", "10"), 11, _MODEL),
    "DynamoTokensSlow": Case(*_quantiles("inter_token_latency_seconds", "0.38", "0.69"), 11, _MODEL),
    "DynamoRequestsQueue": Case(*_gauge(_model("router_queue_pending_requests"), "3", "0"), 5, _MODEL),
    "DynamoRequestsTimeOut": Case(
        {f'dynamo_frontend_timeouts_total{{{_WHERE},type="first_token"}}': "0+1x60"},
        {f'dynamo_frontend_timeouts_total{{{_WHERE},type="client_stall"}}': "0+1x60"},
        6, {**_PIPELINE, "type": "first_token"},
    ),
    "DynamoRequestsMigrate": Case(*_counter("model_migration_total", ',migration_type="new_request"'), 6, _MODEL),
    "DynamoMigrationsExhausted": Case(*_counter("model_migration_exhausted_total"), 1, _MODEL),
    "DynamoWorkerRestarts": Case(
        {f'dynamo_component_uptime_seconds{{{_TARGET}"worker"}}': "0+60x4 0+60x4 0+60x4 0+60x60"},
        {f'dynamo_component_uptime_seconds{{{_TARGET}"worker"}}': "0+60x4 0+60x4 0+60x60"},
        15, _POD,
    ),
    "DynamoKvCacheFull": Case(
        *_gauge(f'vllm:kv_cache_usage_perc{{{_WHERE},pod="p-0",model_name="m"}}', "0.97", "0.9"), 10, _ENGINE
    ),
    "DynamoEnginesQueue": Case(
        {f'vllm:num_requests_waiting{{{_WHERE},pod="{pod}",model_name="m"}}': "4x60" for pod in ("p-0", "p-1")},
        {f'vllm:num_requests_waiting{{{_WHERE},pod="p-{n}",model_name="m"}}': f"{n}x60" for n in (0, 1)},
        10, _ENGINE,
    ),
    "DynamoKvEventsMissing": Case(
        {_model("router_instances_without_kv_events", ',reason="silent"'): "1x60"},
        {_model("router_instances_without_kv_events", ',reason="no_events"'): "1x60"},
        15, {**_MODEL, "reason": "silent"},
    ),
    "DynamoPrefillFallbacks": Case(*_counter("model_prefill_fallbacks_total"), 6, _MODEL),
    "DynamoReconcileErrors": Case(
        {'controller_runtime_reconcile_total{namespace="a",controller="dynamopipeline",result="error"}': "0+1x60"},
        {'controller_runtime_reconcile_total{namespace="a",controller="another",result="error"}': "0+1x60"},
        16, {"namespace": "a"},
    ),
    "DynamoOperatorNoLeader": Case(
        *_gauge('leader_election_master_status{name="dynamo-operator",namespace="a"}', "0", "1"), 5, {},
    ),
    "DynamoOperatorBacklog": Case(
        *_gauge('workqueue_longest_waiting_seconds{name="dynamopipeline",namespace="a"}', "31", "29"), 5,
        {"namespace": "a"},
    ),
    "DynamoApiServerErrors": Case(_api("500"), _api("404"), 11, {"namespace": "a"}),
}  # fmt: skip


def _promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, check=False)


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    """Syntax, templates, names: without a complaint."""
    (tmp_path / "rules.yaml").write_text(grouped(alerts()))
    done = _promtool("check", "rules", str(tmp_path / "rules.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(alerts())} rules found" in done.stdout


def test_all_have_a_case() -> None:
    """A new alert gets one."""
    assert set(CASES) == {rule["alert"] for rule in alerts()}


@pytest.mark.parametrize("name", CASES)
def test_fires_by_its_numbers(name: str, tmp_path: Path) -> None:
    """At its minute and not before; never where things are fine."""
    rule = next(rule for rule in alerts() if rule["alert"] == name)
    case = CASES[name]
    bare = {key: value for key, value in rule.items() if key != "annotations"}  # promtool compares them word by word
    (tmp_path / "rules.yaml").write_text(grouped([bare]))
    fired = [{"exp_labels": {**case.labels, **rule["labels"]}}]
    tests: list[dict[str, Any]] = [
        _test(case.bad, [(case.fires - 1, []), (case.fires, fired)], name),
        _test(case.fine, [(45, [])], name),
    ]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    done = _promtool("test", "rules", str(tmp_path / "tests.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def _test(series: dict[str, str], moments: list[tuple[int, list[dict[str, Any]]]], name: str) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": series_name, "values": values} for series_name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": fired} for minute, fired in moments
        ],
    }
