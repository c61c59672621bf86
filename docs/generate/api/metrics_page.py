"""Writes the reference of metrics out of the collectors themselves: names, types, labels and meanings are theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Final, NamedTuple, cast

from docs.generate.markdown import code, page, prose, table
from prometheus_client import Metric

from dynamo.frontend.generation.load_gauges import worker_gauges
from dynamo.frontend.limits import tenant_usage
from dynamo.frontend.metrics import Metrics
from dynamo.frontend.routing.model_pool import ModelPool
from dynamo.llm.kv_router.booking import FollowCounts
from dynamo.operator.metrics import FAMILIES
from dynamo.router.main import _Figures
from dynamo.runtime.names import EndpointPath
from dynamo.worker.engine import Engine, EngineLoad
from dynamo.worker.instance.metrics import WorkerMetrics

HEAD: Final = """# Metrics

Made from the programs' collectors by `make generate`; don't edit it by hand.

Every program serves Prometheus' text format at `/metrics`. On Kubernetes the chart's `metrics.podMonitor` and
`metrics.serviceMonitor` scrape all of them, `metrics.dashboards` adds Grafana dashboards, and `metrics.prometheusRule`
alerts ([Helm values](helm-values.md)). A histogram `X` has the series `X_bucket`, `X_sum` and `X_count`.
"""
_FRONTEND: Final = (
    "On the port of clients (8000), or with `--no-public-system-routes` on `--system-port` only. With `--workers` the "
    "counters of all processes are added up. The label `model` is the name that clients use; after 1,000 models the "
    "rest is counted as `other`. `dynamo_frontend_tenant_*` are on `--system-port` only: callers whose API key has a "
    "tenant's name, up to 1,000 pairs of tenant and model of each process."
)
_WORKER: Final = (
    "On the worker's system port (`--system-port`, off by default; pods of a pipeline have it). `dynamo_namespace`, "
    "`dynamo_component`, `dynamo_endpoint`, `worker_id`, `model` and `model_name` are on every metric that begins with "
    "`dynamo_component_`. Metrics that the engine keeps itself (vLLM, SGLang) are added as they are, and replace those "
    "of the same name."
)
_ROUTER: Final = "`python -m dynamo.router`, on `--system-port`."
_OPERATOR: Final = (
    "On `--port` of each operator (8080). Names are controller-runtime's where it has them, so its dashboards work."
)
_OWN: Final = ("dynamo_namespace", "dynamo_component", "dynamo_endpoint", "worker_id", "model", "model_name")


class Described(NamedTuple):
    """A metric as Prometheus sees it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def programs() -> dict[str, tuple[str, list[Described]]]:
    """Return each program's metrics, and where they are."""
    return {
        "Frontend": (_FRONTEND, [*_described(_frontend()), *_of_tenants()]),
        "Worker": (_WORKER, _described(_worker())),
        "Router": (_ROUTER, _described(_Figures(FollowCounts()).collect())),
        "Operator": (_OPERATOR, [Described(name, *family) for name, family in FAMILIES.items()]),
    }


def names() -> set[str]:
    """Return the names of all metrics, as `# TYPE` lines have them."""
    return {metric.name for _, metrics in programs().values() for metric in metrics}


def undocumented(text: str) -> set[str]:
    """Return the metrics of what a program serves at `/metrics` that the reference doesn't have."""
    typed = (line.split() for line in text.splitlines() if line.startswith("# TYPE "))
    return {words[2] for words in typed} - names()


def _frontend() -> Iterator[Metric]:
    metrics = Metrics()
    metrics.meter("model")
    empty = SimpleNamespace(sets=list, prefills=SimpleNamespace(sets=list))
    metrics.of_workers = lambda: worker_gauges(cast("ModelPool", empty))
    return metrics.collect()


def _of_tenants() -> list[Described]:
    families = (tenant_usage.REQUESTS, tenant_usage.TOKENS)
    return [Described(name, "counter", ("tenant", "model", label), text) for name, text, label, _ in families]


def _worker() -> Iterator[Metric]:
    metrics = WorkerMetrics(EndpointPath("namespace", "component", "endpoint"), 1, "model")
    metrics.watch(cast("Engine", SimpleNamespace(load=EngineLoad)))
    return iter(metrics.registry.collect())


def _described(families: Iterable[Metric]) -> list[Described]:
    return [
        Described(
            family.name + ("_total" if family.type == "counter" else ""),
            family.type,
            tuple(getattr(family, "_labelnames", ())),
            family.documentation.rstrip(".") + ".",
        )
        for family in families
    ]


def render() -> str:
    """Write the whole page."""
    parts = [HEAD]
    for program, (where, metrics) in programs().items():
        rows = (_row(metric) for metric in sorted(metrics))
        parts += [f"## {program}", prose(where), table(("metric", "type", "labels", "meaning"), rows)]
    return page(parts)


def _row(metric: Described) -> tuple[str, ...]:
    labels = [label for label in metric.labels if label not in _OWN or not metric.name.startswith("dynamo_component_")]
    return code(metric.name), metric.kind, ", ".join(map(code, labels)), metric.text
