"""Each alert fires when what it is about happens to real processes, and clears when that is over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web
from tests.operator.apiserver import refusal
from tests.waiting import eventually
from tests_alerts.operator import OperatorSite
from tests_alerts.rules import alerts
from tests_alerts.site import Site, paused

Scenario = Callable[[Site], Iterator[None]]
OperatorScenario = Callable[[OperatorSite], Iterator[None]]
"""Makes what is well, and yields; then breaks it, and yields; then mends it."""
SLOW: Final = {"speedup_ratio": 0.02, "max_num_seqs": 1}
"""A second for each request, one after the other."""


def _arguments(**arguments: float) -> tuple[str, str]:
    return "--engine-args", json.dumps(arguments)


def _start(site: Site, *flags: str, **arguments: float) -> None:
    site.frontend(*flags)
    site.worker("worker", *_arguments(**arguments))
    site.served()


def _replaced(site: Site, **arguments: float) -> None:
    site.worker("worker", *_arguments(**arguments))


def model_not_served(site: Site) -> Iterator[None]:
    """Its only worker ends, and comes back."""
    _start(site)
    yield
    site.processes[-1].stop()
    yield
    site.processes[-1].restart()


def frontend_down(site: Site) -> Iterator[None]:
    """It hangs."""
    frontend = site.frontend()
    yield
    with paused(frontend):
        yield


def worker_down(site: Site) -> Iterator[None]:
    """It hangs."""
    worker = site.worker()
    yield
    with paused(worker):
        yield


def requests_fail(site: Site) -> Iterator[None]:
    """The user's engine raises for some requests."""
    file = site.folder / "mine.py"
    file.write_text(
        "async def generate(request, context):\n"
        "    if request['stop_conditions']['max_tokens'] == 13:\n"
        "        raise RuntimeError('unlucky')\n"
        "    yield {'token_ids': [65]}\n"
    )
    site.frontend()
    site.worker("worker", "--python-file", str(file), engine="python")
    site.served()
    site.traffic()
    yield
    unlucky = site.traffic(max_tokens=13)
    yield
    unlucky.stop()


def requests_rejected(site: Site) -> Iterator[None]:
    """More clients than the model may have requests."""
    _start(site, "--max-requests-per-model", "2", speedup_ratio=0.1)
    site.traffic(1)
    yield
    many = site.traffic(4)
    yield
    many.stop()


def first_token_slow(site: Site) -> Iterator[None]:
    """The engine is slow, and one that isn't takes its place."""
    _start(site)
    site.traffic(16, max_tokens=1)
    yield
    _replaced(site, **SLOW)
    yield
    _replaced(site)


def tokens_slow(site: Site) -> Iterator[None]:
    """The engine decodes slowly, and one that doesn't takes its place."""
    _start(site)
    site.traffic(4, max_tokens=20)
    yield
    _replaced(site, decode_speedup_ratio=0.008)
    yield
    _replaced(site)


def requests_queue(site: Site) -> Iterator[None]:
    """Prompts come faster than the engine computes them."""
    _start(site, "--router-queue-threshold", "0.0001", speedup_ratio=0.02)
    yield
    crowd = site.traffic(6, max_tokens=1)
    yield
    crowd.stop()


def requests_time_out(site: Site) -> Iterator[None]:
    """The engine takes longer to a first token than it may."""
    _start(site, "--first-token-timeout-secs", "1")
    site.traffic(4)
    yield
    _replaced(site, **SLOW)
    yield
    _replaced(site)


def requests_migrate(site: Site) -> Iterator[None]:
    """One of two workers dies again and again under streams."""
    _start(site, "--migration-limit", "3")
    site.worker("other")
    site.served(2)
    site.traffic(16, max_tokens=400, ignore_eos=True)
    yield
    for _ in range(3):
        site.monitoring.until(f'sum(vllm:num_requests_running{{namespace="{site.namespace}",pod="other"}}) > 5')
        site.processes[-1].restart()
        site.served(2)
    yield


def migrations_exhausted(site: Site) -> Iterator[None]:
    """Both workers of a stream die."""
    _start(site, "--migration-limit", "1", decode_speedup_ratio=0.05)
    other = site.worker("other", *_arguments(decode_speedup_ratio=0.05))
    site.served(2)
    streams = site.traffic(6, max_tokens=400, ignore_eos=True)
    yield
    running = f'sum(vllm:num_requests_running{{namespace="{site.namespace}",pod="%s"}})'
    site.monitoring.until(f"{running % 'worker'} > 1")
    other.kill()
    site.monitoring.until(f"{running % 'worker'} > 5")
    next(process for process in site.processes if process.name == "worker").restart()
    yield
    streams.stop()


def worker_restarts(site: Site) -> Iterator[None]:
    """It dies three times in a row."""
    worker = site.worker()
    uptime = f'min(dynamo_component_uptime_seconds{{namespace="{site.namespace}"}})'
    yield
    for life in range(3):
        site.monitoring.until(f"{uptime} > 3")
        worker.restart()
        site.monitoring.until(f"resets({uptime}[5m:500ms]) > {life}")
    yield


def kv_cache_full(site: Site) -> Iterator[None]:
    """One long conversation takes all of a small cache."""
    _start(site, "--request-log-size", "0", num_gpu_blocks=100, block_size=16, watermark=0, decode_speedup_ratio=0.005)
    yield
    long = site.traffic(1, prompt="x" * 1550, max_tokens=30, ignore_eos=True)
    yield
    long.stop()


def engines_queue(site: Site) -> Iterator[None]:
    """The engine runs one request at a time, and four are there."""
    _start(site, max_num_seqs=1, decode_speedup_ratio=0.1)
    yield
    crowd = site.traffic(4, max_tokens=20, ignore_eos=True)
    yield
    crowd.stop()


def kv_events_missing(site: Site) -> Iterator[None]:
    """A user's program registers KV blocks of another size than its engine has."""
    _start(site, "--router-mode", "kv")
    yield
    wrong = site.program("wrong", Path(__file__).parent / "programs/wrong_blocks.py", site.namespace)
    yield
    wrong.stop()


def prefill_fallbacks(site: Site) -> Iterator[None]:
    """Prefill workers hang under requests, so that decode workers compute the prompts."""
    site.frontend("--first-token-timeout-secs", "1")
    site.worker("worker", "--role", "decode", component="decode")
    prefill = site.worker("prefill", "--role", "prefill", component="prefill")
    site.served()
    site.traffic(4)
    yield
    with paused(prefill):
        yield


SCENARIOS: Final[dict[str, Scenario]] = {
    "DynamoModelNotServed": model_not_served,
    "DynamoFrontendDown": frontend_down,
    "DynamoWorkerDown": worker_down,
    "DynamoRequestsFail": requests_fail,
    "DynamoRequestsRejected": requests_rejected,
    "DynamoFirstTokenSlow": first_token_slow,
    "DynamoTokensSlow": tokens_slow,
    "DynamoRequestsQueue": requests_queue,
    "DynamoRequestsTimeOut": requests_time_out,
    "DynamoRequestsMigrate": requests_migrate,
    "DynamoMigrationsExhausted": migrations_exhausted,
    "DynamoWorkerRestarts": worker_restarts,
    "DynamoKvCacheFull": kv_cache_full,
    "DynamoEnginesQueue": engines_queue,
    "DynamoKvEventsMissing": kv_events_missing,
    "DynamoPrefillFallbacks": prefill_fallbacks,
}


def reconcile_errors(site: OperatorSite) -> Iterator[None]:
    """Workers can't be written, and can again."""
    site.served()
    yield
    site.server.fault = _refuses_workers
    site.edit(2)
    site.monitoring.until(f'controller_runtime_reconcile_total{{namespace="{site.namespace}",result="error"}} > 0')
    for replicas in range(3, 15):
        site.edit(replicas)  # a new spec is tried at once: what fails for hours is played in seconds
        errors = f'controller_runtime_reconcile_total{{namespace="{site.namespace}",result="error"}}'
        site.monitoring.until(f"{errors} >= {replicas - 1}")
        if site.monitoring.pager.last("DynamoReconcileErrors", site.namespace) == "firing":
            break
    yield
    site.server.fault = lambda method, path: None


def _refuses_workers(method: str, path: str) -> web.Response | None:
    return refusal(422, "no") if method != "GET" and "statefulsets" in path else None


def operator_no_leader(site: OperatorSite) -> Iterator[None]:
    """The only operator is killed, and starts again."""
    site.monitoring.until(f'leader_election_master_status{{namespace="{site.namespace}"}} == 1')
    site.monitoring.until('absent(ALERTS{alertname="DynamoOperatorNoLeader"})')  # there was none before
    eventually("the pager knows", lambda: site.monitoring.pager.last("DynamoOperatorNoLeader", "") != "firing", 30)
    yield
    site.process.kill()
    yield
    site.restart()


def operator_backlog(site: OperatorSite) -> Iterator[None]:
    """The API server holds writes of workers, while more pipelines come than are reconciled at once."""
    site.served()
    yield
    site.call(site.server.answers.clear)
    site.crowd(60)
    yield
    site.call(site.server.answers.set)


def api_server_errors(site: OperatorSite) -> Iterator[None]:
    """The API server answers 500 to everything, then recovers."""
    site.served()
    yield
    site.server.fault = lambda method, path: refusal(500, "no")
    site.call(site.server.end_watches)
    yield
    site.server.fault = lambda method, path: None


OPERATOR_SCENARIOS: Final[dict[str, OperatorScenario]] = {
    "DynamoReconcileErrors": reconcile_errors,
    "DynamoOperatorNoLeader": operator_no_leader,
    "DynamoOperatorBacklog": operator_backlog,
    "DynamoApiServerErrors": api_server_errors,
}


def _lives(site: Site | OperatorSite, scenario: Iterator[None], alert: str, namespace: str) -> None:
    """Nothing is said before it is provoked, then it is, and then that it is over."""
    next(scenario)
    assert site.monitoring.pager.last(alert, namespace) in ("", "resolved")
    next(scenario)
    site.monitoring.fires(alert, namespace)
    next(scenario, None)
    site.monitoring.clears(alert, namespace)
    assert "RUNBOOKS#" in site.monitoring.pager.annotations[alert]["runbook_url"]


@pytest.mark.parametrize("alert", SCENARIOS)
def test_pipeline(alert: str, site: Site) -> None:
    """Frontends and workers: fires, and clears."""
    _lives(site, SCENARIOS[alert](site), alert, site.namespace)


@pytest.mark.parametrize("alert", OPERATOR_SCENARIOS)
def test_operator(alert: str, operator_site: OperatorSite) -> None:
    """The operator: fires, and clears."""
    namespace = "" if alert == "DynamoOperatorNoLeader" else operator_site.namespace  # of absence no label is left
    _lives(operator_site, OPERATOR_SCENARIOS[alert](operator_site), alert, namespace)


def test_all_are_provoked(tmp_path: Path) -> None:
    """A new alert gets a scenario."""
    assert {*SCENARIOS, *OPERATOR_SCENARIOS} == {rule["alert"] for rule in alerts()}
