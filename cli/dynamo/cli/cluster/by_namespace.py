"""Reads pipelines namespace by namespace: one that is nested too deep for Python hides those of its own only."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.errors import ClusterError, TooDeepError
from dynamo.operator.kube.resources import PIPELINES, Resource

WITHIN_SECONDS: Final = 60.0
"""For all namespaces: each is a question of its own."""
_NAMESPACES: Final = Resource("v1", "Namespace", "namespaces")


def read_by_namespace(
    cluster: Cluster, problem: TooDeepError, read: Callable[[str], Sequence[Live]]
) -> tuple[list[Live], list[str]]:
    """Read namespace after namespace; return their pipelines, and why some have none here.

    Raises `problem` again where the user may not see namespaces.
    """
    names = [str(live["metadata"]["name"]) for live in cluster.visible(_NAMESPACES, None)]
    if not names:
        raise problem
    end = time.monotonic() + WITHIN_SECONDS
    pipelines: list[Live] = []
    hidden: list[str] = []
    for number, name in enumerate(names):
        if time.monotonic() > end:
            hidden.append(f"{PIPELINES.plural} of {len(names) - number} namespaces: no time was left")
            break
        try:
            pipelines += read(name)
        except ClusterError as error:
            hidden.append(f"{PIPELINES.plural} of namespace {name}: {error.message}")
    return pipelines, hidden
