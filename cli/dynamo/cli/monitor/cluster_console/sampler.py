"""Reads a cluster for the page: pipelines at every look, the rest of it less often. Bounded in time and size."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.errors import ClusterError, RefusedError
from dynamo.cli.cluster.look import MOST, READ_SECONDS, Look
from dynamo.cli.monitor.cluster_console.overview import ClusterObjects, overview
from dynamo.operator.kube.resources import EVENTS, PIPELINES, PODS, Resource
from dynamo.operator.manifests import naming

MOST_PIPELINES: Final = 500
REST_EVERY: Final = 10.0
"""Seconds between two looks at pods, autoscalers, events and quotas."""
AUTOSCALERS: Final = Resource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
QUOTAS: Final = Resource("v1", "ResourceQuota", "resourcequotas")


class ClusterSampler:
    """Makes snapshots of one cluster, of a namespace or of all (None). Not for several threads at once."""

    def __init__(self, cluster: Cluster, namespace: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._namespace, self._clock = cluster, namespace, clock
        self._rest, self._unseen = ClusterObjects(), list[str]()
        self._next_rest = clock()
        self._latest: dict[str, Any] = {"pipelines": [], "namespaces": []}

    def sample(self) -> bytes:
        """Return what the page shows, as JSON; where the cluster can't be read, the last of it and why."""
        error = ""
        try:
            self._latest = self._look()
        except ClusterError as problem:
            error = problem.message
        about = {"cluster": self._cluster.label, "namespace": self._namespace, "error": error, "unseen": self._unseen}
        return msgspec.json.encode(self._latest | about)

    def _look(self) -> dict[str, Any]:
        pipelines, more = self._pipelines()
        if self._clock() >= self._next_rest:
            self._rest, self._unseen = self._read_rest()
            self._next_rest = self._clock() + REST_EVERY
        rest = self._rest
        shown = overview(ClusterObjects(pipelines, rest.pods, rest.autoscalers, rest.events, rest.quotas))
        return shown | {"more": more}

    def _pipelines(self) -> tuple[list[Live], bool]:
        """Return the first pipelines, and whether there are more. Raises `ClusterError`."""
        query = {"limit": str(MOST_PIPELINES)}
        try:
            answer = self._cluster.request("GET", PIPELINES.path(self._namespace), query, read_seconds=READ_SECONDS)
        except RefusedError as refused:
            if refused.status == 403 and self._namespace is None:
                raise ClusterError("you may not list the pipelines of all namespaces: name one with -n") from None
            raise
        return list(answer.get("items") or []), bool((answer.get("metadata") or {}).get("continue"))

    def _read_rest(self) -> tuple[ClusterObjects, list[str]]:
        look, short = Look(self._cluster), list[str]()

        def first(resource: Resource, **query: str) -> list[Live]:
            items = look.items(resource, self._namespace, **query) or []
            if len(items) == MOST:
                short.append(f"{resource.plural}: only the first {MOST} were read")
            return items

        kinds = (PIPELINES.kind, AUTOSCALERS.kind, PODS.kind)
        rest = ClusterObjects(
            pods=first(PODS, labelSelector=naming.PIPELINE),
            autoscalers=first(AUTOSCALERS),
            events=[event for kind in kinds for event in first(EVENTS, fieldSelector=f"involvedObject.kind={kind}")],
            quotas=first(QUOTAS),
        )
        return rest, sorted({*look.unseen, *short})
