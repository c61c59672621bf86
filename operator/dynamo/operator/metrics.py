"""The operator's metrics, named as controller-runtime's where it has them, so that existing dashboards work."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

CONTROLLER = "dynamopipeline"
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Family(NamedTuple):
    """What a metric is."""

    kind: str
    labels: tuple[str, ...]
    text: str


FAMILIES: Mapping[str, Family] = {
    "controller_runtime_reconcile_total": Family("counter", ("controller", "result"), "Reconciles by their result."),
    "controller_runtime_reconcile_time_seconds": Family("histogram", ("controller",), "Seconds of a reconcile."),
    "rest_client_requests_total": Family(
        "counter", ("method", "code"), "Requests to the API server by the status of the answer."
    ),
    "workqueue_depth": Family("gauge", ("name",), "Pipelines that wait to be reconciled."),
    "workqueue_longest_waiting_seconds": Family("gauge", ("name",), "Seconds that the longest waiting pipeline waits."),
    "leader_election_master_status": Family("gauge", ("name",), "1 while this operator leads."),
    "dynamo_operator_pipelines": Family("gauge", (), "Pipelines that the operator serves."),
    "dynamo_operator_watch_restarts_total": Family("counter", (), "Watches of the API server that were opened again."),
    "dynamo_operator_sweeps_total": Family("counter", (), "Comparisons of all pipelines with the API server."),
}


class Backlog(NamedTuple):
    """Pipelines that wait to be reconciled."""

    depth: int = 0
    oldest: float = 0.0
    """Seconds that the longest waiting pipeline waits."""
    pipelines: int = 0
    """All that are known."""


class Metrics:
    """Counts what happens; `render` makes the text that Prometheus reads."""

    def __init__(self) -> None:
        self.results: Counter[str] = Counter()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.watch_restarts = 0
        self.sweeps = 0
        self.leading = False
        self.backlog: Callable[[], Backlog] = Backlog
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def reconciled(self, result: str, seconds: float) -> None:
        """Count a reconcile that ended as success, error or requeue_after."""
        self.results[result] += 1
        self._buckets[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds

    def requested(self, method: str, code: int) -> None:
        """Count a request by the code of its answer; 0 where there was none."""
        self.requests[method, code] += 1

    def render(self) -> str:
        """Return the metrics in Prometheus' text format 0.0.4."""
        return "\n".join([*self._lines(self.backlog()), ""])

    def _lines(self, backlog: Backlog) -> Iterator[str]:
        label = f'controller="{CONTROLLER}"'
        yield from _head("controller_runtime_reconcile_total")
        for result in ("success", "error", "requeue_after"):
            yield f'controller_runtime_reconcile_total{{{label},result="{result}"}} {self.results[result]}'
        yield from _head("controller_runtime_reconcile_time_seconds")
        total = 0
        for bound, count in zip((*BOUNDS, "+Inf"), self._buckets, strict=True):
            total += count
            yield f'controller_runtime_reconcile_time_seconds_bucket{{{label},le="{bound}"}} {total}'
        yield f"controller_runtime_reconcile_time_seconds_sum{{{label}}} {self._seconds:.6f}"
        yield f"controller_runtime_reconcile_time_seconds_count{{{label}}} {total}"
        yield from _head("rest_client_requests_total")
        for (method, code), count in sorted(self.requests.items()):
            yield f'rest_client_requests_total{{method="{method}",code="{code or "<error>"}"}} {count}'
        yield from _gauge("workqueue_depth", backlog.depth, f'name="{CONTROLLER}"')
        yield from _gauge("workqueue_longest_waiting_seconds", round(backlog.oldest, 3), f'name="{CONTROLLER}"')
        yield from _gauge("leader_election_master_status", int(self.leading), 'name="dynamo-operator"')
        yield from _gauge("dynamo_operator_pipelines", backlog.pipelines)
        yield from _head("dynamo_operator_watch_restarts_total")
        yield f"dynamo_operator_watch_restarts_total {self.watch_restarts}"
        yield from _head("dynamo_operator_sweeps_total")
        yield f"dynamo_operator_sweeps_total {self.sweeps}"


def _head(name: str) -> Iterator[str]:
    family = FAMILIES[name]
    yield f"# HELP {name} {family.text}"
    yield f"# TYPE {name} {family.kind}"


def _gauge(name: str, value: float, labels: str = "") -> Iterator[str]:
    yield from _head(name)
    yield f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"
