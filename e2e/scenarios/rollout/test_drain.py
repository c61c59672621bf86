"""Nodes are drained under streaming traffic: evictions wait for the budgets, streams end, and every drain ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from e2e.cluster.cluster import Cluster
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import PIPELINE_LABEL
from e2e.traffic.busy import NAME, ROLL_SECONDS, Note, load, mocker, serve

DRAIN_SECONDS = 240


@pytest.mark.alone
def test_drain(namespace: Namespace, record_property: Note) -> None:
    """Each node that has pods of ours, one after the other; the others take them over."""
    serve(namespace, mocker(replicas=3), frontend={"replicas": 2})
    with load(namespace) as both:
        for node in sorted(nodes_of(namespace)):
            with drained(namespace.cluster, node):
                assert node not in nodes_of(namespace)
                namespace.wait_ready(NAME, ROLL_SECONDS)
    both.judge(record_property)


@contextmanager
def drained(cluster: Cluster, node: str) -> Iterator[None]:
    """No pod of the pipeline is there inside; other pods stay, since the platform isn't what is tried here."""
    selector = f"--pod-selector={PIPELINE_LABEL}={NAME}"
    options = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={DRAIN_SECONDS}s")
    try:
        cluster.kubectl("drain", node, selector, *options, seconds=DRAIN_SECONDS + 10)
        yield
    finally:
        cluster.kubectl("uncordon", node)


def nodes_of(namespace: Namespace) -> set[str]:
    """Where its pods are that aren't about to go."""
    found = namespace.list("v1/Pod", f"{PIPELINE_LABEL}={NAME}")
    staying = (pod for pod in found if not pod["metadata"].get("deletionTimestamp"))
    return {pod["spec"]["nodeName"] for pod in staying if pod["spec"].get("nodeName")}
