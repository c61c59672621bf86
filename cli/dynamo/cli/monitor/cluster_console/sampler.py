"""Reads a cluster for the page: pipelines at every look, the rest of it less often. Bounded in time and size."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from dynamo.cli.cluster.by_namespace import read_by_namespace
from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.errors import ClusterError, RefusedError, TooDeepError
from dynamo.cli.cluster.look import MOST, READ_SECONDS, Look
from dynamo.cli.monitor.cluster_console.overview import ClusterObjects, fitted, overview
from dynamo.operator.kube.resources import EVENTS, PIPELINES, PODS, Resource
from dynamo.operator.manifests import naming

MOST_PIPELINES: Final = 500
MOST_READ: Final = 32 << 20
"""Bytes of pipelines that are read at a look; one may have a megabyte of podTemplate."""
MOST_BYTES: Final = 3 << 20
"""Of a snapshot; the page takes no more than four megabytes."""
REST_EVERY: Final = 10.0
"""Seconds between two looks at pods, autoscalers, events and quotas."""
EACH_EVERY: Final = 30.0
"""Seconds between two looks at namespaces one by one, where one has what nobody can read."""
AUTOSCALERS: Final = Resource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
QUOTAS: Final = Resource("v1", "ResourceQuota", "resourcequotas")
_PAGE: Final = 25
"""Pipelines of one answer, which is held as a whole: each may have a megabyte."""


class ClusterSampler:
    """Makes snapshots of one cluster, of a namespace or of all (None). Not for several threads at once."""

    def __init__(self, cluster: Cluster, namespace: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._namespace, self._clock = cluster, namespace, clock
        self._rest, self._unseen, self._hidden = ClusterObjects(), list[str](), list[str]()
        self._known = {"autoscalers": False, "events": False}
        self._next_rest = self._next_each = clock()
        self._each: list[Live] = []
        self._latest: dict[str, Any] = {"pipelines": [], "namespaces": [], "more": False}

    def sample(self) -> bytes:
        """Return what the page shows, as JSON; where the cluster can't be read, the last of it and why."""
        error = ""
        try:
            self._latest = self._look()
        except ClusterError as problem:
            error = problem.message
        except Exception as problem:  # a mistake of ours, or an object that nobody thought of: the page says so
            error = f"what the cluster says can't be shown ({type(problem).__name__}): dynamo status shows it"
        about = {
            "cluster": self._cluster.label,
            "namespace": self._namespace,
            "error": error,
            "unseen": [*self._hidden, *self._unseen],
        }
        return fitted(self._latest | about | {"known": self._known}, MOST_BYTES)

    def _look(self) -> dict[str, Any]:
        try:
            pipelines, more = self._pipelines(self._namespace)
            self._hidden = []
        except TooDeepError as problem:
            if self._namespace is not None:
                raise
            pipelines, more = self._those_that_can_be_read(problem)
        if self._clock() >= self._next_rest:
            try:
                self._read_rest()
            except ClusterError as problem:  # what was read before stays
                self._unseen = [problem.message]
            self._next_rest = self._clock() + REST_EVERY
        rest = self._rest
        shown = overview(ClusterObjects(pipelines, rest.pods, rest.autoscalers, rest.events, rest.quotas))
        return shown | {"more": more}

    def _those_that_can_be_read(self, problem: TooDeepError) -> tuple[list[Live], bool]:
        """Return the first pipelines of namespaces that can be read. It costs a question for each: seldom asked."""
        if self._clock() >= self._next_each:
            self._next_each = self._clock() + EACH_EVERY
            self._each, self._hidden = read_by_namespace(self._cluster, problem, lambda name: self._pipelines(name)[0])
        return self._each[:MOST_PIPELINES], len(self._each) > MOST_PIPELINES

    def _pipelines(self, namespace: str | None) -> tuple[list[Live], bool]:
        """Return the first pipelines, and whether there are more. Raises `ClusterError`."""
        pipelines: list[Live] = []
        after, read = "", 0
        while len(pipelines) < MOST_PIPELINES and read < MOST_READ:
            answer = self._page(namespace, after)
            page, read = self._cluster.decoded(answer), read + len(answer)
            pipelines += page.get("items") or []
            after = (page.get("metadata") or {}).get("continue") or ""
            if not after:
                return pipelines, False
        return pipelines, True

    def _page(self, namespace: str | None, after: str) -> bytes:
        query = {"limit": str(_PAGE)} | ({"continue": after} if after else {})
        try:
            return self._cluster.raw("GET", PIPELINES.path(namespace), query, read_seconds=READ_SECONDS)
        except RefusedError as refused:
            if refused.status == 403 and namespace is None:
                raise ClusterError("you may not list the pipelines of all namespaces: name one with -n") from None
            raise

    def _read_rest(self) -> None:
        look, short = Look(self._cluster), set[str]()

        def first(resource: Resource, **query: str) -> list[Live]:
            items = look.items(resource, self._namespace, **query)
            if items is None or len(items) == MOST:
                short.add(resource.plural)
            return items or []

        kinds = (PIPELINES.kind, AUTOSCALERS.kind, PODS.kind)
        self._rest = ClusterObjects(
            pods=first(PODS, labelSelector=naming.PIPELINE),
            autoscalers=first(AUTOSCALERS),
            events=[event for kind in kinds for event in first(EVENTS, fieldSelector=f"involvedObject.kind={kind}")],
            quotas=first(QUOTAS),
        )
        self._known = {"autoscalers": AUTOSCALERS.plural not in short, "events": EVENTS.plural not in short}
        forbidden = {text.partition(":")[0] for text in look.unseen}
        some = [f"{name}: only the first {MOST} were read" for name in sorted(short - forbidden)]
        self._unseen = [*sorted(set(look.unseen)), *some]
