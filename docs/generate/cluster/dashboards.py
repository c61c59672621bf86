"""Writes the chart's Grafana dashboards: four tables of panels, and the JSON that Grafana reads. `make generate`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parents[3] / "charts/dynamo-platform/files/dashboards"
_HEIGHT, _WIDTH = 8, 12
_OF: Final = 'namespace=~"$namespace",dynamo_dev_pipeline=~"$pipeline"'
_RATE: Final = "[$__rate_interval]"
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class Query(NamedTuple):
    """One line of a panel: its PromQL, and the legend of each series."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """What one picture shows."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    text: str = ""


class Dashboard(NamedTuple):
    """One file."""

    title: str
    panels: tuple[Panel, ...]
    variables: Mapping[str, str]
    """Names that a reader chooses by, and the metric whose labels have the choices."""


def _rate(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{_OF}{more}}}{_RATE}))"


def _now(metric: str, by: str, kind: str = "sum") -> str:
    return f"{kind} by ({by}) ({metric}{{{_OF}}})"


def _quantiles(metric: str, by: str = "model", *shares: float) -> tuple[Query, ...]:
    return tuple(
        Query(
            f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{{{_OF}}}{_RATE})))",
            f"p{share * 100:g} {{{{{by}}}}}",
        )
        for share in shares or (0.5, 0.95, 0.99)
    )


def _mean(metric: str, by: str = "model") -> str:
    return f"{_rate(f'{metric}_sum', by)} / {_rate(f'{metric}_count', by)}"


_F: Final = "dynamo_frontend_"
_SERVICE: Final = Dashboard("Dynamo: service", (
    Panel("Requests per second", "reqps", (
        Query(_rate(f"{_F}requests_total", "model, status"), "{{model}} {{status}}"),
    )),
    Panel("Failures per second", "reqps", (
        Query(_rate(f"{_F}failures_total", "model, error_type"), "{{model}} {{error_type}}"),
    ), "What clients got wrong (validation, not_found) is among them."),
    Panel("Time to first token", "s", _quantiles(f"{_F}time_to_first_token_seconds")),
    Panel("Inter-token latency", "s", _quantiles(f"{_F}inter_token_latency_seconds")),
    Panel("Output tokens per second", "short", (Query(_rate(f"{_F}output_tokens_total", "model"), "{{model}}"),)),
    Panel("Tokens of a request, mean", "short", (
        Query(_mean(f"{_F}input_sequence_tokens"), "prompt {{model}}"),
        Query(_mean(f"{_F}output_sequence_tokens"), "output {{model}}"),
    )),
    Panel("Requests in flight", "short", (
        Query(_now(f"{_F}inflight_requests", "model"), "all {{model}}"),
        Query(_now(f"{_F}queued_requests", "model"), "before the first token {{model}}"),
    )),
    Panel("Whole requests", "s", _quantiles(f"{_F}request_duration_seconds")),
    Panel("Rejected and cancelled per second", "reqps", (
        Query(_rate(f"{_F}rejected_requests_total", "model, reason"), "rejected {{model}} {{reason}}"),
        Query(_rate(f"{_F}model_cancellation_total", "model"), "cancelled {{model}}"),
    )),
    Panel("Ended by a time limit, per second", "reqps", (Query(_rate(f"{_F}timeouts_total", "type"), "{{type}}"),)),
    Panel("Stages before the first token", "s", _quantiles(f"{_F}stage_duration_seconds", "stage", 0.5, 0.99)),
    Panel("Models that are served", "short", (Query(_now(f"{_F}model_ready", "model", "max"), "{{model}}"),),
          "1: a worker serves it."),
), {"namespace": f"{_F}model_ready", "pipeline": f"{_F}model_ready"})  # fmt: skip

_WORKERS: Final = Dashboard("Dynamo: workers and KV", (
    Panel("KV cache in use", "percentunit", (Query(_now("vllm:kv_cache_usage_perc", "pod", "max"), "{{pod}}"),)),
    Panel("Requests in the engines", "short", (
        Query(_now("vllm:num_requests_running", "pod"), "running {{pod}}"),
        Query(_now("vllm:num_requests_waiting", "pod"), "waiting {{pod}}"),
    )),
    Panel("Prompt tokens that came from a cache", "percentunit", (
        Query(f"{_rate(f'{_F}cached_tokens_sum', 'model')} / {_rate(f'{_F}input_sequence_tokens_sum', 'model')}",
              "{{model}}"),
    )),
    Panel("Preemptions per second", "short", (Query(_rate("vllm:num_preemptions_total", "pod"), "{{pod}}"),)),
    Panel("Requests of a worker per second", "reqps", (
        Query(_rate("dynamo_component_requests_total", "pod"), "{{pod}}"),
    )),
    Panel("Time to first output in the engine", "s", _quantiles("vllm:time_to_first_token_seconds", "pod", 0.5, 0.95)),
    Panel("Moves to another worker per second", "short", (
        Query(_rate(f"{_F}model_migration_total", "model, migration_type"), "{{model}} {{migration_type}}"),
        Query(_rate(f"{_F}model_migration_exhausted_total", "model"), "broke off {{model}}"),
    )),
    Panel("Uptime of workers", "s", (Query(_now("dynamo_component_uptime_seconds", "pod", "min"), "{{pod}}"),)),
    Panel("KV blocks that the router counts", "short", (
        Query(_now(f"{_F}worker_active_decode_blocks", "worker_id", "max"), "{{worker_id}}"),
    ), "Of the requests that are being answered; in router mode kv."),
    Panel("Waits for a worker with room", "s", (
        *_quantiles(f"{_F}router_queue_wait_seconds", "model", 0.5, 0.95),
    ), "Empty while nobody waits."),
    Panel("KV events", "short", (
        Query(_rate(f"{_F}model_kv_steps_total", "model"), "engine steps {{model}}"),
        Query(_rate(f"{_F}model_kv_gaps_total", "model"), "gaps {{model}}"),
    )),
    Panel("Where prompts are computed", "reqps", (
        Query(_rate(f"{_F}model_remote_prefills_total", "model"), "by prefill workers {{model}}"),
        Query(_rate(f"{_F}model_local_prefills_total", "model"), "by decode workers, by the rules {{model}}"),
        Query(_rate(f"{_F}model_prefill_fallbacks_total", "model"), "by decode workers, for want of others {{model}}"),
    )),
), {"namespace": f"{_F}model_ready", "pipeline": f"{_F}model_ready"})  # fmt: skip

_MINE: Final = 'namespace=~"$namespace"'
_CONTROLLER: Final = f'controller="dynamopipeline",{_MINE}'
_ONLY: Final = f"and on (namespace, pod) dynamo_operator_pipelines{{{_MINE}}}"
_OPERATOR: Final = Dashboard("Dynamo: operator", (
    Panel("Reconciles per second", "short", (
        Query(f"sum by (result) (rate(controller_runtime_reconcile_total{{{_CONTROLLER}}}{_RATE}))", "{{result}}"),
    )),
    Panel("Time of a reconcile", "s", tuple(
        Query(f"histogram_quantile({share}, sum by (le) (rate(controller_runtime_reconcile_time_seconds_bucket"
              f"{{{_CONTROLLER}}}{_RATE})))", f"p{share * 100:g}") for share in (0.5, 0.99)
    )),
    Panel("Pipelines that wait", "short", (
        Query(f'workqueue_depth{{name="dynamopipeline",{_MINE}}}', "{{pod}}"),
    )),
    Panel("Longest wait", "s", (
        Query(f'workqueue_longest_waiting_seconds{{name="dynamopipeline",{_MINE}}}', "{{pod}}"),
    )),
    Panel("Pipelines", "short", (
        Query(f"max by (namespace) (dynamo_operator_pipelines{{{_MINE}}})", "{{namespace}}"),
    )),
    Panel("Who leads", "short", (
        Query(f'leader_election_master_status{{name="dynamo-operator",{_MINE}}}', "{{pod}}"),
    ), "1: this one."),
    Panel("Requests to the API server per second", "reqps", (
        Query(f"sum by (method, code) (rate(rest_client_requests_total{{{_MINE}}}{_RATE}) {_ONLY})",
              "{{method}} {{code}}"),
    )),
    Panel("Watches opened again, and comparisons of all", "short", (
        Query(f"sum(increase(dynamo_operator_watch_restarts_total{{{_MINE}}}{_RATE}))", "watches"),
        Query(f"sum(increase(dynamo_operator_sweeps_total{{{_MINE}}}{_RATE}))", "comparisons"),
    )),
), {"namespace": "dynamo_operator_pipelines"})  # fmt: skip

_N: Final = "namespace"
_TENANTS: Final = Dashboard("Dynamo: tenants", (
    Panel("Requests per second", "reqps", (Query(_rate(f"{_F}requests_total", _N), "{{namespace}}"),)),
    Panel("Failures per second", "reqps", (Query(_rate(f"{_F}failures_total", _N), "{{namespace}}"),)),
    Panel("Prompt tokens per second", "short", (Query(_rate(f"{_F}input_sequence_tokens_sum", _N), "{{namespace}}"),)),
    Panel("Output tokens per second", "short", (Query(_rate(f"{_F}output_tokens_total", _N), "{{namespace}}"),)),
    Panel("Tokens in the time shown", "short", (
        Query(f"sum by ({_N}) (increase({_F}input_sequence_tokens_sum{{{_OF}}}[$__range]))", "prompt {{namespace}}"),
        Query(f"sum by ({_N}) (increase({_F}output_tokens_total{{{_OF}}}[$__range]))", "output {{namespace}}"),
    )),
    Panel("Requests in flight", "short", (Query(_now(f"{_F}inflight_requests", _N), "{{namespace}}"),)),
    Panel("Time to first token", "s", _quantiles(f"{_F}time_to_first_token_seconds", _N, 0.5, 0.95)),
    Panel("Rejected per second", "reqps", (Query(_rate(f"{_F}rejected_requests_total", f"{_N}, reason"),
                                                 "{{namespace}} {{reason}}"),)),
    Panel("Requests of a key's tenant per second", "reqps", (
        Query(_rate(f"{_F}tenant_requests_total", f"{_N}, tenant, status"), "{{namespace}} {{tenant}} {{status}}"),
    ), "Tenants are named in the file of API keys."),
    Panel("Tokens of a key's tenant per second", "short", (
        Query(_rate(f"{_F}tenant_tokens_total", f"{_N}, tenant, type"), "{{namespace}} {{tenant}} {{type}}"),
    )),
    Panel("Workers", "short", (
        Query(f"count by ({_N}) (count by ({_N}, worker_id) (dynamo_component_uptime_seconds{{{_OF}}}))",
              "{{namespace}}"),
    )),
    Panel("KV cache in use, mean", "percentunit", (
        Query(_now("vllm:kv_cache_usage_perc", _N, "avg"), "{{namespace}}"),
    )),
), {"namespace": f"{_F}model_ready", "pipeline": f"{_F}model_ready"})  # fmt: skip

DASHBOARDS: Final = {
    "dynamo-service": _SERVICE, "dynamo-workers": _WORKERS, "dynamo-operator": _OPERATOR, "dynamo-tenants": _TENANTS,
}  # fmt: skip


def render(uid: str) -> str:
    """Return the JSON of one dashboard, as Grafana exports it."""
    dashboard = DASHBOARDS[uid]
    made = {
        "title": dashboard.title,
        "uid": uid,
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["dynamo"],
        "templating": {"list": [*_variables(dashboard.variables)]},
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }
    return json.dumps(made, indent=1) + "\n"


def _variables(variables: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus"}
    for name, metric in variables.items():
        label = "dynamo_dev_pipeline" if name == "pipeline" else name
        query = f"label_values({metric}, {label})"
        chosen = {"text": "All", "value": "$__all"}
        yield {
            "name": name, "type": "query", "multi": True, "includeAll": True, "allValue": ".*", "refresh": 2,
            "current": chosen, "datasource": _SOURCE, "query": query,
        }  # fmt: skip


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    place = {"h": _HEIGHT, "w": _WIDTH, "x": number % 2 * _WIDTH, "y": number // 2 * _HEIGHT}
    targets = [
        {"refId": chr(ord("A") + place), "expr": query.expr, "legendFormat": query.legend, "datasource": _SOURCE}
        for place, query in enumerate(panel.queries)
    ]
    described = {"description": panel.text} if panel.text else {}
    fields = {"defaults": {"unit": panel.unit}, "overrides": []}
    return {
        "id": number + 1, "title": panel.title, **described, "type": "timeseries", "datasource": _SOURCE,
        "gridPos": place, "fieldConfig": fields, "targets": targets,
    }  # fmt: skip


def main() -> None:
    """Write the files of the chart."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for uid in DASHBOARDS:
        (FOLDER / f"{uid}.json").write_text(render(uid))


if __name__ == "__main__":
    main()
